"""What the log of a KV file holds: a header, then a record for each layer of the prompts and for each finished step."""

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

FORMAT = "kvferry-kv-log"
VERSION = 1
# Kinds of frames.
HEADER, PROMPTS, STEP = b"head", b"prom", b"step"
# Bytes of a number, by how a model has it.
NUMBER_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# The record's number, and how many members, places, sums and entries it has.
_COUNTS = struct.Struct("<qQQQQ")


@dataclass(frozen=True, kw_only=True)
class KvHeader:
    """``identity`` is the file's own, too: 32 hexadecimal digits. A row is one of ``heads`` parts of a sequence's KV
    heads; an entry is a token's keys and values [2, row_heads, head_dim] in ``dtype``. ``context`` tokens of each
    sequence are its prompt. ``data_bytes`` of the file hold KV, in storage blocks of ``block_bytes``. ``clusters``:
    KV blocks are clusters; else every entry is a block."""

    identity: str
    model: str
    layers: int
    sequences: int
    heads: int
    row_heads: int
    head_dim: int
    dtype: str
    context: int
    data_bytes: int
    block_bytes: int
    clusters: bool

    @property
    def rows(self) -> int:
        """Rows of all layers, layer by layer, sequence by sequence."""
        return self.layers * self.layer_rows

    @property
    def layer_rows(self) -> int:
        return self.sequences * self.heads

    @property
    def entry_bytes(self) -> int:
        return 2 * self.row_heads * self.head_dim * NUMBER_BYTES[self.dtype]

    def packed(self) -> bytes:
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}).encode()

    @classmethod
    def unpacked(cls, content: bytes) -> "KvHeader":
        """ValueError when it is none."""
        found = json.loads(content)
        if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (FORMAT, VERSION):
            raise ValueError(f"it is no {FORMAT} of version {VERSION}")
        kinds: Mapping[str, Any] = {one.name: one.type for one in fields(cls)}
        for name, kind in kinds.items():
            if type(found.get(name)) is not kind:
                raise ValueError(f"its {name} is {found.get(name)!r:.50}, which is no {kind.__name__}")
            if kind is int and not 0 < found[name] < 1 << 48:
                raise ValueError(f"its {name} is {found[name]!r:.50}")
        if found["dtype"] not in NUMBER_BYTES:
            raise ValueError(f"its dtype is {found['dtype']!r:.50}; {', '.join(NUMBER_BYTES)} are read")
        return cls(**{name: found[name] for name in kinds})


@dataclass(frozen=True, kw_only=True, eq=False)
class KvRecord:
    """``number``: the layer whose prompts these are, or the position of the token that the step was of. Rows are of all
    layers, and an entry is a row and a token's position.

    ``members`` int32[n, 3], row, token and cluster: these are the cluster's from now on, in this order and behind those
    that it has. ``placed`` int32[n, 2] lie in the file at ``offsets`` int64[n], once the step's writes have ended, and
    ``sums`` uint64[n] are those of their bytes (empty: not told). ``held`` int32[n, 2] are the entries
    whose bytes are here, ``entries`` uint8[n, entry_bytes].
    """

    number: int
    members: np.ndarray
    placed: np.ndarray
    offsets: np.ndarray
    sums: np.ndarray
    held: np.ndarray
    entries: np.ndarray

    def packed(self) -> bytes:
        counts = len(self.members), len(self.placed), len(self.sums), len(self.held)
        columns = (
            (self.members, "<i4"),
            (self.placed, "<i4"),
            (self.offsets, "<i8"),
            (self.sums, "<u8"),
            (self.held, "<i4"),
            (self.entries, "u1"),
        )
        parts = [np.ascontiguousarray(column, kind).tobytes() for column, kind in columns]
        return b"".join([_COUNTS.pack(self.number, *counts), *parts])

    @classmethod
    def unpacked(cls, content: bytes, entry_bytes: int) -> "KvRecord":
        """Its arrays are views of the content. ValueError when it is none."""
        if len(content) < _COUNTS.size:
            raise ValueError(f"{len(content)} bytes are no record")
        number, members, placed, sums, held = _COUNTS.unpack_from(content)
        sizes = 12 * members, 8 * placed, 8 * placed, 8 * sums, 8 * held, entry_bytes * held
        if _COUNTS.size + sum(sizes) != len(content) or sums not in (0, placed):
            raise ValueError(
                f"a record of {members:,} members, {placed:,} places and {held:,} entries is of other size"
            )
        at, parts = _COUNTS.size, []
        for n_bytes, kind in zip(sizes, ("<i4", "<i4", "<i8", "<u8", "<i4", "u1"), strict=True):
            parts.append(np.frombuffer(content, kind, n_bytes // np.dtype(kind).itemsize, at))
            at += n_bytes
        return cls(
            number=number,
            members=parts[0].reshape(-1, 3),
            placed=parts[1].reshape(-1, 2),
            offsets=parts[2],
            sums=parts[3],
            held=parts[4].reshape(-1, 2),
            entries=parts[5].reshape(-1, entry_bytes),
        )

r"""A store: one file with an encoded context, its chunks (t, l, h) at every level, and an index with checksums.

    16 bytes    "kvferry store 1\n"
    chunks      one after the other, in the order in which they were put
    table       the index: see `Index.to_bytes`
    trailer     u64 bytes of the table, u32 its CRC-32, "kvferry store /\n"

A file gets its name when it is complete and on disk. One that was cut short afterwards lacks its trailer and is
refused.
"""

import os
import stat
import struct
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field, ValidationError, model_validator

from kvferry.codecs.codec import CODECS, DamagedChunk
from kvferry.specs.base import Spec
from kvferry.specs.errors import InputError, KvferryError, pick
from kvferry.system.checksum import crc32

_BEGIN, _END = b"kvferry store 1\n", b"kvferry store /\n"
_TRAILER = struct.Struct("<QI16s")
_LENGTH = struct.Struct("<I")
# Chunks times levels: 100K tokens of a 36-layer model with 8 heads at five levels are 141,000.
MOST_ENTRIES = 4_000_000
MOST_TABLE_BYTES = 2**27
_MOST_HEADER_BYTES = 2**20
# What nothing was written to for so long is no work in progress.
_LEFT_S = 86_400.0


class DamagedStore(KvferryError):
    """A file that is no store, or was changed after it was written."""


class StoredModel(Spec):
    """The model that computed the keys and values. `fingerprint` differs when the weights do, `tokenizer` when the same
    text becomes other tokens."""

    name: str = Field(min_length=1, max_length=200)
    fingerprint: str = Field(min_length=1, max_length=200)
    tokenizer: str = Field(min_length=1, max_length=200)
    layers: int = Field(ge=1, le=1000, strict=True)
    kv_heads: int = Field(ge=1, le=10_000, strict=True)
    head_dim: int = Field(ge=1, lt=2**16, strict=True)


class StoreHeader(Spec):
    """The description in a store. `tokens` has the number of tokens of each token chunk; level 0 is the best."""

    format: Literal["kvferry-store"] = "kvferry-store"
    version: Literal[1] = 1
    model: StoredModel
    tokens: tuple[int, ...] = Field(min_length=1, max_length=100_000)
    codec: str
    levels: int = Field(default=1, ge=1, strict=True)
    has_active_blocks: bool = False

    @model_validator(mode="after")
    def _sound(self) -> "StoreHeader":
        if min(self.tokens) < 1 or sum(self.tokens) > 10**7:
            raise ValueError("token chunks have at least one token, and 10 million together at most")
        if self.codec not in CODECS or self.levels > CODECS[self.codec].levels:
            raise ValueError(f"there is no codec {self.codec!r:.40} of {self.levels} levels")
        if self.entries > MOST_ENTRIES:
            raise ValueError(f"{self.entries:,} chunks and levels; a store has {MOST_ENTRIES:,} at most")
        return self

    @classmethod
    def at_all_levels(
        cls, model: StoredModel, tokens: Sequence[int], codec: str, *, has_active_blocks: bool = False
    ) -> "StoreHeader":
        """A header with all the levels that the codec has. Raises InputError for an unknown codec."""
        levels = pick("codec", CODECS, codec).levels
        return cls(model=model, tokens=tuple(tokens), codec=codec, levels=levels, has_active_blocks=has_active_blocks)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(token chunks, layers, KV heads)."""
        return len(self.tokens), self.model.layers, self.model.kv_heads

    @property
    def entries(self) -> int:
        t, l, h = self.shape
        return t * l * h * self.levels


@dataclass(frozen=True, eq=False)
class Index:
    """Where each chunk lies in the file, [T, L, H, levels], and its CRC-32; the context's token ids, int32[tokens];
    and, where the writer knew them, the attention blocks of each chunk, int32[T, L, H] (as in a `ChunkTrace`)."""

    header: StoreHeader
    offsets: np.ndarray
    lengths: np.ndarray
    checksums: np.ndarray
    token_ids: np.ndarray
    active_blocks: np.ndarray | None = None

    def extents(self, ids: Sequence[int], level: int) -> list[tuple[int, int]]:
        """(offset, length) of chunks by their flat indices into (t, l, h). Raises InputError for an index or level that
        the store does not have."""
        where = self._where(ids, level)
        return list(zip(self.offsets.ravel()[where].tolist(), self.lengths.ravel()[where].tolist(), strict=True))

    def lengths_of(self, ids: Sequence[int], level: int) -> list[int]:
        return self.lengths.ravel()[self._where(ids, level)].tolist()

    def checksums_of(self, ids: Sequence[int], level: int) -> list[int]:
        return self.checksums.ravel()[self._where(ids, level)].tolist()

    def encoded_bytes(self, level: int = 0) -> np.ndarray:
        """float[T, L, H]: encoded size of each chunk at this level."""
        return self.lengths[..., level].astype(float)

    @cached_property
    def level_scale(self) -> tuple[float, ...]:
        """Every level's total relative to that of level 0."""
        totals = self.lengths.reshape(-1, self.header.levels).sum(axis=0, dtype=float)
        return tuple((totals / totals[0]).tolist())

    def check_model(self, model: StoredModel) -> None:
        """Raises InputError when these are the keys and values of another model, naming what differs."""
        ours, theirs = self.header.model.model_dump(), model.model_dump()
        differ = [key for key in ours if key != "name" and ours[key] != theirs[key]]
        if differ:
            shown = ", ".join(f"{key.replace('_', ' ')} {ours[key]} instead of {theirs[key]}" for key in differ)
            raise InputError(
                f"this store was made for model {self.header.model.name}, not for {model.name}: {shown}; "
                f"encode the context with the model that is to use it"
            )

    def check_context(self, header: StoreHeader, token_ids: Sequence[int]) -> None:
        """Raises InputError when this is not the context with that header and these tokens, naming what differs."""
        self.check_model(header.model)
        ours = self.header
        if (ours.codec, ours.levels) != (header.codec, header.levels):
            raise InputError(
                f"this store was encoded with {ours.codec} at {ours.levels} levels, not with {header.codec} at "
                f"{header.levels}"
            )
        if sum(ours.tokens) != sum(header.tokens):
            raise InputError(f"this store holds {sum(ours.tokens):,} tokens, not the {sum(header.tokens):,} asked for")
        if ours.tokens != header.tokens:
            raise InputError(
                f"this store is cut into token chunks of {_shown(ours.tokens)} tokens, not of {_shown(header.tokens)}"
            )
        differ = np.flatnonzero(self.token_ids != np.asarray(token_ids))
        if differ.size:
            first = differ[0]
            raise InputError(
                f"this store holds another context: {differ.size:,} of {self.token_ids.size:,} tokens differ, first "
                f"number {first:,} ({self.token_ids[first]} instead of {token_ids[first]})"
            )

    def to_bytes(self) -> bytes:
        """u32 length of the header, the header in JSON; u64 offsets, u32 lengths and u32 checksums of every chunk and
        level, in the order of (t, l, h, level); i32 token ids; i32 active blocks of every chunk, if it has them."""
        header = self.header.model_dump_json().encode()
        parts = [_LENGTH.pack(len(header)), header]
        parts += [array.astype(kind).tobytes() for array, (_, kind) in zip(self._arrays(), _layout(self.header))]
        return b"".join(parts)

    def _arrays(self) -> list[np.ndarray]:
        arrays = [self.offsets, self.lengths, self.checksums, self.token_ids]
        return arrays if self.active_blocks is None else [*arrays, self.active_blocks]

    @classmethod
    def from_bytes(cls, table: bytes) -> "Index":
        """Raises DamagedStore when these bytes are no index."""
        try:
            (length,) = _LENGTH.unpack_from(table)
            if length > _MOST_HEADER_BYTES:
                raise ValueError(f"a header of {length:,} bytes")
            header = StoreHeader.model_validate_json(table[_LENGTH.size : _LENGTH.size + length])
            at, arrays = _LENGTH.size + length, []
            for shape, kind in _layout(header):
                array = np.frombuffer(table, kind, int(np.prod(shape)), at).reshape(shape)
                at += array.nbytes
                arrays.append(array.astype(np.int64 if kind == "<u8" else array.dtype.newbyteorder("=")))
            if at != len(table):
                raise ValueError(f"{len(table) - at} bytes too many")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "header"
            raise DamagedStore(f"no index of a store: {where}: {first['msg']}") from None
        except (ValueError, struct.error) as error:
            raise DamagedStore(f"no index of a store: {error}") from None
        return cls(header, *arrays)

    def _where(self, ids: Sequence[int], level: int) -> np.ndarray:
        t, l, h = self.header.shape
        if not 0 <= level < self.header.levels:
            raise InputError(f"level {level} is not in this store; it has levels 0 to {self.header.levels - 1}")
        chosen = np.asarray(ids, dtype=np.int64)
        if chosen.size and not 0 <= chosen.min() <= chosen.max() < t * l * h:
            raise InputError(f"this store has chunks 0 to {t * l * h - 1}, not {chosen.min()} to {chosen.max()}")
        return chosen * self.header.levels + level


def _shown(tokens: Sequence[int]) -> str:
    return ", ".join(map(str, tokens[:3])) + (" ..." if len(tokens) > 3 else "")


def _layout(header: StoreHeader) -> list[tuple[tuple[int, ...], str]]:
    """Shape and type of each array of a table."""
    per_entry = (*header.shape, header.levels)
    arrays: list[tuple[tuple[int, ...], str]] = [(per_entry, "<u8"), (per_entry, "<u4"), (per_entry, "<u4")]
    arrays.append(((sum(header.tokens),), "<i4"))
    return [*arrays, (header.shape, "<i4")] if header.has_active_blocks else arrays


class Store:
    """A store to read from; threads may share it. Close it, or use it as a context manager.

    Raises InputError when the file cannot be opened, DamagedStore when it is no complete store.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from None
        try:
            self.n_bytes = os.fstat(self._file.fileno()).st_size
            self.table = self._read_table()
            # The ETag of the store over HTTP: it differs when anything in the index does.
            self.tag = f'"{crc32(self.table):08x}"'
            self.index = Index.from_bytes(self.table)
            if not self.index.lengths.all():
                raise DamagedStore("its index has an empty chunk")
            ends = self.index.offsets + self.index.lengths
            if self.index.offsets.min() < len(_BEGIN) or ends.max() > self.n_bytes - _TRAILER.size - len(self.table):
                raise DamagedStore("its index leads out of it")
        except DamagedStore as error:
            self._file.close()
            raise DamagedStore(f"{path}: {error}") from None

    def read(self, ids: Sequence[int], level: int = 0) -> list[bytes]:
        """Encoded chunks by their flat indices into (t, l, h), checked. Raises InputError, DamagedChunk."""
        chunks = [self.bytes_at(offset, length) for offset, length in self.index.extents(ids, level)]
        for i, chunk, checksum in zip(ids, chunks, self.index.checksums_of(ids, level), strict=True):
            if crc32(chunk) != checksum:
                raise DamagedChunk(f"{self.path}: chunk {i} at level {level} was damaged in its file")
        return chunks

    def bytes_at(self, offset: int, length: int) -> bytes:
        """The bytes of a range of the file; fewer where the file ends."""
        return os.pread(self._file.fileno(), length, offset)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read_table(self) -> bytes:
        if self.bytes_at(0, len(_BEGIN)) != _BEGIN:
            raise DamagedStore(f"no store: it does not begin with {_BEGIN!r}")
        at = self.n_bytes - _TRAILER.size
        trailer = self.bytes_at(at, _TRAILER.size) if at >= len(_BEGIN) else b""
        if not trailer.endswith(_END):
            raise DamagedStore("half a store: its end is missing; copy or encode it again")
        length, checksum, _ = _TRAILER.unpack(trailer)
        if length > min(MOST_TABLE_BYTES, at - len(_BEGIN)):
            raise DamagedStore(f"no store: an index of {length:,} bytes")
        table = self.bytes_at(at - length, length)
        if crc32(table) != checksum:
            raise DamagedStore("a damaged store: the checksum of its index does not fit")
        return table


class StoreWriter:
    """Writes a store, chunk by chunk in any order, as a context manager. When the block ends without an error, the file
    is complete, on disk and under its name; after an error, no file is left.

    Raises InputError when the file cannot be written (no space, no permission), ValueError for a chunk that was put
    twice, or is missing at the end.
    """

    def __init__(
        self, path: Path, header: StoreHeader, token_ids: Sequence[int], active_blocks: np.ndarray | None = None
    ) -> None:
        if len(token_ids) != sum(header.tokens):
            raise ValueError(f"{len(token_ids)} token ids for {sum(header.tokens)} tokens")
        if (active_blocks is not None) != header.has_active_blocks:
            raise ValueError("the header must say whether there are active blocks")
        shape = (*header.shape, header.levels)
        self.path = path
        self._index = Index(
            header,
            np.zeros(shape, np.int64),
            np.zeros(shape, np.uint32),
            np.zeros(shape, np.uint32),
            np.asarray(token_ids, np.int32),
            None if active_blocks is None else np.asarray(active_blocks).reshape(header.shape),
        )
        self._unfinished: Path | None = None
        self._at = 0

    def put(self, t: int, l: int, h: int, data: bytes, level: int = 0) -> None:
        """Append one encoded chunk."""
        place = (t, l, h, level)
        if self._index.lengths[place]:
            raise ValueError(f"chunk {place} was put before")
        self._index.offsets[place], self._index.lengths[place] = self._at, len(data)
        self._index.checksums[place] = crc32(data)
        self._write(data)

    def __enter__(self) -> "StoreWriter":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            remove_unfinished(self.path.parent)
            handle, unfinished = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.", suffix=".part")
        except OSError as error:
            raise InputError(f"{self.path}: cannot be written: {error.strerror}") from None
        self._unfinished, self._file = Path(unfinished), os.fdopen(handle, "wb")
        self._write(_BEGIN)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._unfinished is not None
        try:
            if kind is None:
                self._finish()
        finally:
            self._unfinished.unlink(missing_ok=True)
            with suppress(OSError):  # bytes that are still in its buffer belong to the removed file
                self._file.close()

    def _finish(self) -> None:
        missing = int((self._index.lengths == 0).sum())
        if missing:
            raise ValueError(f"{missing} chunks of {self._index.lengths.size} were never put")
        table = self._index.to_bytes()
        self._write(table + _TRAILER.pack(len(table), crc32(table), _END))
        assert self._unfinished is not None
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            os.chmod(self._unfinished, 0o644)  # a temporary file is the owner's alone
            os.replace(self._unfinished, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._failed(error) from None

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise self._failed(error) from None
        self._at += len(data)

    def _failed(self, error: OSError) -> InputError:
        return InputError(f"{self.path}: cannot be written: {error.strerror}; nothing was kept of it")


def remove_unfinished(folder: Path) -> None:
    """Removes stores of a folder that processes which were killed have left unfinished, a long time ago: others may be
    at work. What does not begin as a store is somebody's own."""
    for path in folder.glob(".*.part"):
        with suppress(OSError):
            status = path.lstat()
            is_left = stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > _LEFT_S
            if is_left and _BEGIN.startswith(_first_bytes(path)):
                path.unlink()


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_BEGIN))

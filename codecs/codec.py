"""Keys and values of one KV chunk (t, l, h) as bytes, and back: what lies in a store and travels over the link.

The codecs are those whose sizes ``policies.codecs`` models, under the same names:

- ``huffman`` (SparKV III-B): 32 symbols, in uniform steps per channel, then a Huffman code made for the chunk.
  SparKV V speaks of a non-uniform quantisation instead and does not say which; III-B is what its figures are from.
- ``layerwise`` (SparKV V): as huffman, with steps twice as wide in deeper layers, for keys and for values from a depth
  of their own on.
- ``cachegen``: the same as huffman at five levels, each step sqrt(2) wider than the one before, then a range coder with
  frequencies of keys and values. Left out: CacheGen's differences between tokens, and its frequencies per channel,
  which it learns beforehand and does not send.
- ``kivi``: 2 bits in groups of 32, keys along tokens and values along channels; no entropy coding. Left out: the last
  tokens at full precision, which belong to decoding.
- ``fp16``: the numbers as they are.

Every chunk has a header with version, codec, level, shape, length and a checksum of everything else (CRC-32: it
detects accidents, not an adversary).
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from kvferry.codecs import huffman, range_coder
from kvferry.codecs.quantise import (
    GROUP,
    LARGEST,
    Quantised,
    check_range,
    from_groups,
    from_minimum,
    groups_along,
    per_channel,
    restore,
    scales,
)
from kvferry.codecs.sizes import FINE_KEYS, FINE_VALUES
from kvferry.specs.errors import InputError, KvferryError, pick
from kvferry.system.checksum import crc32

VERSION = 1
# Keys and values of one chunk: 256 MB once decoded. Some chunks of few bytes could otherwise fill the memory.
MOST_VALUES = 2**26
# What is encoded lies within +-32,000. With rounding and to spare, and still within 16-bit floats.
_MOST_DECODED = 2 * LARGEST
_MAGIC = b"KVFC"
# Magic, version, codec, level, nothing, tokens, head_dim, nothing, bytes of the payload, checksum.
_HEADER = struct.Struct("<4sBBBxIH2xII")
_CHECKSUM = struct.Struct("<I")
# Steps between the least and the greatest of a channel, by level: 31, each further level's sqrt(2) wider.
_STEPS = tuple(round(31 / 2 ** (level / 2)) for level in range(5))
# Nor narrower than a quarter of a standard deviation, at level 0: where policies.codecs has Gaussians end at the 4 bits
# of SparKV's Fig. 4. Even numbers would spend 5 bits otherwise.
_LEAST_STEP = 0.25

Buffer = bytes | memoryview
KeysValues = tuple[np.ndarray, np.ndarray]


class DamagedChunk(KvferryError):
    """Raised for bytes that are not an encoded chunk, or no longer an intact one."""


class Shape(NamedTuple):
    """A chunk's header."""

    codec: str
    level: int
    tokens: int
    head_dim: int

    @property
    def values(self) -> int:
        return 2 * self.tokens * self.head_dim


@dataclass(frozen=True)
class Codec:
    """How a payload is made of keys and values float32[tokens, head_dim] at a level and depth, and several of equal
    shape are read back into float32[chunks, tokens, 2 x head_dim]. `code` stands for its name in the bytes."""

    code: int
    levels: int
    encode: Callable[[np.ndarray, np.ndarray, int, float], bytes]
    decode: Callable[[Sequence[Buffer], Shape], np.ndarray]


def encode(codec: str, k: np.ndarray, v: np.ndarray, level: int = 0, depth: float = 0.0) -> bytes:
    """One chunk's keys and values, [tokens, head_dim] each of any float type, at a level (0: the best).

    `depth` is the share of the layers that lie below the chunk's own.

    Raises InputError for an unknown codec or level, and for numbers that are not finite or too large for 16 bits.
    """
    chosen = pick("codec", CODECS, codec)
    if not 0 <= level < chosen.levels:
        raise InputError(f"codec {codec} has levels 0 to {chosen.levels - 1}, not {level}")
    if k.ndim != 2 or k.shape != v.shape or not 0 < 2 * k.size <= MOST_VALUES or k.shape[1] >= 2**16:
        raise ValueError(f"keys {k.shape} and values {v.shape} are no chunk [tokens, head_dim]")
    try:
        payload = chosen.encode(np.asarray(k, np.float32), np.asarray(v, np.float32), level, depth)
    except ValueError as error:
        raise InputError(f"cannot be encoded: {error}") from None
    header = _HEADER.pack(_MAGIC, VERSION, chosen.code, level, *k.shape, len(payload), 0)
    return header[: -_CHECKSUM.size] + _CHECKSUM.pack(_checksum(header, payload)) + payload


def decode(data: Buffer, dtype: DTypeLike = np.float32) -> KeysValues:
    """(keys, values), [tokens, head_dim] each. Raises DamagedChunk."""
    return decode_many([data], dtype)[0]


def decode_many(chunks: Sequence[Buffer], dtype: DTypeLike = np.float32) -> list[KeysValues]:
    """Several chunks at once: faster than one after the other where their shapes agree. Raises DamagedChunk."""
    alike: dict[Shape, list[int]] = {}
    for i, data in enumerate(chunks):
        alike.setdefault(check(data), []).append(i)
    decoded: dict[int, KeysValues] = {}
    for shape, members in alike.items():
        payloads = [memoryview(chunks[i])[_HEADER.size :] for i in members]
        try:
            values = CODECS[shape.codec].decode(payloads, shape)
        except ValueError as error:
            raise DamagedChunk(f"a {shape.codec} chunk of {shape.tokens} tokens cannot be decoded: {error}") from None
        with np.errstate(over="ignore"):
            values = values.astype(dtype, copy=False)
        # Not a number fails every comparison, and is passed on by min and max.
        if not -_MOST_DECODED <= values.min() <= values.max() <= _MOST_DECODED:
            raise DamagedChunk(
                f"a {shape.codec} chunk of {shape.tokens} tokens holds numbers that are not finite, or beyond "
                f"+-{_MOST_DECODED:,.0f}"
            )
        for i, both in zip(members, values, strict=True):
            decoded[i] = both[:, : shape.head_dim], both[:, shape.head_dim :]
    return [decoded[i] for i in range(len(chunks))]


def check(data: Buffer) -> Shape:
    """A chunk's header, after its checksum was verified. Raises DamagedChunk."""
    shape = shape_of(data)
    if len(data) != _length(data):
        raise DamagedChunk(f"an encoded chunk of {_length(data):,} bytes, of which {len(data):,} are there")
    if _CHECKSUM.unpack_from(data, _HEADER.size - _CHECKSUM.size)[0] != _checksum(data, data[_HEADER.size :]):
        raise DamagedChunk("an encoded chunk whose checksum does not fit: it was damaged on its way or in its file")
    return shape


def split(data: Buffer) -> list[memoryview]:
    """Cuts bytes into the chunks that follow each other in them, by their headers. Raises DamagedChunk."""
    rest, chunks = memoryview(data), []
    while rest:
        shape_of(rest)
        length = _length(rest)
        if length > len(rest):
            raise DamagedChunk(f"an encoded chunk of {length:,} bytes, of which {len(rest):,} are there")
        chunks.append(rest[:length])
        rest = rest[length:]
    return chunks


def shape_of(data: Buffer) -> Shape:
    """The header alone, nothing else verified. Raises DamagedChunk if its values are impossible."""
    if len(data) < _HEADER.size:
        raise DamagedChunk(f"{len(data)} bytes are no encoded chunk: its header alone takes {_HEADER.size}")
    magic, version, code, level, tokens, head_dim, _, _ = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise DamagedChunk(f"no encoded chunk: it begins with {bytes(magic)!r} instead of {_MAGIC!r}")
    if version != VERSION:
        raise DamagedChunk(f"an encoded chunk of version {version}; this KVFerry reads version {VERSION}")
    for name, codec in CODECS.items():
        shape = Shape(name, level, tokens, head_dim)
        if codec.code == code and level < codec.levels and 0 < shape.values <= MOST_VALUES:
            return shape
    raise DamagedChunk(f"an encoded chunk of codec {code}, level {level}, {tokens} x {head_dim}: there is none")


def _length(data: Buffer) -> int:
    return int(_HEADER.size + _HEADER.unpack_from(data)[-2])


def _checksum(header: Buffer, payload: Buffer) -> int:
    return crc32(payload, crc32(header[: _HEADER.size - _CHECKSUM.size]))


# --- per channel: huffman, cachegen --------------------------------------------------------------------------------


def _quantised(k: np.ndarray, v: np.ndarray, level: int) -> tuple[np.ndarray, bytes]:
    symbols, offset, step = per_channel(np.concatenate([k, v], axis=1), _STEPS[level], _LEAST_STEP * 2 ** (level / 2))
    return symbols, scales(offset, step)


def _restored(symbols: Sequence[np.ndarray] | np.ndarray, of_channels: Sequence[Buffer], shape: Shape) -> np.ndarray:
    values = np.empty((len(symbols), shape.tokens, 2 * shape.head_dim), np.float32)
    for of_chunk, its_symbols, its_scales in zip(values, symbols, of_channels, strict=True):
        restore(its_symbols.reshape(of_chunk.shape), its_scales, of_chunk)
    return values


def _split(payloads: Sequence[Buffer], scale_bytes: int) -> tuple[list[Buffer], list[Buffer]]:
    if any(len(payload) < scale_bytes for payload in payloads):
        raise ValueError("no room for its scales")
    return [payload[:scale_bytes] for payload in payloads], [payload[scale_bytes:] for payload in payloads]


def _encode_huffman(k: np.ndarray, v: np.ndarray, level: int, depth: float) -> bytes:
    symbols, of_channels = _quantised(k, v, level)
    return of_channels + huffman.encode(symbols.ravel())


def _decode_huffman(payloads: Sequence[Buffer], shape: Shape) -> np.ndarray:
    of_channels, coded = _split(payloads, 8 * shape.head_dim)
    return _restored(huffman.decode(coded, shape.values), of_channels, shape)


def _encode_layerwise(k: np.ndarray, v: np.ndarray, level: int, depth: float) -> bytes:
    parts = [_fine_or_coarse(values, depth < fine) for values, fine in ((k, FINE_KEYS), (v, FINE_VALUES))]
    symbols, offset, step = (np.concatenate(of_both, axis=-1) for of_both in zip(*parts, strict=True))
    return scales(offset, step) + huffman.encode(symbols.ravel())


def _fine_or_coarse(values: np.ndarray, fine: bool) -> Quantised:
    if fine:
        return per_channel(values, _STEPS[0], _LEAST_STEP)
    # A step twice as wide: half as many symbols. Moved up by a quarter of 32, their middle is that of the fine ones:
    # keys and values share one code.
    symbols, offset, step = per_channel(values, _STEPS[2], 2 * _LEAST_STEP)
    moved = (_STEPS[0] + 1) // 4
    return symbols + moved, offset - moved * step, step


def _encode_cachegen(k: np.ndarray, v: np.ndarray, level: int, depth: float) -> bytes:
    symbols, of_channels = _quantised(k, v, level)
    keys, values = np.split(symbols, 2, axis=1)
    return of_channels + range_coder.encode([keys.ravel(), values.ravel()], _STEPS[level] + 1)


def _decode_cachegen(payloads: Sequence[Buffer], shape: Shape) -> np.ndarray:
    of_channels, coded = _split(payloads, 8 * shape.head_dim)
    half = shape.values // 2
    symbols = []
    for payload in coded:
        parts = range_coder.decode(payload, [half, half], _STEPS[shape.level] + 1)
        symbols.append(np.concatenate([part.reshape(shape.tokens, shape.head_dim) for part in parts], axis=1))
    return _restored(symbols, of_channels, shape)


# --- kivi, fp16 ----------------------------------------------------------------------------------------------------


def _encode_kivi(k: np.ndarray, v: np.ndarray, level: int, depth: float) -> bytes:
    parts = []
    for values, axis in ((k, 0), (v, 1)):
        symbols, offset, step = from_minimum(groups_along(values, axis), 3)
        quarters = symbols.reshape(GROUP // 4, 4, -1)
        packed = quarters[:, 0] | quarters[:, 1] << 2 | quarters[:, 2] << 4 | quarters[:, 3] << 6
        parts += [scales(offset, step), packed.tobytes()]
    return b"".join(parts)


def _decode_kivi(payloads: Sequence[Buffer], shape: Shape) -> np.ndarray:
    one = (shape.tokens, shape.head_dim)
    halves = []
    for axis in (0, 1):
        groups = one[1 - axis] * -(-one[axis] // GROUP)
        n_bytes = groups * (4 + GROUP // 4)
        mine, payloads = _split(payloads, n_bytes)
        halves.append(np.stack([_kivi_part(part, groups, one, axis) for part in mine]))
    if any(len(rest) for rest in payloads):
        raise ValueError("bytes are left over")
    return np.concatenate(halves, axis=2)


def _kivi_part(part: Buffer, groups: int, shape: tuple[int, int], axis: int) -> np.ndarray:
    packed = np.frombuffer(part, np.uint8, offset=4 * groups).reshape(GROUP // 4, 1, groups)
    symbols = packed >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    return from_groups(restore(symbols.reshape(GROUP, groups), part[: 4 * groups]), shape, axis)


def _encode_fp16(k: np.ndarray, v: np.ndarray, level: int, depth: float) -> bytes:
    both = np.concatenate([k, v], axis=1)
    check_range(both)
    return both.astype("<f2").tobytes()


def _decode_fp16(payloads: Sequence[Buffer], shape: Shape) -> np.ndarray:
    if any(len(payload) != 2 * shape.values for payload in payloads):
        raise ValueError("not 2 bytes for each number")
    one = (shape.tokens, 2 * shape.head_dim)
    return np.stack([np.frombuffer(payload, "<f2").reshape(one) for payload in payloads])


CODECS: dict[str, Codec] = {
    "huffman": Codec(1, 1, _encode_huffman, _decode_huffman),
    "cachegen": Codec(2, len(_STEPS), _encode_cachegen, _decode_cachegen),
    "kivi": Codec(3, 1, _encode_kivi, _decode_kivi),
    "fp16": Codec(4, 1, _encode_fp16, _decode_fp16),
    "layerwise": Codec(5, 1, _encode_layerwise, _decode_huffman),
}

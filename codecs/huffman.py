"""A Huffman code for the 32 symbols of 5-bit quantisation, decoded in numpy at the pace of compiled code.

The symbols are dealt to lanes of some 256, each a bit string of its own, and all lanes decode in step: one table
look-up per symbol of every lane. The price is one or two bytes per lane, 1 % of the size. Codes are canonical and
no longer than 12 bits, which costs nothing measurable with 32 symbols.

Payload: 32 code lengths of 4 bits; u16 and u8, the shortest lane's bits and the width w of what follows; u8 or
u16 per lane, its bits beyond the shortest's; the lanes' bits, one after the other.
"""

import struct
from collections.abc import Sequence

import numpy as np

SYMBOLS = 32
MOST_BITS = 12
LANE_SYMBOLS = 256
_LANES = struct.Struct("<HB")
# A look-up reads 24 bits at a byte; up to 7 of them may have been used before.
_MARGIN_BYTES = 3

Buffer = bytes | memoryview


def encode(symbols: np.ndarray) -> bytes:
    """A payload that holds the symbols uint8[n], each below 32, n at least 1, with a code made for them."""
    lengths = code_lengths(np.bincount(symbols, minlength=SYMBOLS).tolist())
    bits, codes = _canonical(lengths)
    lanes, steps = _layout(symbols.size)
    padding = np.full(lanes * steps - symbols.size, np.argmin(np.where(lengths > 0, lengths, SYMBOLS)), symbols.dtype)
    dealt = np.concatenate([symbols, padding]).reshape(steps, lanes).T.ravel()
    widths = bits[dealt]
    ends = np.cumsum(widths)
    lane_bits = np.diff(ends[steps - 1 :: steps], prepend=0)
    excess = lane_bits - lane_bits.min()
    width = 1 if excess.max() < 256 else 2
    return b"".join(
        (
            (lengths[0::2] | lengths[1::2] << 4).astype(np.uint8).tobytes(),
            _LANES.pack(int(lane_bits.min()), width),
            excess.astype(f"<u{width}").tobytes(),
            _packed(codes[dealt], widths, ends),
        )
    )


def decode(payloads: Sequence[Buffer], n: int) -> np.ndarray:
    """uint8[payloads, n]: the symbols of payloads that hold n each, decoded together (more lanes, faster).

    Raises ValueError for a payload that `encode` cannot have made.
    """
    lanes, steps = _layout(n)
    parsed = [_parse(payload, lanes) for payload in payloads]
    table = np.concatenate([part[0] for part in parsed])
    windows = np.concatenate([part[2] for part in parsed])
    begins = np.cumsum([0, *(8 * part[2].size for part in parsed[:-1])])
    bounds = [part[1] + begin for part, begin in zip(parsed, begins, strict=True)]
    position = np.concatenate([bound[:-1] for bound in bounds])
    own_table = np.repeat(np.arange(len(parsed)) << MOST_BITS, lanes)
    entries = np.empty((steps, position.size), np.uint8)
    try:
        for step in range(steps):
            window = windows[position >> 3] >> (24 - MOST_BITS - (position & 7))
            entry = table[(window & ((1 << MOST_BITS) - 1)) + own_table]
            entries[step] = entry  # its low byte: the symbol, and bits of the length above it
            position += entry >> 5
    except IndexError:
        raise ValueError("a lane runs beyond the payload") from None
    if not np.array_equal(position, np.concatenate([bound[1:] for bound in bounds])):
        raise ValueError("a lane does not end where it should")
    entries &= SYMBOLS - 1
    by_payload = entries.reshape(steps, len(parsed), lanes).transpose(1, 0, 2)
    return by_payload.reshape(len(parsed), steps * lanes)[:, :n]


def code_lengths(counts: Sequence[int]) -> np.ndarray:
    """int64[symbols]: the lengths of the best code of at most 12 bits; 0 where a symbol does not occur, 1 where it
    is the only one. By package-merge (Larmore and Hirschberg 1990)."""
    lengths = np.zeros(len(counts), np.int64)
    coins = sorted((count, (symbol,)) for symbol, count in enumerate(counts) if count)
    if len(coins) == 1:
        lengths[coins[0][1][0]] = 1
        return lengths
    packages: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(MOST_BITS):
        row = sorted([*coins, *packages])
        packages = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(row[0::2], row[1::2], strict=False)]
    for _, symbols in packages[: len(coins) - 1]:
        for symbol in symbols:
            lengths[symbol] += 1
    return lengths


def _layout(n: int) -> tuple[int, int]:
    """(lanes, symbols of each), for n symbols."""
    lanes = -(-n // LANE_SYMBOLS)
    return lanes, -(-n // lanes)


def _canonical(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(bits spent on each symbol, its code). The only symbol there is takes no bits."""
    codes = np.zeros(SYMBOLS, np.uint64)
    if np.count_nonzero(lengths) == 1:
        return np.zeros(SYMBOLS, np.int64), codes
    code = 0
    for length, symbol in _in_code_order(lengths):
        codes[symbol] = code >> (MOST_BITS - length)
        code += 1 << (MOST_BITS - length)
    return lengths, codes


def _in_code_order(lengths: np.ndarray) -> list[tuple[int, int]]:
    return sorted((length, symbol) for symbol, length in enumerate(lengths.tolist()) if length)


def _packed(codes: np.ndarray, widths: np.ndarray, ends: np.ndarray) -> bytes:
    """The codes as one bit string."""
    total = int(ends[-1])
    if total == 0:
        return b""
    begins = ends - widths
    # Each in 64 bits; the upper 32 are the word that it begins in: no two touch the same bit.
    aligned = codes << (64 - widths - (begins & 31)).astype(np.uint64)
    # Codes are short: one begins in every word, but for a last one that the last code runs into.
    begun = np.bitwise_or.reduceat(aligned, np.searchsorted(begins, np.arange(0, begins[-1] + 1, 32)))
    words = np.append(begun >> np.uint64(32), np.uint64(0))
    words[1:] |= begun & np.uint64(2**32 - 1)
    return words.astype(">u4").tobytes()[: -(-total // 8)]


def _parse(payload: Buffer, lanes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(table by the next 12 bits: symbol and bits << 5; bit positions where lanes begin and the last one ends; the 24
    bits from each byte on). Small types: all of it should stay in the cache."""
    table_bytes = SYMBOLS // 2
    if len(payload) < table_bytes + _LANES.size:
        raise ValueError("no room for the code and its lanes")
    pairs = np.frombuffer(payload, np.uint8, table_bytes)
    lengths = np.stack([pairs & 15, pairs >> 4], axis=1).ravel().astype(np.int64)
    shortest, width = _LANES.unpack_from(payload, table_bytes)
    first = table_bytes + _LANES.size + width * lanes
    if width not in (1, 2) or len(payload) < first:
        raise ValueError("no room for its lanes")
    excess = np.frombuffer(payload, f"<u{width}", lanes, table_bytes + _LANES.size)
    bounds = np.concatenate([[0], np.cumsum(excess.astype(np.int64) + shortest)])
    if len(payload) - first != -(-int(bounds[-1]) // 8):
        raise ValueError(f"{bounds[-1]} bits should be there, {8 * (len(payload) - first)} are")
    data = np.zeros(len(payload) - first + _MARGIN_BYTES, np.uint32)
    data[:-_MARGIN_BYTES] = np.frombuffer(payload, np.uint8, offset=first)
    return _table(lengths), bounds, data[:-2] << 16 | data[1:-1] << 8 | data[2:]


def _table(lengths: np.ndarray) -> np.ndarray:
    if np.count_nonzero(lengths) == 1:
        return np.full(1 << MOST_BITS, np.argmax(lengths), np.uint16)
    order = _in_code_order(lengths)
    if lengths.max() > MOST_BITS or sum(1 << (MOST_BITS - length) for length, _ in order) != 1 << MOST_BITS:
        raise ValueError("its lengths are no code")
    entries = np.array([symbol | length << 5 for length, symbol in order], np.uint16)
    return np.repeat(entries, [1 << (MOST_BITS - length) for length, _ in order])

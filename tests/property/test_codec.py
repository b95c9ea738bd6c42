"""What holds for any chunk: it comes back within half a step, or it is refused; nothing in between."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kvferry.codecs import huffman
from kvferry.codecs.codec import CODECS, DamagedChunk, decode, encode
from kvferry.codecs.quantise import per_channel, restore, scales

try:
    import constriction  # noqa: F401

    NAMES = list(CODECS)
except ImportError:
    NAMES = [name for name in CODECS if name != "cachegen"]

# Few distinct numbers, many alike, extremes: what floats alone seldom are.
numbers = st.one_of(
    st.floats(-32_000, 32_000, width=32), st.sampled_from([0.0, 1.0, 32_000.0, -32_000.0, 6e-8, 1e-30, -0.0])
)
shapes = st.tuples(st.integers(1, 70), st.integers(1, 40))
chunks = shapes.flatmap(lambda shape: arrays(np.float32, (2, *shape), elements=numbers, fill=numbers))


@given(chunks, st.sampled_from([3, 8, 31]), st.sampled_from([0.0, 0.25, 1.0]))
def test_quantising_is_off_by_half_a_step_and_the_offsets_rounding(both: np.ndarray, steps: int, least: float) -> None:
    values = both[0].astype(float)
    symbols, offset, step = per_channel(both[0], steps, least)
    assert symbols.max() <= steps
    # Steps are as wide as they must be, or the next float16 above that.
    wanted = np.maximum(np.ptp(values, axis=0) / steps, least * values.std(axis=0))
    largest = np.abs(values).max(axis=0)
    assert (step <= wanted * (1 + 2.0**-10) + 1e-6 * largest + 6e-8).all()
    error = np.abs(restore(symbols, scales(offset, step)) - values)
    assert (error <= step * 0.5001 + np.abs(offset.astype(float)) * 2.0**-11 + 1e-6 * np.abs(values) + 6e-8).all()


@given(st.lists(st.integers(0, 31), min_size=1, max_size=2000), st.integers(1, 4))
def test_huffman_returns_every_symbol(symbols: list[int], copies: int) -> None:
    dealt = np.array(symbols, np.uint8)
    assert (huffman.decode([huffman.encode(dealt)] * copies, dealt.size) == dealt).all()


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=32).filter(any))
def test_code_lengths_fill_the_code_and_beat_fixed_ones(counts: list[int]) -> None:
    lengths = huffman.code_lengths(counts)
    assert ((lengths > 0) == (np.array(counts) > 0)).all()
    assert lengths.max() <= huffman.MOST_BITS
    if np.count_nonzero(lengths) > 1:
        assert sum(2.0 ** -lengths[lengths > 0]) == 1
        fixed = np.ceil(np.log2(np.count_nonzero(counts)))
        assert (lengths * counts).sum() <= fixed * sum(counts)


@settings(deadline=None)
@given(chunks, st.sampled_from(NAMES), st.integers(0, 4))
def test_any_chunk_comes_back_whole(both: np.ndarray, name: str, level: int) -> None:
    data = encode(name, both[0], both[1], level % CODECS[name].levels)
    for before, after in zip(both, decode(data), strict=True):
        assert after.shape == before.shape
        # Coarse: between the least and the greatest there is, give or take half of the coarsest step.
        slack = 1e-6 + 2.0**-9 * np.abs(before).max() + np.ptp(before) / 2
        assert after.min() >= before.min() - slack and after.max() <= before.max() + slack


@given(st.sampled_from(NAMES), st.integers(0, 10**6), st.binary(min_size=1, max_size=8), st.booleans())
def test_bytes_of_another_making_are_refused_or_read_and_nothing_else(
    name: str, at: int, foreign: bytes, cut: bool
) -> None:
    """Even with a length and a checksum that fit: no exception but ours, no array of another shape."""
    rng = np.random.default_rng(1)
    data = bytearray(encode(name, *rng.standard_normal((2, 40, 8))))
    at = 8 + at % (len(data) - 8)
    data[at : at + len(foreign)] = foreign[: len(data) - at]
    if cut:
        del data[max(24, len(data) - at) :]
    data[16:20] = struct.pack("<I", len(data) - 24)
    data[20:24] = struct.pack("<I", zlib.crc32(data[24:], zlib.crc32(data[:20])))
    try:
        k, v = decode(bytes(data))
    except DamagedChunk:
        return
    assert k.shape == v.shape == struct.unpack_from("<IH", data, 8)


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedChunk):
        decode(data)

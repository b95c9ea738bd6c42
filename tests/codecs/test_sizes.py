"""Sizes of encoded chunks against arithmetic on paper."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.codecs.sizes import CODECS, cachegen, fp16, huffman, kivi, layerwise

# One chunk of 1,024 tokens and head_dim 128: keys and values.
VALUES = 1024 * 2 * 128


def chunk(bits: float) -> np.ndarray:
    return np.array([[[bits]]])


def test_fixed_rates_need_no_content() -> None:
    # 262,144 numbers of 2 bytes; of 2 bits, plus 32 bits for every 32 of them: 3 bits.
    assert fp16(chunk(1.7), VALUES).encoded_bytes.item() == 524288
    assert kivi(chunk(1.7), VALUES).encoded_bytes.item() == 262144 * 3 / 8


def test_a_constant_chunk_costs_its_table_and_scales() -> None:
    # 32 code lengths of 5 bits are 20 bytes; 256 channels x 4 bytes of scale and offset.
    assert huffman(chunk(0.0), VALUES).encoded_bytes.item() == 20 + 1024
    # The range coder's 4 bytes instead of a table.
    assert cachegen(chunk(0.0), VALUES).encoded_bytes.item() == 4 + 1024


def test_huffman_spends_at_least_a_bit_on_what_varies_at_all() -> None:
    # 262,144 numbers x 1 bit = 32,768 bytes, and little more: one number in 25 is off the middle level.
    size = huffman(chunk(0.3), VALUES).encoded_bytes.item() - 20 - 1024
    assert 32768 < size < 1.1 * 32768


def test_huffman_is_within_a_few_percent_of_a_high_entropy() -> None:
    size = huffman(chunk(4.0), VALUES).encoded_bytes.item() - 20 - 1024
    assert 1.0 < size / (VALUES * 4 / 8) < 1.03


def test_half_a_bit_less_per_level_where_steps_are_small() -> None:
    # A step sqrt(2) wider costs log2(sqrt 2) bits: 4.0, 3.5, 3.0, 2.5, 2.0 over 4.0; scales: 0.03 of 4.
    scale = cachegen(chunk(4.0), VALUES).level_scale
    assert scale == pytest.approx((1.0, 0.875, 0.75, 0.625, 0.5), abs=0.02)


def test_deeper_layers_keep_half_the_levels() -> None:
    # 32 layers: keys and values of the first 2 keep 32 levels, keys alone of the next 8, none of the others.
    sizes = layerwise(np.full((1, 32, 1), 4.0), VALUES).encoded_bytes.ravel()
    fine, coarse = (huffman(chunk(bits), VALUES).encoded_bytes.item() for bits in (4.0, 3.0))
    assert sizes[[0, 1]] == pytest.approx(fine)
    assert sizes[[2, 9]] == pytest.approx((fine + coarse) / 2)
    assert sizes[[10, 31]] == pytest.approx(coarse)


def test_values_may_differ_by_token_chunk() -> None:
    sizes = fp16(np.ones((2, 3, 4)), np.array([100, 10])).encoded_bytes
    assert sizes.shape == (2, 3, 4)
    assert (sizes[0] == 200).all()
    assert (sizes[1] == 20).all()


@given(st.lists(st.floats(0, 4), min_size=2, max_size=30))
def test_more_entropy_never_weighs_less(bits: list[float]) -> None:
    entropy = np.sort(np.array(bits))[:, None, None]
    for codec in CODECS.values():
        encoding = codec(entropy, VALUES)
        assert (np.diff(encoding.encoded_bytes[:, 0, 0]) >= 0).all()
        assert encoding.level_scale[0] == 1.0
        assert (np.diff(encoding.level_scale) <= 0).all()
        assert min(encoding.level_scale) > 0

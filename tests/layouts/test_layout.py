"""Where KV blocks lie in the file, by hand and for all sizes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.layouts.layout import Layout
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.room import Room
from kvferry.specs.model import ModelSpec


def test_layout_by_hand() -> None:
    # Per layer 2 sequences x 1 head x 5 blocks, each 100 B in 128 B.
    layout = Layout(layers=3, sequences=2, blocks=5, block_bytes=100, alignment_bytes=64)
    assert layout.stride_bytes == 128
    assert layout.file_bytes == 3 * 2 * 5 * 128
    offsets, lengths = layout.ranges(1, np.array([0, 1]), np.array([4, 0]))
    assert offsets.tolist() == [(10 + 4) * 128, (10 + 5) * 128]
    assert lengths.tolist() == [128, 128]
    offsets, lengths = layout.stretches(2, 3)
    assert offsets.tolist() == [20 * 128, 25 * 128]
    assert lengths.tolist() == [384, 384]
    offsets, lengths = layout.column(3, np.arange(3))
    assert offsets.tolist() == [(5 * row + 3) * 128 for row in range(6)]
    assert lengths.tolist() == [128] * 6


@given(
    layers=st.integers(1, 4),
    sequences=st.integers(1, 3),
    heads=st.integers(1, 3),
    blocks=st.integers(1, 6),
    block_bytes=st.integers(1, 5000),
    alignment=st.sampled_from([1, 512, 4096]),
)
def test_blocks_lie_apart_on_whole_blocks_and_within_the_file(
    layers: int, sequences: int, heads: int, blocks: int, block_bytes: int, alignment: int
) -> None:
    layout = Layout(
        layers=layers,
        sequences=sequences,
        blocks=blocks,
        block_bytes=block_bytes,
        heads=heads,
        alignment_bytes=alignment,
    )
    row, block = (part.ravel() for part in np.indices((sequences * heads, blocks)))
    offsets = np.concatenate([layout.ranges(layer, row, block)[0] for layer in range(layers)])
    columns = np.concatenate([layout.column(block, np.arange(layers))[0] for block in range(blocks)])
    assert sorted(columns) == sorted(offsets)
    assert (offsets % alignment == 0).all()
    assert (np.diff(np.sort(offsets)) >= block_bytes).all()
    assert offsets.min() == 0
    assert offsets.max() + layout.stride_bytes == layout.file_bytes


def test_misaligned_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="block size 1000 B is no power of two"):
        Layout(layers=1, sequences=1, blocks=1, block_bytes=1, alignment_bytes=1000)


def test_packed_blocks_lie_one_right_behind_the_other() -> None:
    """Tokens of one of two heads, 8 numbers of 2 bytes each for key and value: 32 B, in storage blocks of 4 KiB."""
    model = ModelSpec(
        name="m", layers=1, hidden=16, query_heads=2, kv_heads=2, head_dim=8, ffn=1, vocabulary=1, source="made up"
    )
    room = Room(model=model, block_tokens=1, context=100, output=28, budget_bytes=0.0)
    apart, packed = (TokenGroups(group_tokens=1, packed=one).layout(room, 1, 2, 4096) for one in (False, True))
    assert (apart.stride_bytes, packed.stride_bytes) == (4096, 32)
    assert isinstance(packed, Layout)
    offsets, lengths = packed.ranges(0, np.array([0, 1]), np.array([3, 0]))
    assert (offsets.tolist(), lengths.tolist()) == ([96, 128 * 32], [32, 32])

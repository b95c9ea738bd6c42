"""What decoding with KV on storage decides: layout, buffers, memory; by hand, and against plain code."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.policies.decode.grouping import Grouping, KvShape, buffer_bytes, memory_bytes, metadata_bytes
from kvferry.policies.decode.layout import Layout
from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.rolling_buffer import RollingBuffer

# Two layers, two heads of four numbers: 8 numbers per key, 32 B per entry.
SHAPE = KvShape(layers=2, kv_heads=2, head_dim=4)


def test_fifo_by_hand() -> None:
    buffer = ReuseBuffer(sequences=1, units=10, slots=4)
    first = buffer.look_up(np.array([[3, 7]]))
    assert first.slots.tolist() == [[0, 1]]
    assert first.missing.tolist() == [[True, True]]
    # 7 is there; 1 and 2 take the free slots.
    second = buffer.look_up(np.array([[7, 1, 2]]))
    assert second.slots.tolist() == [[1, 2, 3]]
    assert second.missing.tolist() == [[False, True, True]]
    assert second.hits == 1
    # 3 came first and goes first; 7 is next in turn but needed now, so 1 goes.
    third = buffer.look_up(np.array([[5, 7, 6]]))
    assert third.slots.tolist() == [[0, 1, 2]]
    assert third.missing.tolist() == [[True, False, True]]
    assert [buffer.unit_in(0, slot) for slot in range(4)] == [5, 7, 6, 2]
    assert buffer.slot_of(0, 3) is None
    assert buffer.slot_of(0, 6) == 2
    # The turn goes on behind the last slot that was filled.
    assert buffer.look_up(np.array([[9]])).slots.tolist() == [[3]]


def test_sequences_have_slots_of_their_own() -> None:
    buffer = ReuseBuffer(sequences=2, units=5, slots=2)
    buffer.look_up(np.array([[0, 1], [1, 2]]))
    found = buffer.look_up(np.array([[1, 3], [0, 2]]))
    assert found.missing.tolist() == [[False, True], [True, False]]
    assert buffer.unit_in(0, 0) == 3
    assert buffer.unit_in(1, 0) == 0
    buffer.check()


def test_what_could_not_be_read_is_forgotten() -> None:
    buffer = ReuseBuffer(sequences=1, units=5, slots=3)
    buffer.look_up(np.array([[0, 1]]))
    buffer.forget(np.array([[1, 4]]))
    buffer.check()
    assert buffer.look_up(np.array([[0, 1]])).missing.tolist() == [[False, True]]


def test_a_selection_larger_than_the_buffer_is_refused() -> None:
    with pytest.raises(ValueError, match="3 units are selected, 2 slots cannot hold them"):
        ReuseBuffer(1, 5, 2).look_up(np.array([[0, 1, 2]]))
    with pytest.raises(ValueError, match="a slot at least"):
        ReuseBuffer(1, 5, 0)


class PlainBuffer:
    """One sequence's slots, one by one."""

    def __init__(self, slots: int) -> None:
        self.held: list[int | None] = [None] * slots
        self.turn = 0

    def look_up(self, wanted: list[int]) -> list[bool]:
        missing = [unit not in self.held for unit in wanted]
        pinned = {unit for unit, absent in zip(wanted, missing, strict=True) if not absent}
        for unit, absent in zip(wanted, missing, strict=True):
            if absent:
                while self.held[self.turn % len(self.held)] in pinned:
                    self.turn += 1
                self.held[self.turn % len(self.held)] = unit
                self.turn += 1
        return missing


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_buffer_is_the_plain_one(data: st.DataObject) -> None:
    sequences = data.draw(st.integers(1, 3), "sequences")
    slots = data.draw(st.integers(1, 40), "slots")
    k = data.draw(st.integers(1, slots), "k")
    units = data.draw(st.integers(k, 60), "units")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
    buffer, plain = ReuseBuffer(sequences, units, slots), [PlainBuffer(slots) for _ in range(sequences)]
    for _ in range(12):
        ids = np.stack([rng.permutation(units)[:k] for _ in range(sequences)])
        found = buffer.look_up(ids)
        for row, one in enumerate(plain):
            assert one.look_up(ids[row].tolist()) == found.missing[row].tolist()
            assert [buffer.unit_in(row, slot) for slot in range(slots)] == one.held
        # Everything that was asked for is where it is said to be.
        at = [[buffer.unit_in(row, int(slot)) for slot in found.slots[row]] for row in range(sequences)]
        assert at == ids.tolist()
    buffer.check()


def test_layout_by_hand() -> None:
    # Per layer 2 sequences x 1 head x 5 units, each 100 B in 128 B.
    layout = Layout(layers=3, sequences=2, units=5, unit_bytes=100, block_bytes=64)
    assert layout.stride_bytes == 128
    assert layout.file_bytes == 3 * 2 * 5 * 128
    offsets, lengths = layout.ranges(1, np.array([0, 1]), np.array([4, 0]))
    assert offsets.tolist() == [(10 + 4) * 128, (10 + 5) * 128]
    assert lengths.tolist() == [128, 128]
    offsets, lengths = layout.stretches(2, 3, first=1)
    assert offsets.tolist() == [(20 + 1) * 128, (25 + 1) * 128]
    assert lengths.tolist() == [384, 384]


@settings(max_examples=50, deadline=None)
@given(
    layers=st.integers(1, 4),
    sequences=st.integers(1, 3),
    heads=st.integers(1, 3),
    units=st.integers(1, 6),
    unit_bytes=st.integers(1, 5000),
    block=st.sampled_from([1, 512, 4096]),
)
def test_units_lie_apart_on_whole_blocks_and_within_the_file(
    layers: int, sequences: int, heads: int, units: int, unit_bytes: int, block: int
) -> None:
    layout = Layout(
        layers=layers, sequences=sequences, units=units, unit_bytes=unit_bytes, heads=heads, block_bytes=block
    )
    sequence, head, unit = (part.ravel() for part in np.indices((sequences, heads, units)))
    offsets = np.concatenate([layout.ranges(layer, sequence, unit, head)[0] for layer in range(layers)])
    assert (offsets % block == 0).all()
    assert (np.diff(np.sort(offsets)) >= unit_bytes).all()
    assert offsets.min() == 0
    assert offsets.max() + layout.stride_bytes == layout.file_bytes


def test_misaligned_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="block size 1000 B is no power of two"):
        Layout(layers=1, sequences=1, units=1, unit_bytes=1, block_bytes=1000)


def test_rolling_buffer_by_hand() -> None:
    # 10 tokens in groups of 4: groups 0 and 1 are on storage, two tokens wait.
    rolling = RollingBuffer(context_tokens=10, group_tokens=4)
    assert (rolling.first_unit, rolling.tokens) == (2, 2)
    assert [rolling.append() for _ in range(6)] == [None, 2, None, None, None, 3]
    assert rolling.tokens == 0
    one = RollingBuffer(context_tokens=3, group_tokens=1)
    assert [one.append(), one.append()] == [3, 4]


def test_memory_by_hand() -> None:
    # 100 tokens x 2 layers x rank 4 x 2 B; 2 layers x (6 slots + a rolling buffer) x 4 tokens x 32 B.
    grouping = Grouping(group_tokens=4, compression=2, groups=3, slots=6)
    assert metadata_bytes(2, 100, SHAPE) == 1600
    assert buffer_bytes(grouping, SHAPE) == 2 * 7 * 128
    assert memory_bytes(grouping, 100, SHAPE) == 1600 + 1792
    # Without reuse two preload buffers of 3 groups serve both layers.
    alone = Grouping(group_tokens=4, compression=2, groups=3)
    assert buffer_bytes(alone, SHAPE) == (2 * 3 + 2) * 128


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"group_tokens": 0}, "1 group of 1 token"),
        ({"compression": 0.5}, "compression is 1 or more"),
        ({"slots": 2}, "2 slots cannot hold the 3 groups"),
    ],
)
def test_impossible_groupings(wrong: dict[str, float], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Grouping(**{"group_tokens": 4, "compression": 2, "groups": 3, **wrong})

"""What stays in memory, in which slots: by hand, against plain code, and that nothing is lost."""

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model

from kvferry.policies.decode.residency import AllThere, DoubleBuffer, Reuse
from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows


def rows(*ids: list[int]) -> BlockRows:
    """Rows of any lengths."""
    starts = np.cumsum([0, *(len(row) for row in ids)])
    return BlockRows(np.array([one for row in ids for one in row], np.int64), starts)


def test_fifo_by_hand() -> None:
    buffer = ReuseBuffer(rows=1, blocks=10, slots=4)
    first = buffer.look_up(BlockRows(np.array([[3, 7]])))
    assert first.slots.tolist() == [[0, 1]]
    assert first.missing.tolist() == [[True, True]]
    # 7 is there; 1 and 2 take the free slots.
    second = buffer.look_up(BlockRows(np.array([[7, 1, 2]])))
    assert second.slots.tolist() == [[1, 2, 3]]
    assert second.missing.tolist() == [[False, True, True]]
    assert second.hits == 1
    # 3 came first and goes first; 7 is next in turn but needed now, so 1 goes.
    third = buffer.look_up(BlockRows(np.array([[5, 7, 6]])))
    assert third.slots.tolist() == [[0, 1, 2]]
    assert third.missing.tolist() == [[True, False, True]]
    assert [buffer.block_in(0, slot) for slot in range(4)] == [5, 7, 6, 2]
    assert buffer.slot_of(0, 3) is None
    assert buffer.slot_of(0, 6) == 2
    # The turn goes on behind the last slot that was filled.
    assert buffer.look_up(BlockRows(np.array([[9]]))).slots.tolist() == [[3]]


def test_sequences_have_slots_of_their_own() -> None:
    buffer = ReuseBuffer(rows=2, blocks=5, slots=2)
    buffer.look_up(BlockRows(np.array([[0, 1], [1, 2]])))
    found = buffer.look_up(BlockRows(np.array([[1, 3], [0, 2]])))
    assert found.missing.tolist() == [[False, True], [True, False]]
    assert buffer.block_in(0, 0) == 3
    assert buffer.block_in(1, 0) == 0
    buffer.check()


def test_what_could_not_be_read_is_forgotten() -> None:
    buffer = ReuseBuffer(rows=1, blocks=5, slots=3)
    buffer.look_up(BlockRows(np.array([[0, 1]])))
    buffer.forget(BlockRows(np.array([[1, 4]])))
    buffer.check()
    assert buffer.look_up(BlockRows(np.array([[0, 1]]))).missing.tolist() == [[False, True]]


def test_a_selection_larger_than_the_buffer_is_kept_in_part_by_hand() -> None:
    buffer = ReuseBuffer(1, 5, 2)
    found = buffer.look_up(BlockRows(np.array([[0, 1, 2]])))
    # The third lies in the first place of a read buffer, which is counted on from the slots.
    assert found.missing.all() and found.slots is not None and found.slots.tolist() == [[0, 1, 2]]
    found = buffer.look_up(BlockRows(np.array([[0, 2, 3]])))
    assert found.missing.tolist() == [[False, True, True]]
    assert found.slots is not None and found.slots.tolist() == [[0, 1, 2]]
    assert (buffer.block_in(0, 0), buffer.block_in(0, 1), buffer.slot_of(0, 3)) == (0, 2, None)
    buffer.check()


def test_a_buffer_without_slots_is_refused() -> None:
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
            if absent and len(pinned) < len(self.held):
                pinned.add(unit)
                while self.held[self.turn % len(self.held)] in pinned:
                    self.turn += 1
                self.held[self.turn % len(self.held)] = unit
                self.turn += 1
        return missing

    def places(self, wanted: list[int]) -> list[int]:
        """Its slot for each, or the next place of a read buffer."""
        through = count(len(self.held))
        return [self.held.index(unit) if unit in self.held else next(through) for unit in wanted]


@given(st.data())
def test_the_buffer_is_the_plain_one(data: st.DataObject) -> None:
    sequences = data.draw(st.integers(1, 3), "sequences")
    slots = data.draw(st.integers(1, 40), "slots")
    k = data.draw(st.integers(1, 60), "k")
    blocks = data.draw(st.integers(k, 80), "blocks")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
    buffer, plain = ReuseBuffer(sequences, blocks, slots), [PlainBuffer(slots) for _ in range(sequences)]
    for _ in range(12):
        ids = np.stack([rng.permutation(blocks)[:k] for _ in range(sequences)])
        found = buffer.look_up(BlockRows(ids))
        for row, one in enumerate(plain):
            assert one.look_up(ids[row].tolist()) == found.missing[row].tolist()
            assert [buffer.block_in(row, slot) for slot in range(slots)] == one.held
            # Everything that was asked for is where it is said to be.
            assert found.slots[row].tolist() == one.places(ids[row].tolist())
    buffer.check()


@given(st.data())
def test_ragged_rows_lose_nothing(data: st.DataObject) -> None:
    """Every block asked for is in one slot of its own row, or passes through; what was found is not moved again, and no
    slot has two."""
    n_rows, slots = data.draw(st.integers(1, 4), "rows"), data.draw(st.integers(1, 12), "slots")
    blocks = data.draw(st.integers(1, 30), "blocks")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
    buffer, plain = ReuseBuffer(n_rows, blocks, slots), [PlainBuffer(slots) for _ in range(n_rows)]
    for _ in range(8):
        ids = [rng.permutation(blocks)[: rng.integers(0, blocks + 1)].tolist() for _ in range(n_rows)]
        found = buffer.look_up(rows(*ids))
        missing = [absent for row, one in enumerate(plain) for absent in one.look_up(ids[row])]
        assert found.missing.tolist() == missing
        assert found.slots is not None
        assert found.slots.tolist() == [at for one, wanted in zip(plain, ids, strict=True) for at in one.places(wanted)]
        moved = [(row, one) for row, wanted in enumerate(ids) for one in wanted]
        assert list(zip(*(part.tolist() for part in found.to_move), strict=True)) == [
            one for one, absent in zip(moved, missing, strict=True) if absent
        ]
        buffer.check()


def test_the_check_sees_a_block_in_two_slots() -> None:
    buffer = ReuseBuffer(1, 5, 3)
    buffer.look_up(rows([0, 1]))
    buffer._block_in[2] = 0
    with pytest.raises(AssertionError):
        buffer.check()


# Two layers, two heads of four numbers: 32 B per entry. Blocks of 4 tokens take 128 B.
ROOM = Room(
    model=tiny_model(layers=2, kv_heads=2, head_dim=4), block_tokens=4, context=100, output=0, budget_bytes=10_000
)


def test_slots_are_what_the_budget_leaves_by_hand() -> None:
    # 2 layers x 128 B a slot.
    assert [Reuse(slots=slots).keeps for slots in (0, 1, 2)] == [False, True, True]
    assert Reuse().slots_within(ROOM, 3, 8 * 256) == 8
    assert Reuse().slots_within(ROOM, 8, 8 * 256) == 8
    assert Reuse(slots=9).slots_within(ROOM, 8, 0) == 9
    assert Reuse(slots=7).slots_within(ROOM, 8, 0) == 7
    with pytest.raises(ValueError, match="1 slot or more, or 0 for no reuse, not -7"):
        Reuse(slots=-7).slots_within(ROOM, 8, 0)
    # Two buffers of 3 blocks and the newest tokens' of two layers.
    assert DoubleBuffer().reserved_bytes(ROOM, 3) == (2 * 3 + 2) * 128


def test_slots_that_hold_a_part_of_a_selection_leave_room_for_two_read_buffers_by_hand() -> None:
    # A slot of four layers is 512 B, and two buffers of 9 blocks are 2,304 B, less than the 4,608 B of 9 slots.
    deep = replace(ROOM, model=tiny_model(layers=4, kv_heads=2, head_dim=4))
    assert Reuse().slots_within(deep, 9, 2304 + 3 * 512) == 3
    assert Reuse().slots_within(deep, 9, 2304 + 511) == 0
    assert Reuse().slots_within(deep, 9, 4607) == 4
    assert Reuse().slots_within(deep, 9, 4608) == 9
    held = {one.name: one.n_bytes(deep.tokens) for one in Reuse().holdings(deep, 9, 4)}
    assert held == {"kv: reuse buffer": 4 * 512, "kv: read buffers": 2304}
    assert [one.name for one in Reuse().holdings(deep, 9, 9)] == ["kv: reuse buffer"]


def test_without_slots_nothing_is_found_and_in_memory_everything_is() -> None:
    wanted = rows([4, 2], [], [1])
    nothing, everything = DoubleBuffer().start(3, 5, 0).look_up(wanted), AllThere().look_up(wanted)
    assert [part.tolist() for part in nothing.to_move] == [[0, 0, 2], [4, 2, 1]]
    assert [part.tolist() for part in everything.to_move] == [[], []]
    assert (nothing.hits, everything.hits) == (0, 3)

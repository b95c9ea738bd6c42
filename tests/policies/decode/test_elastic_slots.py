"""Elastic loading: by hand, and against sets."""

import numpy as np
import pytest
from decoding import sum_of
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model

from kvferry.policies.decode.elastic_slots import Elastic, ElasticSlots
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows


def test_what_is_new_takes_the_places_of_what_leaves_by_hand() -> None:
    slots = ElasticSlots(rows=2, blocks=10, slots=3)
    first = slots.look_up(BlockRows(np.array([[1, 4, 7], [0, 1, 2]])))
    assert first.missing.all()
    assert first.slots.tolist() == [[0, 1, 2], [0, 1, 2]]
    # Row 0: 1 and 7 leave, 2 and 9 take slots 0 and 2. Row 1: 2 leaves, 8 takes slot 2.
    second = slots.look_up(BlockRows(np.array([[2, 4, 9], [0, 1, 8]])))
    assert second.missing.tolist() == [[True, False, True], [False, False, True]]
    assert second.slots.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert second.hits == 3
    # Nothing of the step before the last one is left.
    third = slots.look_up(BlockRows(np.array([[1, 2, 4], [0, 2, 8]])))
    assert third.missing.tolist() == [[True, False, False], [False, True, False]]
    assert third.slots.tolist() == [[2, 0, 1], [0, 1, 2]]
    slots.check()


def test_a_selection_that_grows_fills_free_slots_first() -> None:
    slots = ElasticSlots(rows=1, blocks=10, slots=4)
    slots.look_up(BlockRows(np.array([[0, 1]])))
    found = slots.look_up(BlockRows(np.array([[1, 2, 3]])))
    # Slot 0 is free as 0 has left, and slots 2 and 3 always were.
    assert found.slots.tolist() == [[1, 0, 2]]
    with pytest.raises(ValueError, match="5 blocks are selected, 4 slots cannot hold them"):
        slots.look_up(BlockRows(np.arange(5)[None]))


def test_of_a_selection_of_everything_nothing_stays() -> None:
    """Its layers that lie elsewhere are moved whole: a run ended as a fault of the program."""
    wanted = BlockRows(np.array([[0, 1, 2]]))
    resident = Elastic().start(1, 3, 0)
    assert resident.look_up(wanted).missing.all() and resident.look_up(wanted).missing.all()


def test_what_never_came_is_forgotten() -> None:
    slots = ElasticSlots(rows=1, blocks=5, slots=2)
    slots.look_up(BlockRows(np.array([[0, 1]])))
    slots.forget(BlockRows(np.array([[1, 3]])))
    slots.check()
    assert [slots.slot_of(0, block) for block in range(2)] == [0, None]
    assert slots.look_up(BlockRows(np.array([[0, 1]]))).missing.tolist() == [[False, True]]


def test_sizes_by_hand() -> None:
    model = tiny_model(layers=3, kv_heads=2, head_dim=4)
    room = Room(model=model, block_tokens=1, context=9, output=3, budget_bytes=1)
    assert Elastic().slots_within(room, 4, 0) == 4
    # Layers have them once their KV lies elsewhere.
    assert (sum_of(Elastic().holdings(room, 4, 4)), Elastic().away_tokens(room, 4)) == (0, 4)


@given(data=st.data(), rows=st.integers(1, 3), slots=st.integers(1, 6), steps=st.integers(1, 8))
def test_only_the_set_difference_moves_and_the_rest_keeps_its_slot(data, rows: int, slots: int, steps: int) -> None:  # type: ignore[no-untyped-def]
    elastic, last = ElasticSlots(rows, 12, slots), [dict[int, int]() for _ in range(rows)]
    for _ in range(steps):
        k = data.draw(st.integers(1, slots))
        ids = np.array([sorted(data.draw(st.permutations(range(12)))[:k]) for _ in range(rows)])
        found = elastic.look_up(BlockRows(ids))
        elastic.check()
        assert found.slots is not None
        for row in range(rows):
            places = dict(zip(ids[row].tolist(), found.slots[row].tolist(), strict=True))
            missing = set(ids[row][found.missing[row]].tolist())
            assert missing == set(places) - set(last[row])
            assert len(set(places.values())) == k
            assert all(places[block] == last[row][block] for block in set(places) & set(last[row]))
            last[row] = places
        held = set(zip(*(array.tolist() for array in elastic.held()), strict=True))
        assert held == {(row, block) for row in range(rows) for block in last[row]}

"""The owner of KV between turns: what it keeps where, and what goes first."""

import math
from collections.abc import Sequence

import pytest

from kvferry.policies.keep.eviction import Block, EvictionName, eviction
from kvferry.policies.keep.kept import Kept, Room

TURNS = [(1, 2, 3), (4, 5), (1, 2), (6, 7), (4, 5)]


def kept(room: Room, name: EvictionName = "lru", works_on: str = "memory", turns: Sequence[Sequence[int]] = ()) -> Kept:
    """Costs of a block are its id; the future is `turns`, from the present one on."""
    uses = [*turns]

    def next_use(block: int) -> float:
        return next((n for n, blocks in enumerate(uses) if block in blocks), math.inf)

    policy = eviction(name, regain_s=lambda block: float(block.id), next_use=next_use)
    return Kept(room, policy, works_on)  # type: ignore[arg-type]


def test_what_memory_has_no_room_for_goes_to_flash() -> None:
    store = kept(Room(memory=2, flash=2))
    # The end of what was used together goes first: a beginning is of use without it.
    assert store.keep((1, 2, 3), 0.0).written == (3,)
    assert [store.places(n) for n in (1, 2, 3)] == [("memory",), ("memory",), ("flash",)]
    # 1 and 2 are older than 4. Flash has room for two: 3 was used at the same time, and stands behind them.
    changes = store.keep((4, 5), 1.0)
    assert (changes.written, changes.freed) == ((2, 1), (3,))
    assert [store.places(n) for n in range(1, 6)] == [("flash",), ("flash",), (), ("memory",), ("memory",)]
    # 4 and 5 find room on flash where there were copies of what is in memory again.
    changes = store.keep((1, 2), 2.0)
    assert (changes.written, changes.freed) == ((5, 4), (2, 1))
    assert [store.places(n) for n in (1, 2, 4, 5)] == [("memory",), ("memory",), ("flash",), ("flash",)]
    store.check()


def test_what_lies_on_flash_is_not_written_again() -> None:
    store = kept(Room(memory=1, flash=9))
    assert store.keep((1, 2), 0.0).written == (2,)
    assert store.keep((2,), 1.0).written == (1,)
    assert store.places(2) == ("memory", "flash")
    assert store.keep((1,), 2.0).written == ()


def test_nothing_is_written_that_finds_no_room() -> None:
    store = kept(Room(memory=1, flash=1))
    changes = store.keep((1, 2, 3), 0.0)
    assert (changes.written, changes.freed) == ((2,), ())
    assert store.places(3) == ()


def test_where_kv_lies_on_flash_memory_has_copies() -> None:
    store = kept(Room(memory=1, flash=3), works_on="flash")
    assert store.keep((1, 2, 3), 0.0).written == ()
    assert [store.places(n) for n in (1, 2, 3)] == [("memory", "flash"), ("flash",), ("flash",)]


def test_room_is_made_of_what_no_turn_needs() -> None:
    store = kept(Room(memory=3, flash=0))
    store.keep((1, 2, 3), 0.0)
    store.make_room(0, 1.0, pinned=(2,))
    assert [store.places(n) for n in (1, 2, 3)] == [(), ("memory",), ()]


def test_what_the_cloud_is_told_lies_there() -> None:
    store = kept(Room(memory=0, flash=0, cloud=True))
    assert store.keep((1, 2), 0.0).sent == (1, 2)
    assert store.keep((1, 2, 3), 1.0).sent == (3,)
    assert store.places(3) == ("cloud",)


@pytest.mark.parametrize(
    ("name", "left"),
    [
        # Of 1 to 4, used in this order, two stay.
        ("lru", (3, 4)),
        # The dear ones stay, here those with large numbers.
        ("cost", (3, 4)),
        # 1 is used next, then 2.
        ("belady", (1, 2)),
    ],
)
def test_what_goes_first(name: EvictionName, left: tuple[int, ...]) -> None:
    store = kept(Room(memory=4, flash=0), name, turns=[(1,), (2,), (3,), (4,)])
    for n in range(1, 5):
        store.keep((n,), float(n))
    store.make_room(2, 5.0)
    assert tuple(n for n in range(1, 5) if store.places(n)) == left


def test_cheap_blocks_that_are_used_outlive_dear_ones_that_are_not() -> None:
    # 1 finds no room beside 3 and 2, which are worth more, and is given up at once: the level is its worth of 1 then.
    store = kept(Room(memory=2, flash=0), "cost")
    for n in (3, 2, 1):
        store.keep((n,), 0.0)
    assert store.places(1) == ()
    # The second time it is worth 1 + 1, and the third 2 + 1: more than 2, which was not used meanwhile.
    for _ in range(2):
        store.keep((1,), 0.0)
    assert [store.places(n) for n in (1, 2, 3)] == [("memory",), (), ("memory",)]


def test_a_forecast_goes_by_the_usual_gap() -> None:
    policy = eviction("predicted", regain_s=lambda block: 0.0, next_use=lambda block: 0.0)
    regular, once = Block(1, 0, 0.0), Block(2, 0, 90.0)
    for now_s in (0.0, 10.0, 20.0):
        policy.used(regular, now_s)
        regular.used_s, regular.uses = now_s, regular.uses + 1
    policy.used(once, 90.0)
    once.uses = 1
    # At 25 the regular one is due in 5 s. At 100 it is 80 s overdue; the other one was used 10 s ago, and is due now.
    assert policy.rank(regular, 25.0) == -5.0
    assert policy.rank(regular, 100.0) == -80.0
    assert policy.rank(once, 95.0) == -5.0
    assert policy.rank(once, 100.0) == 0.0
    # A gap of 40 s: 0.3 of it and 0.7 of 10 s are 19 s. Of all three gaps 20 s are the mean.
    policy.used(regular, 60.0)
    regular.used_s = 60.0
    assert policy.rank(regular, 60.0) == pytest.approx(-19.0)
    assert policy.rank(once, 95.0) == pytest.approx(-15.0)


def test_what_an_earlier_run_has_left_is_taken_as_far_as_there_is_room() -> None:
    store = kept(Room(memory=1, flash=2))
    assert store.adopt(1, 0, 0.0) and store.places(1) == ("flash",)
    # It is known to lie there, and flash has room for one more.
    assert not store.adopt(1, 0, 0.0)
    assert store.adopt(2, 1, 0.0) and not store.adopt(3, 2, 0.0)
    # Neither is written again when it leaves memory.
    assert store.keep((1, 2), 1.0).written == ()
    store.check()


def test_what_could_not_be_written_is_nowhere() -> None:
    store = kept(Room(memory=1, flash=9))
    written = store.keep((1, 2, 3), 0.0).written
    assert written == (3, 2)
    store.lost(written)
    assert [store.places(n) for n in (1, 2, 3)] == [("memory",), (), ()]
    store.check()

"""Property tests of what is kept between turns: never more than may be, and nothing better than the future."""

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.policies.keep.eviction import EvictionName, eviction
from kvferry.policies.keep.kept import Kept, Room

TURNS = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=5, unique=True), min_size=1, max_size=25)
NAMES: tuple[EvictionName, ...] = ("lru", "cost", "predicted", "belady")


def hits(turns: Sequence[Sequence[int]], room: Room, name: EvictionName, works_on: str = "memory") -> int:
    """Blocks that were on the device when a turn wanted them; checks after every turn that no more is kept than may."""
    present = 0

    def next_use(block: int) -> float:
        return next((n for n in range(present, len(turns)) if block in turns[n]), math.inf)

    policy = eviction(name, regain_s=lambda block: float(block.id), next_use=next_use)
    store = Kept(room, policy, works_on)  # type: ignore[arg-type]
    found = 0
    for n, blocks in enumerate(turns):
        found += sum(bool(store.places(block)) for block in blocks)
        present = n + 1
        changes = store.keep(blocks, float(n))
        store.check()
        assert all("flash" in store.places(block) for block in changes.written)
        assert not any("flash" in store.places(block) for block in changes.freed)
    return found


@settings(deadline=None)
@given(TURNS, st.integers(0, 6), st.integers(0, 6), st.sampled_from(NAMES), st.sampled_from(["memory", "flash"]))
def test_no_more_is_kept_than_may_be(
    turns: list[list[int]], memory: int, flash: int, name: EvictionName, works_on: str
) -> None:
    hits(turns, Room(memory=memory, flash=flash), name, works_on)


@settings(deadline=None)
@given(TURNS, st.integers(0, 6), st.integers(0, 4))
def test_no_policy_finds_more_than_belady(turns: list[list[int]], memory: int, flash: int) -> None:
    room = Room(memory=memory, flash=flash)
    best = hits(turns, room, "belady")
    assert all(hits(turns, room, name) <= best for name in NAMES)

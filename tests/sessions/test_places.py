"""Places of blocks on flash while turns decode there, by hand."""

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import simpy

from kvferry.backends.world import Inputs, ModelledKv
from kvferry.machine.memory import BudgetedPool
from kvferry.policies.keep.eviction import Lru
from kvferry.policies.keep.kept import Kept, Room
from kvferry.sessions.keeping import Keeping
from kvferry.specs.errors import LinkDown


class Told(ModelledKv):
    """Notes which blocks are said to stay where, and cannot send some."""

    def __init__(self, env: simpy.Environment, recorded: Inputs, lost: Collection[int]) -> None:
        super().__init__(recorded)
        self.stayed: list[dict[int, int]] = []
        self._env, self._lost = env, lost

    def stays(self, pages: Mapping[int, int]) -> Sequence[simpy.Event]:
        self.stayed.append(dict(pages))
        return ()

    def send(self, blocks: Sequence[int]) -> Sequence[simpy.Event]:
        return [self._env.timeout(1.0, LinkDown("cut") if block in self._lost else None) for block in blocks]


def keeping(
    flash: int,
    earlier: Mapping[int, Mapping[int, int]] | None = None,
    *,
    cloud: bool = False,
    lost: Collection[int] = (),
) -> tuple[Keeping, Told]:
    env, pool = simpy.Environment(), BudgetedPool(1e9)
    machine: Any = SimpleNamespace(
        env=env, memory_of=lambda tier: pool, observe=lambda window_s: SimpleNamespace(free_bytes=pool.free_bytes)
    )
    told = Told(env, Inputs(found=earlier), lost)
    kept = Kept(Room(memory=0, flash=flash, cloud=cloud), Lru(), "flash")
    return Keeping(machine, told, kept, 1.0, 1.0), told


def keep(of: Keeping, blocks: Sequence[int], turn: int = 0) -> None:
    of.machine.env.run(until=of.machine.env.process(of.keep(blocks, turn)))


def test_what_a_turn_leaves_stays_where_it_lies() -> None:
    of, told = keeping(flash=3)
    assert of.lay_out([None, None, None]) == [0, 1, 2]
    # Two whole blocks, and a beginning of a third.
    keep(of, [10, 11])
    assert told.stayed == [{10: 0, 11: 1}]
    # The next turn goes on from both; place 2 is free again.
    assert of.lay_out([10, 11, None, None]) == [0, 1, 2, 3]
    # There is room for three: the last one is given up at once.
    keep(of, [10, 11, 12, 13])
    assert told.stayed[1] == {12: 2}
    assert sorted(of.lay_out([None, None])) == [3, 4]


def test_a_page_at_work_is_not_taken_for_an_old_block() -> None:
    # An earlier run has left block 20 in place 1, which this turn has for its last page and never writes.
    of, told = keeping(flash=3, earlier={1: {20: 1}})
    assert of.lay_out([None, None]) == [0, 1]
    of.adopt([20], 1)
    keep(of, [10])
    assert told.stayed == [{10: 0}] and of.kept.places(20) == ()
    # Where it is no page of a turn's, it is taken, and nothing else gets its place.
    of.adopt([20], 1)
    assert of.kept.places(20) == ("flash",) and of.lay_out([20, None]) == [1, 2]


def test_what_does_not_reach_the_cloud_is_not_kept_there() -> None:
    of, _ = keeping(flash=3, cloud=True, lost=[11])
    of.lay_out([None, None])
    keep(of, [10, 11])
    of.machine.env.run(until=of.machine.env.process(of.all_sent()))
    assert of.machine.env.now == 1.0 and str(of.cut) == "cut"
    assert (of.kept.places(10), of.kept.places(11)) == (("flash", "cloud"), ("flash",))

"""A memory's bandwidth shared among processors, against events computed by hand."""

import numpy as np
import pytest
import simpy

from kvferry.machine.ops import FeedForward, Op
from kvferry.machine.span import Span
from kvferry.sim.bus import MemoryBus
from kvferry.sim.cost import Cost
from kvferry.sim.processor import Processor
from kvferry.specs.device import ProcessorSpec
from kvferry.traces.rate import RateTrace


def speeds(capacity: float, *demands: float) -> list[float]:
    bus = MemoryBus(capacity)
    shares = [bus.join(demand, lambda _: None) for demand in demands]
    bus.check()
    return [share.speed for share in shares]


def test_demands_that_fit_are_met() -> None:
    assert speeds(100, 30, 30, 40) == [1.0, 1.0, 1.0]


def test_equal_demands_share_equally() -> None:
    assert speeds(100, 80, 80) == [0.625, 0.625]


def test_small_demands_are_met_first() -> None:
    # 10 of 10; the other 90 are halved between 60 and 90
    assert speeds(100, 90, 10, 60) == pytest.approx([0.5, 1.0, 0.75])


def test_who_is_alone_is_never_slowed() -> None:
    # its cost was measured alone, whatever the bytes say
    assert speeds(100, 250) == [1.0]


def test_only_those_whose_speed_changes_are_reported() -> None:
    bus = MemoryBus(100.0)
    changes: list[tuple[str, float]] = []
    bus.join(10, lambda speed: changes.append(("small", speed)))
    bus.join(80, lambda speed: changes.append(("large", speed)))
    assert changes == []
    third = bus.join(80, lambda speed: changes.append(("third", speed)))
    assert (changes, third.speed) == ([("large", 0.5625)], 0.5625)
    bus.leave(third)
    assert changes == [("large", 0.5625), ("large", 1.0)]


class World:
    """Processors by name on one bus of 100 bytes/s; an op of batch n takes n seconds and demands what they say."""

    def __init__(self, load: RateTrace | None = None, dispatch_s: float = 0.0, **demands: float) -> None:
        self.env = simpy.Environment()
        self.bus = MemoryBus(100.0)
        self.spans: list[Span] = []
        spec = ProcessorSpec(kind="gpu", flop_per_s=1e12, bytes_per_s=1e9, dispatch_s=dispatch_s)
        self.processors = {
            name: Processor(self.env, name, spec, self.costing(demand), load, self.bus, self.spans.append)
            for name, demand in demands.items()
        }

    def costing(self, demand):  # type: ignore[no-untyped-def]
        def cost(op: Op) -> Cost:
            assert isinstance(op, FeedForward)
            return Cost(op.batch, op.batch * demand)

        return cost

    def ends(self, **batches: float) -> dict[str, float | None]:
        tickets = {name: self.processors[name].submit(FeedForward(batch)) for name, batch in batches.items()}
        self.env.run()
        self.bus.check()
        return {name: ticket.end_s for name, ticket in tickets.items()}


def test_two_that_want_too_much_slow_each_other() -> None:
    # 80 + 80 of 100: both at 0.625, so cpu's 1 s ends at 1.6; gpu has 1 of 2 left then: 2.6
    assert World(gpu=80, cpu=80).ends(gpu=2, cpu=1) == pytest.approx({"gpu": 2.6, "cpu": 1.6})


def test_a_small_demand_is_met_and_the_large_one_pays() -> None:
    # npu gets its 20, gpu 80 of 100: 0.8 until npu ends at 1 s, then 1.2 left at full speed
    assert World(gpu=100, npu=20).ends(gpu=2, npu=1) == pytest.approx({"gpu": 2.2, "npu": 1.0})


def test_an_op_that_moves_nothing_is_not_slowed() -> None:
    assert World(gpu=100, cpu=0).ends(gpu=1, cpu=1) == {"gpu": 1.0, "cpu": 1.0}


def test_dispatch_is_not_slowed() -> None:
    # both claim 80 from 0 on; both dispatch until 0.5, then 1 s at 0.625: 2.1
    assert World(dispatch_s=0.5, gpu=80, cpu=80).ends(gpu=1, cpu=1) == pytest.approx({"gpu": 2.1, "cpu": 2.1})


def test_load_and_bus_slow_together() -> None:
    # half speed by load until 1 s (0.5 x 0.625 done), then 0.625 a second: 0.6875 / 0.625 = 1.1 s more
    load = RateTrace(np.array([0.0, 1.0]), np.array([0.5]), "end")
    assert World(load=load, gpu=80, cpu=80).ends(gpu=1, cpu=1) == pytest.approx({"gpu": 2.1, "cpu": 2.1})


def test_without_contention_there_is_no_further_event() -> None:
    # one wake-up and one ticket for each of 2 x 50 ops, and nothing else
    world = World(gpu=50, cpu=50)
    for _ in range(50):
        for processor in world.processors.values():
            processor.submit(FeedForward(1))
    steps = 0
    while world.env.peek() < float("inf"):
        world.env.step()
        steps += 1
    assert (steps, world.env.now) == (200, 50.0)

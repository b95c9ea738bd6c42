"""Paths that slow each other, against events computed by hand."""

import numpy as np
import pytest
import simpy
from pydantic import ValidationError

from kvferry.backends.sim.machine import SimMachine
from kvferry.machine.ops import Chunks, Decompress, FeedForward, Op
from kvferry.machine.span import Span
from kvferry.machine.ticket import Ticket
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.bus import MemoryBus
from kvferry.sim.contention import Contention
from kvferry.sim.cost import Cost
from kvferry.sim.link import Link
from kvferry.sim.processor import Processor
from kvferry.sim.slowed_queue import CopyQueue, Decompressor
from kvferry.specs.device import ContentionSpec, DecompressorSpec, DeviceSpec, ProcessorSpec
from kvferry.traces.rate import RateTrace


class World:
    """A processor (an op of batch n takes n seconds), a decompressor (one value a second) and a link (1 byte/s)."""

    def __init__(
        self,
        workers: int = 1,
        dispatch_s: float = 0.0,
        load: RateTrace | None = None,
        bus: MemoryBus | None = None,
        **slowdown: dict[str, float],
    ) -> None:
        self.env = simpy.Environment()
        self.contention = Contention(slowdown)
        self.spans: list[Span] = []
        spec = ProcessorSpec(kind="cpu", flop_per_s=1e12, bytes_per_s=1e9, dispatch_s=dispatch_s)
        tell = self.spans.append
        self.cpu = Processor(self.env, "cpu", spec, self.cost, load, bus, tell, self.contention)
        decompressor = DecompressorSpec(values_per_s=1, workers=workers)
        self.decompressor = Decompressor(self.env, decompressor, tell, self.contention)
        self.copies = CopyQueue(self.env, 1.0, 0.0, tell, contention=self.contention)
        self.link = Link(self.env, RateTrace.constant(1.0), 0.0, tell)
        parts = (self.cpu, "cpu"), (self.decompressor, "decompress"), (self.copies, "copy"), (self.link, "link")
        for part, path in parts:
            self.contention.watch(path, part.busy)

    @staticmethod
    def cost(op: Op) -> Cost:
        assert isinstance(op, FeedForward)
        return Cost(float(op.batch), 50.0 * op.batch)

    def compute(self, seconds: float) -> Ticket:
        return self.cpu.submit(FeedForward(seconds))

    def ends(self, *tickets: Ticket) -> list[float | None]:
        self.env.run()
        self.link.bottleneck.check()
        return [ticket.end_s for ticket in tickets]


def test_both_slow_each_other_while_both_are_at_work() -> None:
    # Beside it the op runs at 1/2, the decoder at 1/4. Until 4 s: 1 of 1 decoded, 2 of 3 computed; then alone.
    world = World(cpu={"decompress": 2.0}, decompress={"cpu": 4.0})
    assert world.ends(world.compute(3), world.decompressor.decompress(1)) == [5.0, 4.0]


def test_copies_are_slowed_by_compute_and_slow_others() -> None:
    # the copy at 1/2 until the op ends at 1 s, then alone; the decoder at 1/3 while the copy lasts, 1.5 s
    world = World(copy={"cpu": 2.0}, decompress={"copy": 3.0})
    assert world.ends(world.compute(1), world.copies.copy(1), world.decompressor.decompress(1)) == [1.0, 1.5, 2.0]


def test_slowdowns_of_several_multiply() -> None:
    # link 0..2 and decoder 0..1: 1/6 of a second by 1 s, 1/3 + 1/6 by 2 s, the other half at full speed
    world = World(cpu={"decompress": 2.0, "link": 3.0})
    link, decoder = world.link.transfer("a", 2), world.decompressor.decompress(1)
    assert world.ends(world.compute(1), link, decoder) == pytest.approx([2.5, 2.0, 1.0])


def test_only_the_paths_named_are_slowed() -> None:
    world = World(cpu={"link": 2.0})
    assert world.ends(world.compute(1), world.decompressor.decompress(3)) == [1.0, 3.0]


def test_dispatch_is_not_slowed_and_work_begun_meanwhile_is() -> None:
    # dispatched by 1 s; half of the op by 2 s, when the decoder ends; the rest at full speed
    world = World(cpu={"decompress": 2.0}, dispatch_s=1.0)
    assert world.ends(world.compute(1), world.decompressor.decompress(2)) == [2.5, 2.0]


def test_all_workers_are_slowed_alike() -> None:
    # the op ends at 1 s; by then half a value of each; 0.5 and 1.5 are left
    world = World(workers=2, decompress={"cpu": 2.0})
    decoded = [world.decompressor.decompress(values) for values in (1, 2)]
    assert world.ends(world.compute(1), *decoded) == [1.0, 1.5, 2.5]
    assert [span.end_s for span in world.spans if span.resource == "decompress"] == [1.5, 2.5]


def test_one_worker_at_work_is_the_decompressor_at_work() -> None:
    # the second piece begins at 0 too: busy until 3 s without a gap
    world = World(workers=2, cpu={"decompress": 2.0})
    decoded = [world.decompressor.decompress(values) for values in (1, 3)]
    assert world.ends(world.compute(2), *decoded) == [3.5, 1.0, 3.0]


def test_with_a_background_load_and_a_bus_besides() -> None:
    # Half of the processor is left. The bus of 50 bytes/s is shared with a stranger who wants as much: half again.
    # The decoder takes 1 s, in which 1/2 x 1/2 x 1/2 is done; the rest, 7/8, at 1/4.
    bus = MemoryBus(50.0)
    bus.join(50.0, lambda _: None)
    world = World(load=RateTrace.constant(0.5), bus=bus, cpu={"decompress": 2.0})
    assert world.ends(world.compute(1), world.decompressor.decompress(1)) == pytest.approx([4.5, 1.0])


def test_actual_over_nominal_tells_of_it() -> None:
    world = World(cpu={"decompress": 2.0})
    world.ends(world.compute(1), world.decompressor.decompress(9))
    assert world.cpu.speed(10) == 0.5


def test_without_slowdowns_nothing_changes() -> None:
    loads = [1.0, 0.3, 0.7]
    plain, beside = World(), World(cpu={}, decompress={})
    for world in (plain, beside):
        for seconds in loads:
            world.compute(seconds)
            world.decompressor.decompress(seconds)
        world.env.run()
    assert plain.spans == beside.spans


# --- as a device profile says ----------------------------------------------------------------------------------


def device(**contention: object) -> DeviceSpec:
    tiny = load_device("tiny").model_dump(mode="json")
    return DeviceSpec.model_validate({**tiny, "contention": contention}, context={"from_file": True})


def test_the_link_slows_in_proportion_to_its_rate() -> None:
    spec = ContentionSpec(slowdown={"gpu": {"link": 1.5, "decompress": 3.0}}, link_bytes_per_s=100.0)
    assert spec.at(100.0) == {"gpu": {"link": 1.5, "decompress": 3.0}}
    assert spec.at(20.0)["gpu"] == pytest.approx({"link": 1.1, "decompress": 3.0})


def finish_s(spec: DeviceSpec, link_bytes_per_s: float) -> tuple[float, float]:
    """When an op and a piece to decode end that begin together, with a long fetch under way."""
    machine = SimMachine(
        spec, load_model("tiny"), RateTrace.constant(link_bytes_per_s), costs=lambda *_: _OneMillisecond()
    )
    machine.fetch(Chunks(0, (0,), 1e6))
    op, decoded = machine.submit(FeedForward(1)), machine.submit(Decompress(1e5), on="decompress")
    machine.env.run()
    return op.end_s or 0.0, decoded.end_s or 0.0


class _OneMillisecond:
    def cost(self, op: Op) -> Cost:
        return Cost(1e-3)

    def durations_s(self, op: Op, *, load: object = 0.0) -> np.ndarray:
        return np.asarray(1e-3)


def test_a_machine_obeys_its_profile() -> None:
    # 1e5 values at 1e8/s take 1 ms. Link of 1 MB/s, slowdown given at 2 MB/s: 1 + 0.5 x 0.5 = 1.25.
    # The op, alone with the link: 1.25 ms; the decoder beside the op at 1/2 until then (0.625 of 1 ms), then alone.
    spec = device(slowdown={"gpu": {"link": 1.5}, "decompress": {"gpu": 2.0}}, link_bytes_per_s="2 MB/s")
    assert finish_s(spec, 1e6) == pytest.approx((1.25e-3, 1.625e-3))
    assert finish_s(load_device("tiny"), 1e6) == (1e-3, 1e-3)


def test_the_network_interface_bounds_the_link_and_adds_to_a_request() -> None:
    # 1 MB at 0.5 of 1 MB/s, and 0.1 s beyond the link's own 0.2
    tiny = load_device("tiny")
    network = tiny.network.model_copy(update={"bytes_per_s": 5e5, "request_s": 0.1})
    machine = SimMachine(
        tiny.model_copy(update={"network": network}),
        load_model("tiny"),
        RateTrace.constant(1e6),
        rtt_s=0.2,
        costs=lambda *_: _OneMillisecond(),
    )
    fetched = machine.fetch(Chunks(0, (0,), 1e6))
    machine.env.run()
    assert fetched.end_s == pytest.approx(2.3)


@pytest.mark.parametrize(
    ("slowdown", "said"),
    [
        ({"npu": {"link": 2.0}}, "'npu' is no path that can be slowed; there are copy, decompress, gpu"),
        ({"link": {"gpu": 2.0}}, "'link' is no path"),
        ({"gpu": {"gpu": 2.0}}, "gpu beside 'gpu'"),
        ({"gpu": {"disk": 2.0}}, "gpu beside 'disk'"),
        ({"gpu": {"link": 0.5}}, "greater than or equal to 1"),
    ],
)
def test_paths_that_are_none_are_refused(slowdown: dict[str, dict[str, float]], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        device(slowdown=slowdown)

"""Temperatures, the governor's clock, and ops that it slows, against steps by hand."""

import math
from itertools import pairwise

import pytest
import simpy

from kvferry.machine.ops import FeedForward, Op
from kvferry.machine.span import Span
from kvferry.machine.warmth import Warmth
from kvferry.scenarios.loader import load_device
from kvferry.sim.cost import Cost
from kvferry.sim.energy import EnergyMeter
from kvferry.sim.heat import Heat, ThermalChain
from kvferry.sim.processor import Processor
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.errors import InputError
from kvferry.specs.heat import BodySpec, HeatSpec

# 10 W warm the chip by 1 K a second, and next to nothing of it goes to the air.
INSULATED = HeatSpec(capacity_j_per_k=10, resistance_k_per_w=1e9, throttle_from_c=30, throttle_to_c=40, least_clock=0.5)


def chain(**more: object) -> ThermalChain:
    limits = {"throttle_from_c": 90, "throttle_to_c": 100, "least_clock": 0.5}
    return ThermalChain(HeatSpec.model_validate({"capacity_j_per_k": 20, "resistance_k_per_w": 5, **limits, **more}))


def test_a_chip_warms_up_and_cools_as_a_resistor_and_a_capacitor_do() -> None:
    # 4 W x 5 K/W = 20 K above the air in the end, with a time constant of 5 x 20 = 100 s.
    one = chain()
    assert one.chip_c == 25
    one.draw(4, 100)
    assert one.chip_c == pytest.approx(25 + 20 * (1 - 1 / math.e))
    one.draw(0, 200)
    assert one.chip_c == pytest.approx(25 + 20 * (1 - 1 / math.e) / math.e**2)
    one.draw(4, 1e6)
    assert one.chip_c == pytest.approx(45)


def test_time_may_be_cut_anywhere() -> None:
    body = BodySpec(capacity_j_per_k=100, resistance_k_per_w=3)
    whole, cut = chain(body=body, start_c=40), chain(body=body, start_c=40)
    whole.draw(6, 90)
    for lasting_s in (0.5, 60, 29.5):
        cut.draw(6, lasting_s)
    assert cut.chip_c == pytest.approx(whole.chip_c)


def test_a_chip_in_a_body_warms_the_body_first() -> None:
    # Of two nodes with all numbers 1 the rates are (3 +- sqrt 5) / 2; 1 W settles at 2 K.
    both = chain(capacity_j_per_k=1, resistance_k_per_w=1, body=BodySpec(capacity_j_per_k=1, resistance_k_per_w=1))
    both.draw(1, 2.0)
    root = math.sqrt(5)
    fast, slow = (3 + root) / 2, (3 - root) / 2
    # y'' = -3 y' - y for what is left of the chip's 2 K, with y(0) = -2 and y'(0) = 1 W / 1 J/K.
    a = (1 - 2 * slow) / (slow - fast)
    left = a * math.exp(-fast * 2.0) + (-2 - a) * math.exp(-slow * 2.0)
    assert both.chip_c == pytest.approx(25 + 2 + left)
    both.draw(1, 1e4)
    assert both.chip_c == pytest.approx(27)


class World:
    """A processor that draws 10 W at work and nothing at rest; an op of batch n takes n seconds at full clock."""

    def __init__(self, spec: HeatSpec = INSULATED) -> None:
        self.env, self.spans = simpy.Environment(), list[Span]()
        self.heat = Heat(spec, lambda from_s, until_s: sum(self.meter.energy_j(until_s, from_s).values()))
        chip = ProcessorSpec(kind="gpu", flop_per_s=1e12, bytes_per_s=1e9)
        self.gpu = Processor(self.env, "gpu", chip, self.cost, None, None, self.spans.append, heat=self.heat)
        self.meter = EnergyMeter()
        self.meter.add("gpu", 0.0, 10.0, self.gpu.busy, work_s=self.heat.work_s)

    @staticmethod
    def cost(op: Op) -> Cost:
        assert isinstance(op, FeedForward)
        return Cost(float(op.batch))

    def end_s(self, *seconds: float) -> float:
        """When ops of these lengths are over, one after the other."""
        for one in seconds:
            self.gpu.submit(FeedForward(one))
        self.env.run()
        return self.spans[-1].end_s


def test_an_op_under_way_slows_down_when_the_governor_looks() -> None:
    # 25 C, and 1 K a second to 31 C at 6 s: a clock of 0.95. Then 0.95 K to 31.95 C: 1 - 0.5 * 0.195. At 7 s, 6.95 of
    # 7.5 s of work are done.
    world = World()
    assert world.end_s(7.5) == pytest.approx(7 + 0.55 / 0.9025)
    assert world.meter.energy_j(8.0)["gpu"] == pytest.approx(75)
    warmth = world.heat.warmth(8.0)
    assert warmth.temperatures_c[:8] == pytest.approx((25, 26, 27, 28, 29, 30, 31, 31.95))
    assert warmth.clocks[5:8] == pytest.approx((1, 0.95, 0.9025))
    assert warmth.first_throttled_s == 6.0
    assert warmth.throttled_s == pytest.approx(2.0)
    assert warmth.least_clock == pytest.approx(warmth.clocks[7])


def test_many_short_ops_take_as_long_as_one_long_op() -> None:
    # Some hundredth of a second each: the governor looks at the first that begins when it is time to.
    assert World().end_s(*[0.013] * 1000) == pytest.approx(World().end_s(13.0), rel=2e-3)


def test_rest_cools() -> None:
    cooling = INSULATED.model_copy(update={"resistance_k_per_w": 2.0})
    world = World(cooling)
    hot_s = world.end_s(30.0) - 0.0
    assert hot_s > 33
    assert world.heat.clock(world.env.now) < 0.8
    world.env.timeout(1e4)
    world.env.run()
    began_s = world.env.now
    assert world.end_s(2.0) - began_s == pytest.approx(2.0)
    world.end_s(30.0)
    world.heat.cool(world.env.now)
    assert world.heat.clock(world.env.now) == 1.0


def test_a_hot_start_is_slow_at_once() -> None:
    assert World(INSULATED.model_copy(update={"start_c": 35.0})).heat.clock(0.0) == pytest.approx(0.75)


def test_a_part_of_the_time_on_a_clock_of_its_own() -> None:
    warmth = Warmth((0.0, 1.0, 2.0, 4.0), (20.0, 30.0, 40.0, 50.0), (1.0, 1.0, 0.5, 0.4))
    part = warmth.between(1.5, 3.0)
    assert part.times_s == (0.0, 0.5, 1.5)
    assert part.throttled_s == 1.0
    assert part.first_throttled_s == 0.5
    assert warmth.between(0.0, 1.5).first_throttled_s is None


def test_an_op_of_days_is_looked_at_a_few_dozen_times_where_its_temperature_stands_still() -> None:
    # 10 W x 0.4 K/W = 4 K above the air, with a time constant of 4 s, and never warm enough to slow the op. In the 29th
    # second it warms up by less than a thousandth of a degree, 4 K (e^-7 - e^-7.25) = 0.8 mK: then by 1.1 mK in 2 s.
    world = World(INSULATED.model_copy(update={"resistance_k_per_w": 0.4}))
    assert world.end_s(1e6) == pytest.approx(1e6)
    times_s = world.heat.warmth(1e6).times_s
    assert times_s[:36] == (*range(30), 31, 32, 34, 38, 46, 62)
    assert len(times_s) < 60
    assert world.heat.clock(1e6) == 1.0


def test_what_warms_up_slowly_is_looked_at_before_it_is_two_thousandths_of_a_degree_warmer() -> None:
    # 0.2 mK a second: a thousandth in 5 s.
    world = World(INSULATED.model_copy(update={"capacity_j_per_k": 50_000.0}))
    assert world.end_s(1e4) == pytest.approx(1e4)
    found = world.heat.warmth(world.env.now).temperatures_c
    assert max(later - one for one, later in pairwise(found)) < 2e-3
    assert len(found) < 2000


def test_a_slowed_op_whose_temperature_stands_still_takes_as_long_as_its_clock_says() -> None:
    # At 1 - 0.05 (T - 30) of 10 W, 2 K/W settle at T = 25 + 20 (2.5 - 0.05 T): T = 37.5 C, and a clock of 0.625.
    world = World(INSULATED.model_copy(update={"resistance_k_per_w": 2.0, "look_s": 0.5}))
    assert world.end_s(1e6) == pytest.approx(1e6 / 0.625, rel=1e-4)
    assert len(world.heat.warmth(world.env.now).times_s) < 2000


def test_a_governor_may_look_more_often_than_the_clock_can_tell() -> None:
    # A million seconds in, the next number of the clock is 0.1 ns further.
    world = World(INSULATED.model_copy(update={"look_s": 1e-12}))
    world.env.run(until=1e6)
    assert world.end_s(4.0) == pytest.approx(1e6 + 4.0)
    times_s = world.heat.warmth(world.env.now).times_s
    assert all(one < other for one, other in pairwise(times_s))


def test_a_governor_that_would_look_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.sim.heat.MOST_LOOKS", 20)
    with pytest.raises(InputError, match=r"device.heat.look_s: 20 looks at the temperature, 1 s apart, reach 2[01] s"):
        World().end_s(100.0)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("battery: {}", "battery.capacity_j: is missing; a phone's battery holds some 15 Wh"),
        ("battery: {capacity_j: 0 Wh}", "a battery holds more than nothing"),
        ("battery: {capacity_j: 15}", "write it like '3 J'"),
        ("heat: {throttle_to_c: 34 C}", "34 C is not above throttle_from_c of 35 C; 45 C would do"),
        ("heat: {throttle_from_c: 20 C}", "20 C is not above ambient_c of 25 C"),
        ("heat: {capacity_j_per_k: 16 J}", "write it like '150 J/K'"),
        ("heat: {least_clock: 0}", "heat.least_clock"),
    ],
)
def test_what_is_wrong_with_a_device_names_the_line(tmp_path, written: str, said: str) -> None:
    file = tmp_path / "phone.yaml"
    file.write_text(f"extends: iphone-17-pro\n{written}\n")
    if written == "battery: {}":
        file.write_text(f"extends: iphone-16-pro\n{written}\n")
    with pytest.raises(InputError) as error:
        load_device(str(file))
    message = str(error.value)
    assert "phone.yaml:2" in message
    assert said in message
    assert "\n" not in message

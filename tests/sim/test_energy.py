"""Busy intervals, and the energy of components that follow them, by hand."""

import pytest
import simpy

from kvferry.machine.busy import Busy
from kvferry.sim.energy import EnergyMeter
from kvferry.sim.slowed_queue import CopyQueue


def busy(*intervals: tuple[float, float | None]) -> Busy:
    """None: still under way."""
    record = Busy()
    for start_s, end_s in intervals:
        record.begin(start_s)
        if end_s is not None:
            record.end(end_s)
    return record


def test_intervals_are_cut_to_what_is_asked() -> None:
    record = busy((0, 2), (3, 5), (7, None))
    assert list(record.intervals(1, 8)) == [(1, 2), (3, 5), (7, 8)]
    assert list(record.intervals(2, 3)) == []
    assert list(record.intervals(4, 4.5)) == [(4, 4.5)]
    assert list(record.intervals(5, 7)) == []
    assert list(record.intervals(9, 10)) == [(9, 10)]
    assert record.busy_s(1, 8) == 4
    assert record.utilisation(0, 5) == 0.8
    assert record.utilisation(5, 5) == 0


def test_beginning_twice_is_one_beginning() -> None:
    record = Busy()
    record.begin(1)
    record.begin(2)
    record.end(3)
    assert list(record.intervals(0, 9)) == [(1, 3)]


def test_each_component_draws_its_idle_or_its_active_power() -> None:
    # over 10 s: base 2 x 10; gpu 30 x 4 + 5 x 6; network 3 x 1 + 0 x 9
    meter = EnergyMeter(base_w=2)
    meter.add("gpu", 5, 30, busy((1, 3), (8, 10)))
    meter.add("network", 0, 3, busy((9, None)))
    meter.add("npu", 1, 50)
    assert meter.energy_j(10) == {"base": 20, "gpu": 150, "network": 3, "npu": 10}
    # a part of it: gpu is active from 2 to 3
    assert meter.energy_j(4, from_s=2) == {"base": 4, "gpu": 35, "network": 0, "npu": 2}


def test_threads_that_poll_draw_power_while_they_wait() -> None:
    # over 10 s: active from 1 to 3, 2 x 6 W; storage is busy from 2 to 5, of which 3 to 5 are waited for, 2 x 4 W
    meter = EnergyMeter()
    meter.add("cpu", 1, 6, busy((1, 3)), waiting_w=4, waits_for=busy((2, 5)))
    assert meter.energy_j(10)["cpu"] == 12 + 8 + 6


def test_resources_of_one_component_count_once_where_they_overlap() -> None:
    # 1 to 6 and 8 to 9
    meter = EnergyMeter()
    meter.add("cpu", 0, 10, busy((1, 3), (5, 6)), busy((2, 5), (8, 9)), busy((2, 2.5)))
    assert meter.energy_j(10)["cpu"] == 60


def test_work_under_way_counts_as_far_as_it_came() -> None:
    # copying from 0 to 4; asked at 2.5
    env = simpy.Environment()
    copies = CopyQueue(env, bytes_per_s=25, latency_s=0, tell=lambda _: None)
    meter = EnergyMeter()
    meter.add("copy", 1, 11, copies.busy)
    copies.copy(100)
    env.run(until=2.5)
    assert meter.energy_j(env.now)["copy"] == pytest.approx(27.5)
    env.run(until=6)
    assert meter.energy_j(env.now)["copy"] == pytest.approx(44 + 2)

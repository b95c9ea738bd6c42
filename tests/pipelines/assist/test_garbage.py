"""Requests of many devices leave nothing behind that only a search for cycles would find."""

import gc

from kvferry.backends.sim.seldom_collected import SELDOM_COLLECTED
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario


def test_a_request_leaves_no_garbage_in_circles() -> None:
    """Between two reports of 64 requests each, fewer than one object a request: with thousands of devices Python would
    look through all that is under way to find them."""
    found: list[int] = []
    settings = ["workload.devices=50", "workload.duration=30 min"]
    gc.disable()
    try:
        run_scenario(load_scenario("pd_device/many", settings), lambda done, of: found.append(gc.collect()))
    finally:
        gc.enable()
    assert len(found) > 1
    assert max(found[1:]) < 64


def test_the_interpreter_looks_for_cycles_as_before_behind_a_run() -> None:
    before, within = gc.get_threshold(), list[tuple[int, int, int]]()
    run_scenario(
        load_scenario("pd_device/many", ["workload.devices=20", "workload.requests=64", "workload.duration=null"]),
        lambda done, of: within.append(gc.get_threshold()),
    )
    assert within and within[0][2] > before[2]
    assert gc.get_threshold() == before


def test_worlds_inside_one_another_set_it_back_whichever_ends_first() -> None:
    before = gc.get_threshold()
    SELDOM_COLLECTED.__enter__()
    within = gc.get_threshold()
    SELDOM_COLLECTED.__enter__()
    assert gc.get_threshold() == within  # and no factor of a factor
    SELDOM_COLLECTED.__exit__()
    assert gc.get_threshold() == within
    SELDOM_COLLECTED.__exit__()
    assert gc.get_threshold() == before

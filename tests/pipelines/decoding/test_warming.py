"""Decoding on a device that warms up: no short cut pretends that it stays cool, and the run says what it did."""

import json
from typing import Any

import pytest
from tiny import DECODING, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.timeline import chrome_trace
from kvferry.pipelines.decoding.warming import ALL_DECODED, check_whole
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# It warms by some K while a few tokens are decoded, and its clock falls soon.
HEAT: dict[str, Any] = {
    "capacity_j_per_k": "0.002 J/K",
    "resistance_k_per_w": "4 K/W",
    "throttle_from_c": "30 C",
    "throttle_to_c": "60 C",
    "least_clock": 0.25,
    "look_s": "1 ms",
}
NEVER = {**HEAT, "throttle_from_c": "199 C", "throttle_to_c": "200 C"}


def decoding(heat: dict[str, Any] | None, **workload: Any) -> Scenario:
    storage = {**DECODING["device"]["storage"], "active_w": "2 W"}
    device = {**DECODING["device"], "storage": storage, "battery": {"capacity_j": "1 Wh"}}
    return tiny(DECODING, device=device if heat is None else {**device, "heat": heat}, workload=workload)


def test_a_device_that_warms_up_and_never_throttles_decodes_as_one_without_heat() -> None:
    """The one by events, the other by arithmetic."""
    cool, warm = run_scenario(decoding(None)), run_scenario(decoding(NEVER))
    assert warm.requests[0].token_times_s == pytest.approx(cool.requests[0].token_times_s)
    assert warm.energy_j == pytest.approx(cool.energy_j)
    assert warm.warmth is not None
    assert max(warm.warmth.temperatures_c) > 26
    assert cool.warmth is None


def test_a_hot_device_is_slower_draws_less_and_says_since_when() -> None:
    scenario = decoding(HEAT)
    run = run_scenario(scenario)
    cool = metrics_for(decoding(None), run_scenario(decoding(None)))
    hot = metrics_for(scenario, run)
    assert hot["tpot_s"] > 1.05 * cool["tpot_s"]
    # Ops take as much as they do anyway, and idle power for longer.
    assert hot["energy_gpu_j"] == pytest.approx(cool["energy_gpu_j"], rel=0.1)
    assert 0 < hot["first_throttled_s"] < hot["throttled_s"] + hot["first_throttled_s"] <= run.duration_s * 1.0001
    assert 0.25 <= hot["least_clock"] < 1
    assert 30 < hot["temperature_max_c"] < 60
    assert hot["battery_percent_per_request"] == pytest.approx(100 * hot["energy_j"] / 3600)
    assert not cool.keys() & {"least_clock", "throttled_s", "first_throttled_s", "temperature_max_c"}


def test_no_token_is_skipped() -> None:
    part, whole = run_scenario(decoding(HEAT, decoded=4)), run_scenario(decoding(HEAT))
    assert part.requests[0].token_times_s == whole.requests[0].token_times_s
    assert ALL_DECODED in part.notes
    assert ALL_DECODED not in whole.notes
    # As many as there are is not fewer.
    output = decoding(HEAT).decode.workload.output
    assert ALL_DECODED not in run_scenario(decoding(HEAT, decoded=output)).notes


def test_more_than_can_be_decoded_token_by_token_is_refused() -> None:
    # Without heat a few tokens stand for all.
    with pytest.raises(InputError, match=r"workload.output: tiny warms up, so every token is decoded.*device.heat"):
        check_whole(decoding(HEAT, output=1_000_000, decoded=4))


def test_the_timeline_counts_temperature_and_clock() -> None:
    run = run_scenario(decoding(HEAT))
    assert run.warmth is not None
    counters = [event for event in json.loads(chrome_trace(run))["traceEvents"] if event["ph"] == "C"]
    clocks = [event["args"]["%"] for event in counters if event["name"] == "clock"]
    assert clocks == pytest.approx([100 * clock for clock in run.warmth.clocks], abs=1e-6)
    assert max(event["args"]["C"] for event in counters if event["name"] == "temperature") > 30

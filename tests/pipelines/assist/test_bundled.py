"""The bundled scenario: what crosses its link, and what its phone's window holds."""

import re

import pytest

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario


def test_what_goes_up_is_counted_beside_what_comes_down() -> None:
    """A prompt of so many bytes per token goes up; the first token with its mask and those that follow come down."""
    found = load_scenario("pd_device/assist", ["workload.output=8"])
    figures = metrics_for(found, run_scenario(found))
    workload = found.assist.workload
    assert figures["uplink_bytes"] == 8192 * workload.handling.prompt_token_bytes
    assert figures["link_bytes"] < figures["uplink_bytes"]


def test_a_long_answer_is_decoded_within_the_window() -> None:
    """Behind the window's end every token costs what the one at its end does."""
    paces = [
        metrics_for(found, run_scenario(found))["tpot_s"]
        for output in (5_000, 50_000)
        for found in [load_scenario("pd_device/assist", ["system=device-only", f"workload.output={output}"])]
    ]
    assert paces[1] == pytest.approx(paces[0], rel=1e-6)


def test_a_part_of_the_cloud_needs_no_name() -> None:
    found = load_scenario("pd_device/assist", ["policies.serving.slots=1"])
    assert run_scenario(found).outcome == "done"


def test_a_prompt_that_takes_the_cloud_minutes_is_waited_for() -> None:
    """The plan expects more than a minute of the cloud, and is kept to."""
    found = load_scenario("pd_device/assist", ["workload.prompt=200000", "workload.output=8"])
    run = run_scenario(found)
    figures = metrics_for(found, run)
    assert 60 < figures["ttft_s"] < 120
    assert figures["assisted_share"] == 1
    assert not [note for note in run.notes if "without" in note]


def test_a_share_that_the_window_does_not_hold_is_noted() -> None:
    found = load_scenario("pd_device/assist", ["workload.least_ratio=1.0", "workload.output=8"])
    (note,) = run_scenario(found).notes
    assert note.startswith(
        "workload.least_ratio of 1 is not kept for every prompt: the device's window holds 2,560 of 8,192"
    )


def test_a_promise_beyond_the_tolerated_pace_is_noted_with_what_keeps_it() -> None:
    """Loading the model takes longer than the mask and the prefill of a short prompt, and P does not count it."""

    def found(*settings: str) -> tuple[float, list[str]]:
        scenario = load_scenario("pd_device/assist", ["workload.prompt=512", *settings])
        run = run_scenario(scenario)
        notes = [note for note in run.notes if "tau" in note]
        return metrics_for(scenario, run)["promised_tpot_s"], notes

    pace_s, (note,) = found()
    assert pace_s > 0.2
    assert note.startswith(
        "1 of 1 requests are promised a pace beyond tau = 100 ms, of 254 ms at most (prompt of 512); "
    )
    assert "workload.resident=true" in note
    (tokens,) = re.findall(r"policies\.assist\.tokens=(\d+)", note)
    kept_s, none = found(f"policies.assist.tokens={tokens}")
    less_s, still = found(f"policies.assist.tokens={int(tokens) - 1}")
    assert kept_s <= 0.1 < less_s and none == [] and len(still) == 1
    resident_s, none = found("workload.resident=true")
    assert resident_s <= 0.1 and none == []


def test_gaps_beyond_the_promise_are_counted() -> None:
    """Under the paper's smoothing the stream stalls once, in every answer; by default in none, which is not said."""
    for smoothing, uneven in (("paper", 1.0), ("causal", None)):
        found = load_scenario("pd_device/assist", [f"policies.assist.smoothing={smoothing}"])
        assert metrics_for(found, run_scenario(found)).get("uneven_share") == uneven

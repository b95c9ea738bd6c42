"""The bundled scenario: what crosses its link, and what its phone's window holds."""

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

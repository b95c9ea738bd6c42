"""Prompts that are prefilled in one pass, on paper: a token of a prompt takes 0.1 ms in the cloud (test_by_hand.py)."""

from collections.abc import Iterator
from typing import Any

import pytest
from assisted import APART, columns, ran
from by_hand import by_hand

from kvferry.machine.ops import Prefill
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.costs.cost_model import main_costs

SETTING = "policies.assist={tokens: 1, ratio: 0.5}"


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def prefilled_s(devices: int, **serving: Any) -> list[float]:
    """When the cloud's prefill of each request ended, behind the first one's beginning."""
    said = ", ".join(f"{key}: {value}" for key, value in serving.items())
    run = ran(
        SETTING,
        f"policies.serving={{name: slots, {said}}}",
        workload={"devices": devices, "prompt": 200},
        machines=APART,
    )
    return sorted(columns(run)["cloud_prefill_s"])


def test_what_waits_goes_together() -> None:
    # The first of four prompts of 200 tokens begins alone, as nothing waits yet; the other three share a pass.
    assert prefilled_s(4, batched_prefill="false") == pytest.approx([0.020, 0.040, 0.060, 0.080])
    assert prefilled_s(4, batched_prefill="true") == pytest.approx([0.020, 0.080, 0.080, 0.080])


def test_as_far_as_a_pass_goes() -> None:
    # Two prompts to a pass of 400 tokens; the fourth goes by itself.
    found = prefilled_s(4, batched_prefill="true", alone_tokens=400)
    assert found == pytest.approx([0.020, 0.060, 0.060, 0.080])


def test_weights_are_read_once() -> None:
    """Short prompts are bound by reading weights: four in one pass take less than four passes, and no less than one."""
    costs = main_costs("roofline", load_device("rtx-4060"), load_model("llama-3.1-8b"))
    one, four = (costs.cost(Prefill(8, 0, batch=n)) for n in (1, 4))
    assert one.duration_s <= four.duration_s < 1.5 * one.duration_s
    assert four.n_bytes < 1.5 * one.n_bytes

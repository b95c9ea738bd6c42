"""Prefill and decoding apart: when a slot is taken, and whose memory holds KV until then. Times as in test_by_hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from assisted import APART, BY_HAND, CLOUD, columns, ran
from by_hand import by_hand
from held import engine_bytes
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tiny import changed, tiny

from kvferry.analysis.reproduction.measurements import cloud_gain, cloud_gain_at_equal_machines
from kvferry.pipelines.assist.cloud import Cloud
from kvferry.pipelines.run import run_scenario
from kvferry.traces.assisted import assisted_requests

ONE_SLOT = "policies.serving={name: slots, slots: 1}"
KV_BYTES = tiny(BY_HAND).model.kv_bytes_per_token
# The tiny device's, of which all instances are: weights, activations and logits.
ENGINE_BYTES = engine_bytes(tiny(BY_HAND))


@pytest.fixture(autouse=True, scope="module")
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def with_memory(name: str, tokens: int, held_bytes: int = ENGINE_BYTES) -> dict[str, Any]:
    """The machines, of which one has room for the KV of so many tokens."""
    capacity = {"memory": {"capacity_bytes": f"{held_bytes + tokens * KV_BYTES} B"}}
    return {**APART, name: {**CLOUD, "device": {**CLOUD["device"], **capacity}}}  # type: ignore[dict-item]


def test_a_slot_is_taken_when_the_kv_is_there() -> None:
    # Two devices ask at once; both prompts are taken in at 39 ms, and prefilled until 139 and 239. The first is refined
    # by 159, and the 14 tokens behind its first one are there at 299: only then does the second get the slot, which it
    # has waited 60 ms for. It was refined meanwhile.
    run = ran(
        "policies.assist={tokens: 15, ratio: 0.25}", ONE_SLOT,
        workload={"devices": 2, "output": 30}, machines=APART,
    )  # fmt: skip
    got = columns(run)
    assert sorted(got["cloud_prefill_s"]) == pytest.approx([0.100, 0.200])
    assert sorted(got["waited_s"]) == pytest.approx([0.0, 0.060])
    assert sorted(got["refined_s"]) == pytest.approx([0.0, 0.020])
    # Prepared, sent and taken in by 39 ms, half a round trip back, and the response's own time.
    answered_s = [one - 0.010 - 1e-6 * n for one, n in zip(got["first_s"], got["response_bytes"], strict=True)]
    assert sorted(answered_s) == pytest.approx([0.159, 0.299])
    assert run.assisted is not None
    # Held from 139 to 299, and from 299 to 439 ms.
    assert run.assisted.cloud["cloud_latency_s"] == pytest.approx((0.160 + 0.140) / 2)


def test_with_slots_enough_nobody_waits_and_prefill_holds_none() -> None:
    # The second prompt's KV is there at 239 ms, and the first request's four tokens at 199.
    run = ran(
        "policies.assist={tokens: 5, ratio: 0.25}", ONE_SLOT,
        workload={"devices": 2}, machines=APART,
    )  # fmt: skip
    assert columns(run)["waited_s"] == pytest.approx([0.0, 0.0])
    assert run.assisted is not None
    assert run.assisted.cloud["cloud_latency_s"] == pytest.approx(0.020 + 4 * 0.010)


def test_a_first_token_alone_is_answered_without_an_instance_that_decodes() -> None:
    # One that decodes has no room for any request.
    run = ran(
        "policies.assist={tokens: 1, ratio: 0.25}",
        workload={"devices": 3}, machines=with_memory("decode", 10),
    )  # fmt: skip
    got = columns(run)
    assert got["lost"] == [0, 0, 0]
    assert sorted(got["cloud_prefill_s"]) == pytest.approx([0.1, 0.2, 0.3])
    assert run.machines["decode"].memory_peak_bytes == ENGINE_BYTES


def test_kv_that_waits_for_a_slot_is_in_the_memory_of_the_instance_that_has_made_it() -> None:
    # Room for two prompts: the third one's prefill begins when the second one's KV moves, as the first request's last
    # token is there at 299 ms.
    run = ran(
        "policies.assist={tokens: 15, ratio: 0.25}", ONE_SLOT,
        workload={"devices": 3, "output": 30}, machines=with_memory("prefill", 1999),
    )  # fmt: skip
    # The second one's prefill begins when the first one's KV has moved, at once, and the third one's at 299 ms.
    assert sorted(columns(run)["cloud_prefill_s"]) == pytest.approx([0.100, 0.200, 0.299 + 0.100 - 0.039])
    assert run.machines["prefill"].memory_peak_bytes == ENGINE_BYTES + 1000 * KV_BYTES
    roomy = ran(
        "policies.assist={tokens: 15, ratio: 0.25}", ONE_SLOT,
        workload={"devices": 3, "output": 30}, machines=APART,
    )  # fmt: skip
    assert sorted(columns(roomy)["cloud_prefill_s"]) == pytest.approx([0.100, 0.200, 0.300])
    assert roomy.machines["prefill"].memory_peak_bytes == ENGINE_BYTES + 2000 * KV_BYTES


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_a_prompt_that_fits_no_memory_is_told(name: str) -> None:
    run = run_scenario(tiny(changed(BY_HAND, machines=with_memory(name, 999))))
    assert run.outcome == "out_of_memory"
    assert "an instance of the cloud: kv needs" in run.why


def test_a_gain_at_equal_numbers_shares_machines_out_anew_and_leaves_out_who_gives_up() -> None:
    # Four machines: with 10 tokens of 10 ms behind 100 ms of prefill all but one prefill, with 200 two at most.
    machines = {"cloud": None, "prefill": {**CLOUD, "count": 3}, "decode": CLOUD}
    workload = {"devices": 24, "output": 200}
    scenario = tiny(
        changed(BY_HAND, machines=machines, workload=workload),
        "policies.assist={tokens: 10, ratio: 0.25}", "policies.serving={name: slots, slots: 2}",
    )  # fmt: skip
    fixed, shared = cloud_gain(scenario), cloud_gain_at_equal_machines(scenario)
    assert shared["prefilling"] > shared["with_200_prefilling"] >= 1
    for name in ("cloud_throughput_requests_per_s", "with_200_requests_per_s"):
        assert shared[name] >= fixed[name]
    assert shared["cloud_throughput_gain"] < fixed["cloud_throughput_gain"]


@contextmanager
def watched() -> Iterator[list[Cloud]]:
    """The clouds that are made meanwhile."""
    made: list[Cloud] = []
    really = Cloud.__init__

    def init(cloud: Cloud, *args: Any, **more: Any) -> None:
        really(cloud, *args, **more)
        made.append(cloud)

    with patch.object(Cloud, "__init__", init):
        yield made


@settings(max_examples=25, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    seed=st.integers(0, 1000),
    slots=st.integers(1, 3),
    instances=st.integers(1, 2),
    spare=st.integers(0, 2000),
    tokens=st.sampled_from(["auto", 1, 20]),
    system=st.sampled_from(["pd-device", "cloud-only", "speculative-edge"]),
    patience_s=st.sampled_from([0.2, 1.0, 60.0]),
    apart=st.booleans(),
)
def test_all_is_given_back_whatever_memory_slots_and_patience(
    seed: int, slots: int, instances: int, spare: int, tokens: Any, system: str, patience_s: float, apart: bool
) -> None:
    workload = {"devices": 6, "requests": 18, "arrivals": {"rate": "1200 requests/hour"}, "spread": 0.6}
    scenario = tiny(changed(BY_HAND, workload=workload))
    asked, held_bytes = assisted_requests(scenario.assist.workload, seed), engine_bytes(scenario)
    name, helped = "prefill" if apart else "cloud", system == "pd-device"
    room = with_memory(name, int((asked.prompts + asked.outputs).max()) + spare, held_bytes)[name] | {
        "count": instances
    }
    with watched() as clouds:
        run = ran(
            f"policies.serving={{name: slots, slots: {slots}, chunk_tokens: 256, alone_tokens: 300}}",
            f"policies.assist={{{f'tokens: {tokens}, ' if helped else ''}patience: {patience_s} s}}",
            seed=seed, system=system, workload=workload, machines={**APART, name: room} if apart else {"cloud": room},
        )  # fmt: skip
    # Every answer is whole, whatever became of it in the cloud; nothing there waits for ever, and it holds nothing.
    assert [len(one.token_times_s) for one in run.requests] == asked.outputs.tolist()
    (cloud,) = clouds
    # What is under way for a device that has just gone comes to its end.
    cloud.front.env.run()
    assert not any(cloud.admission.slots.held)
    for instance in {*cloud.prefilling, *cloud.decoding}:
        in_hand = instance.holders.n, instance.holders._tokens, instance.turns._context, instance.prefilling
        assert in_hand == (0, 0, 0, 0)
        assert (instance.kv.is_used, instance.machine.memory.used_bytes) == (False, held_bytes)

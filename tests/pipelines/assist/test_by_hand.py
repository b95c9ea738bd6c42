"""One device, one cloud, one request: every time on paper.

The device prefills a token in 1 ms and decodes one in 20 ms, the cloud in 0.1 ms and 10 ms. The link carries 1 MB/s
either way, with a round trip of 20 ms.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from by_hand import by_hand
from tiny import changed, tiny

from kvferry.pipelines.record import Assisted, Run
from kvferry.pipelines.run import run_scenario

CLOUD = {"device": {"extends": "tiny", "processors": {"gpu": {"kind": "npu"}}}, "model": "tiny"}
ASSIST: dict[str, Any] = {
    "name": "by-hand",
    "system": "pd-device",
    "device": "tiny",
    "model": "tiny",
    "link": {"rate": "1 MB/s", "rtt": "20 ms"},
    "costs": "by-hand",
    "machines": {"cloud": CLOUD},
    "workload": {
        "kind": "assist",
        "prompt": 1000,
        "output": 10,
        "handling": {
            "prepare": "20 ms",
            "forward": "5 ms",
            "refine_token": "20 us",
            "unpack_token": "10 us",
            "prompt_token": "4 B",
            "answer_token": "100 B",
            "response": "1000 B",
        },
    },
}


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def ran(*overrides: str, **changes: Any) -> Run:
    run = run_scenario(tiny(changed(ASSIST, **changes), *overrides))
    assert run.outcome == "done", run.why
    return run


def columns(run: Run) -> Any:
    assert isinstance(run.assisted, Assisted)
    return {name: column.tolist() for name, column in run.assisted.columns.items()}


def test_a_prompt_that_is_refined_and_tokens_that_cover_its_prefill() -> None:
    run = ran("policies.assist={name: optimised, tokens: 5, ratio: 0.25}")
    (one,) = run.requests
    got = {name: values[0] for name, values in columns(run).items()}
    # 20 ms of preparing, 4 kB up, half a round trip; forwarded in 5 ms, prefilled in 100, refined in 20.
    answered_s = 0.020 + 0.004 + 0.010 + 0.005 + 0.100 + 0.020
    # The response crosses at 1 MB/s behind another half.
    first_s = answered_s + 0.010 + got["response_bytes"] * 1e-6
    assert 1100 < got["response_bytes"] < 1400
    assert one.first_token_s == pytest.approx(first_s)
    # Unpacked in 10 ms; 250 tokens are prefilled in 250.
    own_s = first_s + 0.010 + 0.250
    assert got["own_first_s"] == pytest.approx(own_s)
    # 260 ms are spread over 4 tokens, beside the device's own 20 ms each.
    assert got["pace_s"] == pytest.approx(0.020 + 0.260 / 4)
    # From the sixth on, tokens are its own: it has decoded through the five.
    shown_s = [first_s + 0.085 * n for n in range(5)] + [own_s + 0.020 * n for n in range(5, 10)]
    assert one.token_times_s == pytest.approx(shown_s)
    assert got["largest_gap_s"] == pytest.approx(0.085)


def test_under_the_papers_smoothing_the_stream_stalls() -> None:
    # Eq. 4 spreads prefill(rl) - TTFT_c, as though prefill had begun when the request was sent.
    run = ran("policies.assist={name: optimised, tokens: 5, ratio: 0.25, smoothing: paper}")
    got = {name: values[0] for name, values in columns(run).items()}
    ttft_c_s = got["answered_s"]
    assert got["pace_s"] == pytest.approx(0.020 + (0.250 - ttft_c_s) / 4)
    # The last token from the cloud is shown, and the device's next is not there yet.
    stall_s = (got["own_first_s"] + 5 * 0.020) - (got["first_s"] + 4 * got["pace_s"])
    assert got["largest_gap_s"] == pytest.approx(stall_s)
    assert got["largest_gap_s"] > 1.5 * got["pace_s"]


def test_as_problem_p_has_it() -> None:
    # r is the least that quality allows, 0.25; 260 ms over at most 100 - 20 ms each take 4 tokens behind the first.
    got = {name: values[0] for name, values in columns(ran()).items()}
    assert (got["ratio"], got["tokens"]) == (0.25, 5)


def test_the_beginning_is_prefilled_while_the_cloud_works() -> None:
    run = ran("policies.assist={name: optimised, tokens: 5, ratio: 0.25}", workload={"beginning": 50})
    got = {name: values[0] for name, values in columns(run).items()}
    # Of 250 tokens, 50 are done long before the mask comes.
    assert got["own_first_s"] == pytest.approx(got["first_s"] + 0.010 + 0.200)


def test_alone() -> None:
    run = ran(system="device-only")
    (one,) = run.requests
    assert one.first_token_s == pytest.approx(1.0)
    assert one.token_times_s == pytest.approx([1.0 + 0.020 * n for n in range(10)])


def test_by_the_cloud_alone() -> None:
    run = ran(system="cloud-only")
    (one,) = run.requests
    # No mask: neither made nor sent. A response of 1,100 B, then tokens of 100 B, one every 10 ms.
    first_s = 0.020 + 0.004 + 0.010 + 0.005 + 0.100 + 0.010 + 0.0011
    assert one.first_token_s == pytest.approx(first_s)
    sent_s = 0.139
    arrivals_s = [sent_s + 0.010 * n + 0.010 + 0.0001 for n in range(1, 10)]
    assert one.token_times_s == pytest.approx([first_s, *arrivals_s])


def test_without_refinement_the_device_prefills_at_once() -> None:
    run = ran("policies.assist={name: optimised, tokens: 11, ratio: 1.0}", workload={"output": 20})
    got = {name: values[0] for name, values in columns(run).items()}
    assert got["own_first_s"] == pytest.approx(0.020 + 1.000)
    assert got["pace_s"] == pytest.approx(0.020 + (got["own_first_s"] - got["first_s"]) / 10)


def test_a_prompt_that_may_not_leave_is_answered_here() -> None:
    run = ran(workload={"privacy": "stays"})
    assert run.requests[0].first_token_s == pytest.approx(1.0)
    assert run.tally.bytes_of("uplink") == 0
    assert "prompts stay on the device" in run.notes[0]


def test_a_slot_that_is_held_makes_the_next_wait() -> None:
    # Two devices and one slot: the second prompt is prefilled when the first request's last token is there.
    run = ran(
        "policies.assist={name: optimised, tokens: 5, ratio: 0.25}",
        "policies.serving={name: slots, slots: 1}",
        workload={"devices": 2},
    )
    waited_s = sorted(columns(run)["waited_s"])
    # Prefill, refinement and four tokens of 10 ms.
    assert waited_s == pytest.approx([0.0, 0.100 + 0.020 + 4 * 0.010])
    assert run.assisted is not None
    assert 0 < run.assisted.cloud["slot_occupancy"] < 1


def test_prefill_and_decoding_apart() -> None:
    # The tiny device copies at no cost where its memory is unified: KV of 1,000 tokens moves in no time.
    apart = ran(
        "policies.assist={name: optimised, tokens: 5, ratio: 0.25}",
        machines={"cloud": None, "prefill": CLOUD, "decode": CLOUD},
    )
    joint = ran("policies.assist={name: optimised, tokens: 5, ratio: 0.25}")
    np.testing.assert_allclose(apart.requests[0].token_times_s, joint.requests[0].token_times_s)
    resources = {resource for resource, _ in apart.tally.busy_s}
    assert {"prefill/gpu", "decode/gpu"} <= resources

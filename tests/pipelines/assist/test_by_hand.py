"""One device, one cloud, one request: every time on paper.

The device prefills a token in 1 ms and decodes one in 20 ms, the cloud in 0.1 ms and 10 ms. The link carries 1 MB/s
either way, with a round trip of 20 ms.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from assisted import APART, BY_HAND, CLOUD, columns, only, ran
from by_hand import ByHand, by_hand
from held import engine_bytes
from tiny import ASSISTED, changed, tiny

from kvferry.machine.ops import Op, Prefill
from kvferry.pipelines.assist.estimates import Estimates
from kvferry.pipelines.run import run_scenario
from kvferry.sim.cost import Cost


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def test_a_prompt_that_is_refined_and_tokens_that_cover_its_prefill() -> None:
    run = ran("policies.assist={tokens: 5, ratio: 0.25}")
    (one,) = run.requests
    got = only(run)
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


def test_a_mask_behind_the_first_token_which_does_not_wait_for_it() -> None:
    run = ran("policies.assist={tokens: 5, ratio: 0.25, mask: behind-token}")
    (one,) = run.requests
    got = only(run)
    # Prefilled after 139 ms; a first response of 1,100 B crosses behind half a round trip.
    first_s = 0.020 + 0.004 + 0.010 + 0.005 + 0.100 + 0.010 + 0.0011
    assert one.first_token_s == pytest.approx(first_s)
    # Refined 20 ms later; the mask weighs some 100 B, with 100 B of a frame of its own.
    mask_s = 0.159 + 0.010 + (got["response_bytes"] - 1100) * 1e-6
    assert 150 < got["response_bytes"] - 1100 < 300
    # Unpacked in 10 ms; 250 tokens are prefilled in 250.
    own_s = mask_s + 0.010 + 0.250
    assert got["own_first_s"] == pytest.approx(own_s)
    # The device does not know that yet: it expects its own behind 20 ms of refining, the mask on its way, and 260.
    pace_s = 0.020 + (0.020 + (got["response_bytes"] - 1100) * 1e-6 + 0.260) / 4
    assert got["pace_s"] == pytest.approx(pace_s)
    # The first response's own 1.1 ms are over when it looks, so that the mask is sooner by these.
    assert first_s + 4 * (pace_s - 0.020) == pytest.approx(own_s + 0.0011)
    shown_s = [first_s + pace_s * n for n in range(5)] + [own_s + 0.020 * n for n in range(5, 10)]
    assert one.token_times_s == pytest.approx(shown_s)
    # The cloud decodes from the first token on, and is done with refining when the device hears of it.
    assert run.assisted is not None
    assert run.assisted.cloud["cloud_latency_s"] == pytest.approx(0.100 + 4 * 0.010)
    assert got["refined_s"] == pytest.approx(0.020)


def test_as_problem_p_has_it_where_the_mask_comes_behind() -> None:
    # 200 ms of refining, 0.2 of sending it and 260 over at most 100 - 20 ms each take 6 tokens behind the first.
    handling = {**BY_HAND["workload"]["handling"], "refine_token": "200 us"}
    got = only(ran("policies.assist={mask: behind-token}", workload={"handling": handling}))
    assert (got["ratio"], got["tokens"]) == (0.25, 7)


def test_no_token_waits_for_a_mask_that_takes_long() -> None:
    # 200 us for each of 1,000 tokens: refined by 339 ms. The cloud's nine tokens are there by 219.
    handling = {**BY_HAND["workload"]["handling"], "refine_token": "200 us"}
    help_ = "policies.assist={tokens: 9, ratio: 0.25, mask: behind-token}"
    run = ran(help_, workload={"handling": handling, "output": 20})
    got, (one,) = only(run), run.requests
    first_s, sent_s = 0.1501, (got["response_bytes"] - 1100) * 1e-6
    # 200 ms of refining, the mask on its way, 10 of unpacking and 250 of prefill over eight tokens of 20 ms.
    pace_s = 0.020 + (0.200 + sent_s + 0.260) / 8
    assert got["pace_s"] == pytest.approx(pace_s)
    own_s = 0.339 + 0.010 + sent_s + 0.260
    assert got["own_first_s"] == pytest.approx(own_s)
    shown_s = [first_s + pace_s * n for n in range(9)] + [own_s + 0.020 * n for n in range(9, 20)]
    assert one.token_times_s == pytest.approx(shown_s)
    assert got["largest_gap_s"] == pytest.approx(pace_s)


def test_a_mask_that_is_late_slows_down_what_is_left_of_the_clouds_tokens() -> None:
    # From 155 ms on nothing crosses for 0.3 s: behind the first token, which is there at 150.1. All that was sent
    # meanwhile comes at 455 ms: a token of 100 B, then the mask.
    run = ran(
        "policies.assist={tokens: 9, ratio: 0.25, mask: behind-token, patience: 5 s}",
        workload={"output": 20},
        link={"outages": [{"start": "155 ms", "duration": "300 ms"}]},
    )
    got, (one,) = only(run), run.requests
    first_s, sent_s = 0.1501, (got["response_bytes"] - 1100) * 1e-6
    # Promised as though nothing were late: 280 ms over eight tokens, by the link's mean rate.
    promised_s = got["pace_s"]
    assert promised_s == pytest.approx(0.020 + (0.020 + sent_s + 0.260) / 8, abs=1e-5)
    unpacked_s = got["unpacked_s"] + first_s
    assert 0.465 < unpacked_s < 0.470
    own_s = unpacked_s + 0.250
    assert got["own_first_s"] == pytest.approx(own_s)
    # By then six were due, the second at 205 ms: they are there at 455. The seventh of nine is next, at 480 ms: it and
    # the two behind it cover what is left.
    place, before_s = 6, first_s + 5 * promised_s
    assert before_s < unpacked_s < before_s + promised_s
    pace_s = 0.020 + (own_s + 5 * 0.020 - before_s) / 3
    assert one.token_times_s[1] == pytest.approx(0.455, abs=2e-3)
    assert one.token_times_s[place:9] == pytest.approx([before_s + pace_s * n for n in (1, 2, 3)])
    assert one.token_times_s[9:] == pytest.approx([own_s + 0.020 * n for n in range(9, 20)])


def test_under_the_papers_smoothing_the_stream_stalls() -> None:
    # Eq. 4 spreads prefill(rl) - TTFT_c, as though prefill had begun when the request was sent.
    run = ran("policies.assist={tokens: 5, ratio: 0.25, smoothing: paper}")
    got = only(run)
    ttft_c_s = got["answered_s"]
    assert got["pace_s"] == pytest.approx(0.020 + (0.250 - ttft_c_s) / 4)
    # The last token from the cloud is shown, and the device's next is not there yet.
    stall_s = (got["own_first_s"] + 5 * 0.020) - (got["first_s"] + 4 * got["pace_s"])
    assert got["largest_gap_s"] == pytest.approx(stall_s)
    assert got["largest_gap_s"] > 1.5 * got["pace_s"]


def test_a_device_that_takes_the_clouds_tokens_in_one_pass() -> None:
    run = ran("policies.assist={tokens: 5, ratio: 0.25, catch_up: prefill}")
    (one,) = run.requests
    got = only(run)
    # All five are there when 260 ms are over. Four are taken in within 4 ms; the fifth is read in a step of 20.
    assert got["own_first_s"] == pytest.approx(got["first_s"] + 0.260)
    assert got["pace_s"] == pytest.approx((0.260 + 0.004 + 0.020) / 5)
    own_s = got["own_first_s"] + 0.004
    shown_s = [got["first_s"] + got["pace_s"] * n for n in range(5)] + [own_s + 0.020 * n for n in range(1, 6)]
    assert one.token_times_s == pytest.approx(shown_s)


def test_one_pass_needs_fewer_tokens() -> None:
    # (260 + 3 + 20 ms) / L stay below 100 ms with three tokens, where Eq. 4 takes five.
    run = ran("policies.assist={catch_up: prefill}")
    assert (only(run)["ratio"], only(run)["tokens"]) == (0.25, 3)
    assert only(run)["largest_gap_s"] == pytest.approx((0.260 + 0.002 + 0.020) / 3)


def test_tokens_that_are_not_there_yet_are_decoded_through() -> None:
    # The cloud's last of thirty comes 290 ms behind the first, the device's own first token 260 ms.
    both = [
        ran(f"policies.assist={{tokens: 30, ratio: 0.25, catch_up: {how}}}", workload={"output": 40})
        for how in ("prefill", "decode")
    ]
    assert both[0].requests[0].token_times_s[30:] == both[1].requests[0].token_times_s[30:]


def test_as_problem_p_has_it() -> None:
    # r is the least that quality allows, 0.25; 260 ms over at most 100 - 20 ms each take 4 tokens behind the first.
    got = only(ran())
    assert (got["ratio"], got["tokens"]) == (0.25, 5)


def test_the_beginning_is_prefilled_while_the_cloud_works() -> None:
    run = ran("policies.assist={tokens: 5, ratio: 0.25}", workload={"beginning": 50})
    got = only(run)
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
    run = ran("policies.assist={tokens: 11, ratio: 1.0}", workload={"output": 20})
    got = only(run)
    assert got["own_first_s"] == pytest.approx(0.020 + 1.000)
    assert got["pace_s"] == pytest.approx(0.020 + (got["own_first_s"] - got["first_s"]) / 10)


def test_a_prompt_that_may_not_leave_is_answered_here() -> None:
    run = ran(workload={"privacy": "stays"})
    assert run.requests[0].first_token_s == pytest.approx(1.0)
    assert run.tally.bytes_of("uplink") == 0
    assert "prompts stay on the device" in run.notes[0]


def test_drafts_that_the_cloud_looks_at() -> None:
    # Of five drafted tokens three stand (2.2.1): 10 tokens are the first and three rounds.
    run = ran("policies.assist={draft: 5, accepted: 0.6}", system="speculative-edge")
    (one,) = run.requests
    # The device's own prefill, beside what it asks.
    first_s = 0.020 + 1.0
    assert one.first_token_s == pytest.approx(first_s)
    # Drafted at 20 ms each; up with 100 B each; five tokens of prefill in the cloud; down with 100 B.
    round_s = 5 * 0.020 + 500e-6 + 0.010 + 5 * 0.1e-3 + 0.010 + 100e-6
    shown_s = [first_s] + [first_s + n * round_s for n in (1, 2, 3) for _ in range(3)]
    assert len(one.token_times_s) == 10
    assert one.token_times_s[:7] == pytest.approx(shown_s[:7])
    # The cloud is not rid of the request before the device is.
    assert run.assisted is not None
    assert run.assisted.cloud["cloud_latency_s"] == pytest.approx(one.token_times_s[-1] + 0.010 - 0.039, abs=1e-3)


def test_each_round_of_drafts_is_looked_at_behind_what_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[float, float]] = []
    price = ByHand.cost

    def noted(self: ByHand, op: Op) -> Cost:
        if isinstance(op, Prefill) and op.tokens <= 5:
            looked.append((float(op.tokens), float(op.context_tokens)))
        return price(self, op)

    monkeypatch.setattr(ByHand, "cost", noted)
    ran("policies.assist={draft: 5, accepted: 0.6}", system="speculative-edge")
    # Behind the prompt, the device's own first token, and what stands: 3 of 5, 6 of 10, 7 of 13 in whole tokens.
    assert looked == [(5, 1001), (5, 1004), (3, 1007), (2, 1008)]


def test_a_slot_that_is_held_makes_the_next_wait() -> None:
    # Two devices and one slot: the second prompt is prefilled when the first request's last token is there.
    run = ran(
        "policies.assist={tokens: 5, ratio: 0.25}",
        "policies.serving={name: slots, slots: 1}",
        workload={"devices": 2},
    )
    waited_s = sorted(columns(run)["waited_s"])
    # Prefill, refinement and four tokens of 10 ms.
    assert waited_s == pytest.approx([0.0, 0.100 + 0.020 + 4 * 0.010])
    assert run.assisted is not None
    assert 0 < run.assisted.cloud["slot_occupancy"] < 1


def test_a_prompt_beside_another_requests_tokens_goes_in_pieces() -> None:
    # Two devices ask at once. From 39 ms on the instance prefills the first prompt in 100 ms, then, while that one is
    # refined, 512 tokens of the second in 51.2; a step of 10; the other 488 in 48.8.
    run = ran(
        "policies.assist={tokens: 5, ratio: 0.25}",
        "policies.serving={name: slots, chunk_tokens: 512}",
        workload={"devices": 2},
    )
    got = columns(run)
    assert sorted(got["cloud_prefill_s"]) == pytest.approx([0.100, 0.100 + 0.0512 + 0.010 + 0.0488])
    assert sorted(got["refined_s"]) == pytest.approx([0.020, 0.020])
    assert got["largest_gap_s"] == pytest.approx(got["pace_s"])


@pytest.mark.parametrize("chunk", ["null", "512"])
def test_a_whole_prompt_before_a_step_would_stall_who_is_promised_a_pace(chunk: str) -> None:
    # The third prompt of 8,000 tokens takes 800 ms; tokens of the first are promised every 20 + 2,080 / 26 ms.
    run = ran(
        f"policies.serving={{name: slots, chunk_tokens: {chunk}}}",
        workload={"devices": 3, "prompt": 8000, "output": 100},
    )
    gap_s, pace_s = max(columns(run)["largest_gap_s"]), max(columns(run)["pace_s"])
    assert pace_s == pytest.approx(0.020 + 2.080 / 26)
    if chunk == "null":
        assert gap_s > 0.6
    else:
        assert gap_s == pytest.approx(pace_s)


def test_a_first_token_waits_for_the_others_to_follow_it_at_their_pace() -> None:
    # When the first prompt is refined, 31.2 ms of a piece of the second are left; a step of 10 ms comes behind it.
    serving = "policies.serving={name: slots, chunk_tokens: 512}"
    help_of = "policies.assist={tokens: 5, ratio: 0.25, smoothing: paper}"
    run = ran(
        serving, help_of, workload={"devices": 2, "prompt": 1000, "output": 5, "handling": {"unpack_token": "0 s"}}
    )
    first = max(columns(run)["refined_s"])
    # Its device may show tokens every 20 ms, as fast as it decodes: 21.2 ms are waited for.
    assert first == pytest.approx(0.020 + 0.0312 + 0.010 - 0.020)


def test_requests_are_taken_in_as_long_as_steps_keep_the_time_per_token() -> None:
    # Alone a step takes 10 + 3 + 1.2 ms, with two 10 + 6 + 2.4: two may decode together under 20 ms, not three.
    run = ran(
        "policies.serving={name: slots, tpot: 20 ms}",
        "policies.assist={tokens: 5, ratio: 0.25}",
        workload={"devices": 3},
        costs="crowded",
    )
    waited_s = sorted(columns(run)["waited_s"])
    assert waited_s[:2] == pytest.approx([0.0, 0.0])
    assert waited_s[2] > 0.100


def test_prefill_and_decoding_apart() -> None:
    # The tiny device copies at no cost where its memory is unified: KV of 1,000 tokens moves in no time.
    apart = ran(
        "policies.assist={tokens: 5, ratio: 0.25}",
        machines=APART,
    )
    joint = ran("policies.assist={tokens: 5, ratio: 0.25}")
    np.testing.assert_allclose(apart.requests[0].token_times_s, joint.requests[0].token_times_s)
    resources = {resource for resource, _ in apart.tally.busy_s}
    assert {"prefill/gpu", "decode/gpu"} <= resources


def test_a_device_with_two_requests_answers_one_after_the_other() -> None:
    run = ran(system="device-only", workload={"requests": 2})
    first, second = run.requests
    assert second.arrival_s == pytest.approx(first.token_times_s[-1])
    assert second.first_token_s == pytest.approx(second.arrival_s + 1.0)


def test_devices_take_turns_on_machines_and_keep_their_times() -> None:
    # Twenty requests over seven minutes, on as many devices: each as though it were alone.
    run = ran(workload={"devices": 1000, "requests": 20, "arrivals": {"rate": "0.01 requests/hour"}})
    alone = only(ran())
    got = columns(run)
    for name in ("answered_s", "own_prefill_s", "pace_s", "largest_gap_s", "tokens"):
        assert got[name] == pytest.approx([alone[name]] * 20), name
    assert run.assisted is not None
    # While a request is under way; the idle time between counts for nothing.
    assert sum(run.assisted.energy_j.values()) < 20 * 60 * (alone["last_s"])


def test_devices_on_networks_of_their_own() -> None:
    near, far = {"rate": "1 MB/s", "rtt": "20 ms"}, {"rate": "1 MB/s", "rtt": "220 ms"}
    networks = [{"share": 0.5, "link": near}, {"share": 0.5, "link": far}]
    got = columns(ran(system="cloud-only", workload={"devices": 60, "networks": networks, "output": 1}, seed=2))
    way_s = [answered - waited - prefill for answered, waited, prefill in zip(
        got["answered_s"], got["waited_s"], got["cloud_prefill_s"], strict=True
    )]  # fmt: skip
    # 4 kB up, 1,100 B down, 5 ms of forwarding, and one round trip or the other.
    both_s = {round(0.0101 + rtt_s, 4) for rtt_s in (0.020, 0.220)}
    assert {round(one_s, 4) for one_s in way_s} == both_s


def test_messages_that_take_longer_at_random() -> None:
    # Every message takes up to 30 ms longer each way, and none more; the mean of 200 requests lies near half of that.
    workload = {"devices": 200, "requests": 200, "arrivals": {"rate": "0.1 requests/hour"}, "output": 1}
    changes = {"system": "cloud-only", "workload": workload}
    late, again, none = (columns(ran(**changes, link=link)) for link in ({"jitter": "30 ms"}, {"jitter": "30 ms"}, {}))
    assert late["answered_s"] == again["answered_s"]
    # One up, one down.
    longer_s = np.array(late["answered_s"]) - none["answered_s"]
    assert longer_s.min() >= 0
    assert longer_s.max() <= 0.060
    assert longer_s.mean() == pytest.approx(0.030, abs=0.003)


def test_with_slots_for_one_the_queue_is_that_of_theory() -> None:
    # M/D/1: prefill of 100 ms and a step of 10, at 0.55 of the rate that it could bear, waits for rho / (2 (1 - rho))
    # services.
    workload = {"devices": 2000, "requests": 6000, "arrivals": {"rate": "9 requests/hour"}, "output": 2}
    run = ran("policies.serving={name: slots, slots: 1}", system="cloud-only", workload=workload)
    waited_s = np.array(columns(run)["waited_s"])
    assert waited_s.mean() == pytest.approx(0.55 / (2 * 0.45) * 0.110, rel=0.15)
    # Little's law: slots held are arrivals per second times seconds in service.
    assert run.assisted is not None
    rate_hz = run.assisted.cloud["cloud_throughput_requests_per_s"]
    assert run.assisted.cloud["slot_occupancy"] == pytest.approx(rate_hz * 0.110, rel=1e-3)


def test_occupancy_is_a_share_of_all_slots() -> None:
    # One request at a time: of one slot, or of four, it holds one while it is served.
    shares = []
    for slots in (1, 4):
        run = ran(f"policies.serving={{name: slots, slots: {slots}}}", system="cloud-only")
        assert run.assisted is not None
        shares.append(run.assisted.cloud["slot_occupancy"])
    assert shares[1] == pytest.approx(shares[0] / 4)


def test_a_first_token_alone_needs_no_slot_and_waits_for_prefill_only() -> None:
    # The same queue, of 100 ms at half the rate, is that of the processor.
    workload = {"devices": 2000, "requests": 6000, "arrivals": {"rate": "9 requests/hour"}, "output": 1}
    run = ran("policies.serving={name: slots, slots: 1}", system="cloud-only", workload=workload)
    got = columns(run)
    assert set(got["waited_s"]) == {0.0}
    assert np.mean(got["cloud_prefill_s"]) - 0.100 == pytest.approx(0.05, rel=0.15)
    assert run.assisted is not None
    assert run.assisted.cloud["slot_occupancy"] == 0


def test_a_lora_that_an_instance_lacks_is_brought_first() -> None:
    copied = {**CLOUD, "device": {**CLOUD["device"], "memory": {"unified": False, "copy_bytes_per_s": "1 GB/s"}}}  # type: ignore[dict-item]
    workload = {"devices": 8, "scenes": 8, "lora": "200 MB"}
    run = ran(system="cloud-only", workload=workload, machines={"cloud": copied}, seed=3)
    moved = run.tally.bytes_of("cloud/copy")
    assert moved >= 2 * 200e6
    assert moved % 200e6 == 0


def test_the_lora_of_the_only_scene_is_there_from_the_start() -> None:
    copied = {**CLOUD, "device": {**CLOUD["device"], "memory": {"unified": False, "copy_bytes_per_s": "1 GB/s"}}}  # type: ignore[dict-item]
    run = ran(system="cloud-only", workload={"lora": "200 MB"}, machines={"cloud": copied})
    assert run.outcome == "done"
    assert run.tally.bytes_of("cloud/copy") == 0


def test_a_device_alone_decodes_behind_its_prompt_and_on_average_half_the_answer() -> None:
    scenario = tiny(ASSISTED, workload={"output": 2000})
    estimates = Estimates(scenario, scenario.seen_by("cloud"))
    alone = estimates.alone(500)
    assert alone.tpot_s == estimates.tpot_s(1500)
    assert alone.tpot_s > estimates.tpot_s(500)


def test_what_does_not_fit_the_clouds_memory_is_said() -> None:
    model = tiny(BY_HAND).model
    room_bytes = engine_bytes(tiny(BY_HAND), "cloud") + 999 * model.kv_bytes_per_token
    small = {**CLOUD, "device": {**CLOUD["device"], "memory": {"capacity_bytes": f"{room_bytes} B"}}}  # type: ignore[dict-item]
    run = run_scenario(tiny(changed(BY_HAND, machines={"cloud": small})))
    assert run.outcome == "out_of_memory"
    assert "an instance of the cloud: kv needs" in run.why

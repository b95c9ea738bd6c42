"""Devices that leave: what they have asked for ends, and another device is answered as if they had not been there.
Times as in test_by_hand; half a round trip is 10 ms."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from assisted import APART, columns, ran
from by_hand import by_hand
from played_devices import REQUEST, ServedCloud, until

from kvferry.machine.channel import ChannelBroken


@pytest.fixture(autouse=True, scope="module")
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def test_a_prompt_ends_behind_the_piece_that_is_under_way() -> None:
    served = ServedCloud("{name: slots, alone_tokens: 500}")
    # There at 10 ms, taken in at 15: ten pieces of 50 ms until 1.015 s. It leaves at 100, which is known at 110: the
    # second piece ends at 115.
    served.asks(0.0, leaves_s=0.100, prompt=10_000)
    healthy = served.asks(0.080, tokens=1)
    until(served, 5.0)
    assert healthy.first_s == pytest.approx(0.115 + 0.100 + 0.010 + 1100e-6)
    assert served.cloud.served == 1
    assert served.holds_nothing()


def test_a_device_that_never_drafts_does_not_hold_its_slot_for_good() -> None:
    served = ServedCloud("{name: slots, slots: 1}")
    # Answered at 115 ms: nobody waits, and it has 300 s.
    silent = served.asks(0.0, drafts=True)
    until(served, 300.1)
    assert not served.holds_nothing()
    until(served, 300.2)
    assert silent.first_s is not None
    assert served.holds_nothing()


@pytest.mark.parametrize("tokens", [1, 5])
def test_a_device_that_has_not_drafted_for_a_second_gives_its_slot_to_others(tokens: int) -> None:
    served = ServedCloud("{name: slots, slots: 1}")
    # Both prompts take 100 ms; the silent one's answer leaves at 115 ms, and its slot is another's at 1.115.
    silent = [served.asks(0.01 * n, drafts=True, tokens=tokens) for n in range(3)]
    healthy = served.asks(0.5)
    until(served, 30.0)
    # The others have it before, for a second each behind their prompts.
    assert [one.first_s is not None for one in silent] == [True, True, True]
    assert healthy.first_s == pytest.approx(0.015 + 3 * (0.100 + 1.0) + 0.100 + 0.010 + 1100e-6)
    assert served.cloud.admission.slots.held == [0]
    until(served, 310.0)
    assert served.holds_nothing()


def test_one_that_comes_later_waits_for_nothing() -> None:
    served = ServedCloud("{name: slots, slots: 1}")
    served.asks(0.0, drafts=True)
    healthy = served.asks(100.0)
    until(served, 110.0)
    assert healthy.first_s == pytest.approx(100.015 + 0.100 + 0.010 + 1100e-6)


def drafting(served: ServedCloud, *rounds_s: float) -> list[float]:
    """A device drafts at these times. Returns when what the cloud says of each comes."""
    heard_s: list[float] = []
    channel = served.device()

    def drafts() -> Any:
        channel.send(REQUEST | {"drafts": True}, 0.0)
        with suppress(ChannelBroken):
            yield channel.receive()
            for at_s in rounds_s:
                yield served.env.timeout(at_s - served.env.now)
                channel.send({"drafted": 2, "before": (), "said": None}, 0.0)
                yield channel.receive()
                heard_s.append(served.env.now)

    served.env.process(drafts())
    return heard_s


def test_a_device_that_drafts_is_not_disturbed_within_a_second_of_its_last_round() -> None:
    served = ServedCloud("{name: slots, slots: 1}")
    heard_s = drafting(served, 0.5, 1.4, 2.3)
    healthy = served.asks(0.2)
    until(served, 20.0)
    assert len(heard_s) == 3
    # Sent at 2.3 s, looked at from 2.310 on: two tokens take 0.2 ms.
    assert healthy.first_s == pytest.approx(2.310 + 0.0002 + 1.0 + 0.100 + 0.010 + 1100e-6)


def test_one_that_drafts_again_waits_for_a_slot() -> None:
    served = ServedCloud("{name: slots, slots: 1}")
    heard_s = drafting(served, 1.2)
    # It has the slot from 1.115 s on, for 100 ms of its prompt and 40 steps of 10 ms and a little.
    healthy = served.asks(0.2, answer=41, tokens=41)
    until(served, 20.0)
    assert healthy.first_s == pytest.approx(1.115 + 0.100 + 0.010 + 1100e-6)
    # What ends the stream is there half a round trip behind the last step, as is what is said of the drafts.
    assert heard_s == [pytest.approx(healthy.ended_s + 0.0002, abs=1e-3)]
    until(served, 310.0)
    assert served.holds_nothing()


def test_one_that_leaves_while_others_have_its_slot_leaves_nothing_behind() -> None:
    served = ServedCloud("{name: slots, slots: 1}")
    served.asks(0.0, leaves_s=1.5, drafts=True)
    healthy = served.asks(0.2, answer=200, tokens=200)
    until(served, 1.6)
    assert served.cloud.admission.slots.held == [1]
    until(served, 20.0)
    assert healthy.ended_s is not None
    assert served.holds_nothing()


def test_where_memory_is_lacking_one_that_has_not_drafted_for_a_minute_goes() -> None:
    served = ServedCloud("{name: slots, slots: 4}")
    (instance,) = served.cloud.decoding
    # Room for one request of 1,005 tokens.
    others = instance.kv.reserve(int(instance.machine.memory.free_bytes / instance.kv.n_bytes(1)) - 1500)
    served.asks(0.0, drafts=True)
    healthy = served.asks(1.0)
    until(served, 62.0)
    assert healthy.first_s == pytest.approx(60.115 + 0.100 + 0.010 + 1100e-6)
    instance.free(others)  # type: ignore[arg-type]
    assert served.holds_nothing()


def test_of_silent_devices_the_one_that_was_silent_first_gives_its_slot() -> None:
    served = ServedCloud("{name: slots, slots: 3}")
    heard_s = [drafting(served, *rounds) for rounds in ((0.5, 150.0), (0.4, 150.0), (0.6, 150.0))]
    healthy = served.asks(100.0)
    until(served, 120.0)
    assert healthy.ended_s is not None
    assert healthy.ended_s < 101
    assert served.cloud.admission.slots.held == [2]
    until(served, 200.0)
    assert list(map(len, heard_s)) == [2, 2, 2]


def test_a_prompt_goes_in_pieces_on_an_idle_cloud_too() -> None:
    served = ServedCloud()
    # 8,192 tokens at a time: the piece that is under way ends at 834.2 ms.
    served.asks(0.0, leaves_s=0.030, prompt=10_000)
    healthy = served.asks(0.080, tokens=1)
    until(served, 5.0)
    assert healthy.first_s == pytest.approx(0.015 + 0.8192 + 0.100 + 0.010 + 1100e-6)


def test_a_turn_ends_behind_the_step_that_is_under_way() -> None:
    served = ServedCloud("{name: slots, slots: 1}")
    # Its first token leaves at 115 ms, then one every 10 ms. It leaves at 150, known at 160; a step ends at 165.
    gone = served.asks(0.0, leaves_s=0.150, tokens=3000, answer=3000)
    healthy = served.asks(0.020, tokens=5)
    until(served, 60.0)
    # Prefill of 100 ms, four steps of 10.
    assert healthy.first_s == pytest.approx(0.165 + 0.100 + 0.010 + 1100e-6)
    assert healthy.ended_s == pytest.approx(0.165 + 0.100 + 4 * 0.010 + 0.010 + 100e-6)
    assert gone.first_s is not None
    assert served.holds_nothing()
    (instance,) = served.cloud.decoding
    assert instance.turns.decoded == 5 + 4


def test_one_that_waits_for_a_slot_gives_up_the_memory_of_its_kv() -> None:
    # The first one decodes until 30.1 s; the second one's KV waits for its slot from 215 ms on.
    served = ServedCloud("{name: slots, slots: 1}", machines=APART)
    served.asks(0.0, tokens=3000, answer=3000)
    served.asks(0.0, leaves_s=1.0)
    (prefilling,) = served.cloud.prefilling
    until(served, 0.9)
    assert prefilling.kv.is_used
    until(served, 1.02)
    assert not prefilling.kv.is_used
    served.asks(2.0, tokens=2)
    until(served, 60.0)
    assert served.cloud.served == 2
    assert served.holds_nothing()


def test_a_device_that_leaves_before_its_request_is_there_is_forgotten() -> None:
    served = ServedCloud()
    served.asks(0.0, leaves_s=0.005)
    healthy = served.asks(0.0, tokens=1)
    until(served, 5.0)
    assert healthy.first_s == pytest.approx(0.015 + 0.100 + 0.010 + 1100e-6)
    assert served.holds_nothing()


@pytest.mark.parametrize("apart", [False, True])
def test_at_whatever_moment_a_device_leaves_all_is_given_back(apart: bool) -> None:
    moments = [0.001 + 0.0137 * n for n in range(40)]
    for drafts in (False, True):
        served = ServedCloud(
            "{name: slots, slots: 2, chunk_tokens: 256, alone_tokens: 256}", **({"machines": APART} if apart else {})
        )
        for leaves_s in moments:
            served.asks(0.0, leaves_s=leaves_s, prompt=300, drafts=drafts, ratio=0.5)
        healthy = served.asks(0.2, tokens=5)
        until(served, 20.0)
        assert healthy.ended_s is not None
        assert served.holds_nothing()


def test_a_modelled_device_that_gives_up_is_served_no_more() -> None:
    # The n-th prompt is prefilled by 39 + 100 n ms, and its device has the answer 31 ms later. From 320 ms on, devices
    # without one prefill by themselves and have a token of their own at 1,320: the thirteenth leaves then, whose prompt
    # the cloud has nearly prefilled, and so do those behind it, whose prompts are not begun.
    run = ran(
        "policies.assist={tokens: 5, ratio: 0.25, patience: 300 ms}",
        "policies.serving={name: slots, alone_tokens: 512}",
        workload={"devices": 16},
        machines=APART,
    )
    assert sorted(columns(run)["lost"]) == 2 * [0] + 14 * [1]
    assert sum(came > 0 for came in columns(run)["came"]) == 12
    assert run.assisted is not None
    assert run.tally.busy_s["prefill/gpu", "Prefill"] == pytest.approx(13 * 0.1)
    assert {len(one.token_times_s) for one in run.requests} == {10}


@pytest.mark.parametrize("system", ["speculative-edge", "pd-device", "cloud-only", "tokens-only", "refinement-only"])
@pytest.mark.parametrize("rtt", ["30 s", "100 s", "1e7 s"])
def test_an_answer_that_comes_later_than_the_patience_loses_no_run(system: str, rtt: str) -> None:
    run = ran("policies.assist={patience: 10 s}", system=system, link={"rtt": rtt})
    assert [len(one.token_times_s) for one in run.requests] == [10]
    # Where problem P expects that much, the device does not ask.
    assert columns(run)["lost"] == [1] or columns(run)["tokens"] == [0]

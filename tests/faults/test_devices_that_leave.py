"""A real cloud whose devices leave in the midst of a prompt or an answer: another one is answered, nothing is held."""

import time
from collections.abc import Iterator

import pytest
from deadline import deadline
from served_cloud import REQUEST, ServedCloud, serving

from kvferry.backends.live.assist.runner import AssistRunner
from kvferry.machine.ops import DecodeStep, Op, Prefill
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("devices that leave")]
LONG = (
    "workload.prompt=4Ki",
    "workload.output=3000",
    "policies.serving={name: slots, slots: 1, chunk_tokens: 64, alone_tokens: 64}",
)


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with deadline(180):
        yield


@pytest.fixture(scope="module")
def cloud() -> Iterator[ServedCloud]:
    with serving(load_scenario("pd_device/live", list(LONG))) as cloud:
        yield cloud


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> list[Op]:
    """What the cloud's model carries out."""
    done: list[Op] = []
    really = AssistRunner.run

    def run(runner: AssistRunner, op: Op, *more: object) -> object:
        done.append(op)
        return really(runner, op, *more)

    monkeypatch.setattr(AssistRunner, "run", run)
    return done


def waited_for(ops: list[Op], n: int) -> None:
    until_s = time.monotonic() + 60
    while len(ops) < n:
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_a_prompt_of_one_that_has_left_is_not_prefilled_to_its_end(cloud: ServedCloud, ops: list[Op]) -> None:
    text = ("Once. ", "A fact. Another one. " * 190, " Which?")
    with cloud.device("leaves") as device:
        device.say(REQUEST | {"text": text, "prompt": 4000, "ratio": 1.0})
        # An idle cloud takes pieces as well.
        waited_for(ops, 3)
    assert cloud.answers("phone")
    pieces = [op for op in ops if isinstance(op, Prefill)]
    assert {op.tokens for op in pieces[:3]} == {64}
    # 4,000 tokens are 63 pieces, and the phone's prompt two.
    assert len(pieces) < 40
    assert "a fault of its own" not in "".join(cloud.said)


def test_an_answer_of_one_that_has_left_is_not_decoded_to_its_end(cloud: ServedCloud, ops: list[Op]) -> None:
    with cloud.device("leaves") as device:
        device.say(REQUEST | {"answer": 3000, "tokens": 3000})
        for _ in range(3):
            device.hear()
    # There is one slot.
    assert cloud.answers("phone")
    assert sum(isinstance(op, DecodeStep) for op in ops) < 1500
    assert "a fault of its own" not in "".join(cloud.said)


def test_many_that_leave_at_any_moment_leave_nothing_behind(cloud: ServedCloud, ops: list[Op]) -> None:
    for n in range(12):
        with cloud.device(f"leaves-{n}") as device:
            device.say(REQUEST | {"answer": 3000, "tokens": 3000, "drafts": n % 3 == 2, "ratio": 0.5})
            time.sleep(0.01 * n)
    assert cloud.answers("phone")
    assert "fault of its own" not in "".join(cloud.said)
    assert "not in hand" not in "".join(cloud.said)


@pytest.mark.parametrize("when_s", [0.0, 0.05, 0.4])
def test_one_that_hangs_up_and_comes_again_at_once_is_served(when_s: float, cloud: ServedCloud) -> None:
    for _ in range(5):
        with cloud.device("comes-again") as device:
            device.say(REQUEST | {"answer": 3000, "tokens": 3000})
            time.sleep(when_s)
        # Its last channel may not be known to have ended, and its role is still there: the piece goes on.
        assert cloud.answers("comes-again")
    assert "fault of its own" not in "".join(cloud.said)


def test_one_that_comes_and_goes_before_its_last_role_has_ended_leaves_room(cloud: ServedCloud) -> None:
    for n in range(6):
        with cloud.device("flickers") as device:
            assert device.response.status == 200
            device.say(REQUEST | {"answer": 3000, "tokens": 3000} if n % 2 else REQUEST)
    assert cloud.answers("flickers")


def test_another_of_the_same_name_is_refused_as_long_as_the_first_is_there(cloud: ServedCloud) -> None:
    with cloud.device("twin") as first, cloud.device("twin") as second:
        assert (first.response.status, second.response.status) == (200, 409)
        first.say(REQUEST)
        assert [kind for kind, _ in first.until("end")] == ["message", "part", "part", "end"]
    assert cloud.answers("twin")


def test_one_whose_network_has_changed_is_known_by_its_secret(cloud: ServedCloud) -> None:
    """Its last connection is still open here, and nothing comes of it any more."""
    first, another = {"kvferry-caller": "0123"}, {"kvferry-caller": "0124"}
    with cloud.device("roams", **first) as lost:
        lost.say(REQUEST | {"answer": 3000, "tokens": 3000})
        lost.hear()
        with cloud.device("roams", **another) as stranger, cloud.device("roams") as nobody:
            assert (stranger.response.status, nobody.response.status) == (409, 409)
        assert cloud.answers("roams", **first)
        with pytest.raises(OSError):
            list(lost.until("end"))
        # There is one slot.
        assert cloud.answers("phone")
    assert "fault of its own" not in "".join(cloud.said)


@pytest.mark.parametrize(
    ("where", "output"), [("within", 6), ("within", 1), pytest.param("beside", 6, marks=pytest.mark.long)]
)
def test_drafts_whose_cloud_answers_later_than_the_patience_end_with_the_answer(where: str, output: int) -> None:
    small = ("workload.prompt=96", "workload.beginning=6", "workload.question=7", f"workload.output={output}")
    patience = "system_policies.speculative-edge.assist={name: optimised, patience: 1 s}"
    late = ("system=speculative-edge", f"live.cloud={where}", "link.rtt=6 s", patience)
    run = run_scenario(load_scenario("pd_device/live", [*small, *late]))
    assert run.outcome == "done"
    assert [len(one.token_times_s) for one in run.requests] == [output]
    assert "nothing has come from cloud for 1 s" in run.notes[0]

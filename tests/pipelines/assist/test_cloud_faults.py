"""Something goes wrong in the cloud with one request: the device is told, and the cloud serves others as before."""

from collections.abc import Generator, Iterator
from typing import Any, get_args

import pytest
from assisted import ran
from by_hand import by_hand

from kvferry.cloud.asked import asked_of
from kvferry.cloud.messages import BadMessage, failed_of, failure
from kvferry.machine.machine import Refused
from kvferry.machine.memory import BudgetedPool
from kvferry.machine.ops import DecodeStep
from kvferry.pipelines.assist import roles, service
from kvferry.pipelines.assist.cloud import Cloud
from kvferry.pipelines.assist.instance import Instance
from kvferry.pipelines.record import Run
from kvferry.policies.assist.help import Refining
from kvferry.policies.assist.refiner import OF_THE_WINDOW
from kvferry.specs.errors import KvferryError

# One slot: what a failed request does not give back, the others miss.
HELP = "policies.assist={tokens: 5, ratio: 0.25, patience: 500 s}"
ONE_SLOT = "policies.serving={name: slots, slots: 1}"


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


@pytest.fixture
def clouds(monkeypatch: pytest.MonkeyPatch) -> list[Cloud]:
    """As a served cloud has it: what goes wrong with one request is caught."""
    serve, found = roles.serve_device, []

    def served(cloud: Cloud, device: str, tell: Any) -> Generator[Any, Any, bool]:
        found.append(cloud)
        try:
            return (yield from serve(cloud, device, tell))
        except (KvferryError, ValueError):
            return True

    monkeypatch.setattr(roles, "serve_device", served)
    return found


def check(run: Run, clouds: list[Cloud], why: str, lost: int = 1) -> None:
    assert [len(one.token_times_s) for one in run.requests] == [10, 10, 10]
    assert f"{lost} of 3 requests without all of the cloud's help: the cloud could not go on: {why}" in run.notes[0]
    cloud = clouds[0]
    assert cloud.admission.slots.held == [0]
    (instance,) = cloud.decoding
    assert (instance.holders.n, instance.holders._tokens, instance.kv.is_used, instance.prefilling) == (0, 0, False, 0)


def once(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, error: Exception) -> None:
    """The first call of it raises."""
    really, raised = getattr(where, name), []

    def call(*args: Any, **more: Any) -> Any:
        if not raised:
            raised.append(True)
            raise error
        return really(*args, **more)

    monkeypatch.setattr(where, name, call)


def of_three() -> Run:
    return ran(HELP, ONE_SLOT, workload={"requests": 3})


def test_refinement_that_fails_gives_its_slot_back(clouds: list[Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    once(monkeypatch, service.Service, "_refined", KvferryError("no such\nrefiner"))
    check(of_three(), clouds, "no such refiner")


def test_a_fault_of_the_clouds_own_is_told_by_its_kind(clouds: list[Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    once(monkeypatch, service, "first_answer", ValueError("a wrong value"))
    check(of_three(), clouds, "ValueError: a wrong value")


@pytest.mark.parametrize("what", ["Prefill", "DecodeStep"])
def test_an_op_that_fails_ends_its_requests_and_no_others(
    what: str, clouds: list[Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, failed = Instance._begun, []

    def fails(instance: Instance, op: Any, request: int | None) -> Any:
        # The second step: behind the first token of the stream.
        wanted = instance.turns.steps == 1 if isinstance(op, DecodeStep) else True
        if type(op).__name__ == what and wanted and not failed:
            failed.append(op)
            raise KvferryError("the accelerator is lost")
        return begun(instance, op, request)

    monkeypatch.setattr(Instance, "_begun", fails)
    check(of_three(), clouds, "the accelerator is lost")


def test_a_prompt_that_fits_nowhere_is_refused_and_the_next_one_served(
    clouds: list[Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, refused = BudgetedPool.reserve, []

    def reserves(memory: BudgetedPool, n_bytes: float, tag: str) -> Any:
        # The first one that the cloud asks for.
        if tag == "kv" and not refused and clouds and clouds[0].admission._waiting:
            refused.append(n_bytes)
            return Refused(tag, n_bytes, 0.0)
        return reserve(memory, n_bytes, tag)

    monkeypatch.setattr(BudgetedPool, "reserve", reserves)
    check(of_three(), clouds, "an instance of the cloud: kv needs")


def test_what_a_cloud_says_of_a_failure_is_read_by_its_request_only() -> None:
    said = failure({"request": 7}, KvferryError("a" * 1000 + "\x1b[2J"))
    assert len(said["failed"]) == 300
    assert failed_of(said, 8) is None
    assert failed_of(said, 7) == "the cloud could not go on: " + "a" * 300
    # What has no number is about whatever was said last.
    assert failed_of(failure("nonsense", BadMessage("no request")), 7) == "the cloud could not go on: no request"
    assert failed_of({"request": 7, "failed": 3}, 7) is None
    assert "\x1b" not in (failed_of({"request": 7, "failed": "\x1b[2J"}, 7) or "")


def test_more_tokens_than_the_answer_has_are_no_request() -> None:
    asked = {
        "request": 0,
        "prompt": 10,
        "text": None,
        "answer": 5,
        "scene": 0,
        "tokens": 6,
        "ratio": 0.5,
        "pace_s": None,
        "drafts": False,
        "accepted": 0.5,
        "refiner": "snapkv",
    }
    with pytest.raises(BadMessage, match="6 tokens of an answer of 5"):
        asked_of(asked)
    assert asked_of(asked | {"tokens": 5})
    # Its prefill would have to show what all queries see.
    with pytest.raises(BadMessage, match="its refiner is 'h2o'"):
        asked_of(asked | {"tokens": 5, "refiner": "h2o"})


def test_scenarios_may_name_the_refiners_that_a_cloud_carries_out() -> None:
    assert set(get_args(Refining)) == set(OF_THE_WINDOW)

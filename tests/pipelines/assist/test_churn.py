"""Devices that come and go, on paper (see test_by_hand.py)."""

from collections.abc import Iterator

import numpy as np
import pytest
from assisted import BY_HAND, columns, only, ran
from by_hand import by_hand
from tiny import changed, tiny

from kvferry.specs.assist import ChurnSpec
from kvferry.specs.errors import InputError
from kvferry.traces.coverage import Coverage

SETTING = "policies.assist={tokens: 5, ratio: 0.25}"
CHURN = {"online": "1 s", "offline": "1 s"}


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def online(monkeypatch: pytest.MonkeyPatch, *course: tuple[bool, float]) -> None:
    """Every device is online and offline until these times."""
    monkeypatch.setattr(Coverage, "_drawn", lambda self, device: iter([*course, (True, float("inf"))]))


def test_a_device_that_is_offline_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    online(monkeypatch, (False, 10.0))
    run = ran(SETTING, workload={"churn": CHURN})
    assert only(run)["first_s"] == pytest.approx(1.0) and only(run)["lost"] == 0
    assert run.tally.bytes_of("uplink") == 0
    assert "the device is offline" in run.notes[0]


def test_one_that_goes_offline_before_the_answer_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # It would hear of the cloud at 170 ms.
    online(monkeypatch, (True, 0.150))
    run = ran(SETTING, workload={"churn": CHURN})
    assert only(run)["first_s"] == pytest.approx(0.150 + 1.0)
    assert "the device went offline" in run.notes[0] and only(run)["lost"] == 1


def test_tokens_that_came_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of cloud-only, tokens come from 150 ms on, every 10 ms.
    online(monkeypatch, (True, 0.185))
    run = ran(system="cloud-only", workload={"churn": CHURN})
    assert only(run)["came"] == 4 and len(run.requests[0].token_times_s) == 10
    assert only(run)["lost"] == 1


def test_an_answer_that_is_there_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = ran(SETTING)
    # All five tokens have come by then; the device's own first token has not.
    online(monkeypatch, (True, 0.300))
    run = ran(SETTING, workload={"churn": CHURN})
    assert only(run)["lost"] == 0
    assert run.requests[0].token_times_s == undisturbed.requests[0].token_times_s


def test_the_next_request_is_another_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins while the time at which the first one would have hung up is to come."""
    first_s = ran(SETTING).requests[0].token_times_s[-1]
    online(monkeypatch, (True, first_s + 0.05))
    run = ran(SETTING, workload={"churn": CHURN, "requests": 2})
    assert columns(run)["lost"] == [0, 1]


def test_shares_of_time_and_streams_of_chance() -> None:
    churn = ChurnSpec.model_validate({"online": "30 s", "offline": "10 s"}, context={"from_file": True})
    times_s = np.linspace(0, 5000, 2000)

    def course(coverage: Coverage, device: int) -> list[bool]:
        return [coverage.of(device, float(time_s))[0] for time_s in times_s]

    together, alone = Coverage(churn, seed=1), Coverage(churn, seed=1)
    found = {device: course(together, device) for device in range(20)}
    assert np.mean(list(found.values())) == pytest.approx(0.75, abs=0.02)
    # What other devices draw changes nothing.
    assert course(alone, 7) == found[7] and found[7] != found[8]


@pytest.mark.parametrize("value", ["0 s", "1 ms"])
def test_devices_stay_for_a_second_at_least(value: str) -> None:
    with pytest.raises(InputError, match="workload.churn.online: .* must be at least 1"):
        tiny(changed(BY_HAND, workload={"churn": {"online": value, "offline": "1 s"}}))

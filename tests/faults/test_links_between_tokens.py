"""A real link to a real cloud that falls silent or is cut between two tokens: nobody waits longer for the next one than
was promised, or than the device takes for its own."""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from threading import Event
from typing import Any

import pytest

pytest.importorskip("torch")
from deadline import deadline
from harmful_proxy import Proxy
from served_cloud import ServedCloud, serving

from kvferry.backends.live.assist.runner import AssistRunner
from kvferry.backends.live.wire import caller
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("links between tokens")]
ASSIST = "system_policies.pd-device.assist"
# A wait for the link would be as long; whatever else makes a token late on a busy machine takes less than a quarter.
PATIENCE_S = 80.0
LATE_S = PATIENCE_S / 4
OUTPUT, TOKENS = 10, 6
SMALL = (
    *("workload.prompt=320", f"workload.output={OUTPUT}", f"{ASSIST}.tokens={TOKENS}", f"{ASSIST}.ratio=0.5"),
    f"{ASSIST}.patience={PATIENCE_S:g} s",
)
# What is taken for a slow device promises a slow pace, of half a second or many.
HALF_A_SECOND, MANY = ("device.processors.cpu.bytes_per_s=" + rate for rate in ("30 MB/s", "0.2 MB/s"))
PART, MESSAGE = b"event: part", b"event: message"
BEHIND = f"{ASSIST}.mask=behind-token"


@pytest.fixture(scope="module")
def cloud() -> Iterator[ServedCloud]:
    with serving(load_scenario("pd_device/live", [*SMALL])) as cloud:
        yield cloud


@pytest.fixture
def ready_s(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """When the device had its own token of each place, from the second on."""
    found: dict[int, float] = {}
    really = AssistRunner._after

    def after(runner: AssistRunner, asked: Any, answer: Any) -> int:
        said = really(runner, asked, answer)
        clock = runner._voice.env
        assert clock is not None
        found[len(answer)] = clock.now
        return said

    monkeypatch.setattr(AssistRunner, "_after", after)
    # Silence alone is no end of a link here.
    monkeypatch.setattr(caller, "SILENCE_S", PATIENCE_S)
    return found


def through(cloud: ServedCloud, parts: int, fails: Callable[[], None], *more: str, event: bytes = PART) -> Run:
    """A run over a link that brings so many parts of the answer's stream, or other events, calls `fails`, and is
    cut."""
    came = 0

    def harm(_: int, __: int, data: bytes) -> bytes | None:
        nonlocal came
        if came > parts:
            fails()
            return None
        begins = [found.start() for found in re.finditer(event, data)]
        came += len(begins)
        return data if came <= parts else data[: begins[parts - came]]

    with deadline(170), Proxy(cloud.url, harm) as link:
        run = run_scenario(load_scenario("pd_device/live", [*SMALL, f"live.cloud={link.url}", *more]))
    assert run.outcome == "done", run.why
    assert run.assisted is not None
    assert run.assisted.columns["lost"].tolist() == [1.0]
    # Tokens wait for no mask: on a busy machine some of them come before it.
    assert 1 <= run.assisted.columns["came"].tolist()[0] <= (1 + parts if event == PART else TOKENS)
    assert len(run.requests[0].token_times_s) == OUTPUT
    return run


@pytest.mark.parametrize("stalls", [True, False], ids=["stalls", "cut"])
def test_no_gap_beyond_the_promise_and_the_devices_own_token(
    stalls: bool, cloud: ServedCloud, ready_s: dict[int, float]
) -> None:
    over = Event()
    try:
        run = through(cloud, 1, over.wait if stalls else lambda: None, HALF_A_SECOND)
    finally:
        over.set()
    assert run.assisted is not None
    (promised_s,) = run.assisted.columns["pace_s"]
    shown_s = run.requests[0].token_times_s
    for n, (before_s, after_s) in enumerate(pairwise(shown_s), 1):
        assert after_s - before_s <= max(promised_s, ready_s[n] - before_s) + LATE_S, f"token {n}"


def test_a_promise_is_not_waited_for_when_the_link_is_cut(cloud: ServedCloud, ready_s: dict[int, float]) -> None:
    run = through(cloud, 0, lambda: None, MANY)
    assert run.assisted is not None
    (promised_s,) = run.assisted.columns["pace_s"]
    assert promised_s > 2 * LATE_S
    for n, (before_s, after_s) in enumerate(pairwise(run.requests[0].token_times_s), 1):
        assert after_s <= max(before_s, ready_s[n]) + LATE_S, f"token {n}"


@pytest.mark.parametrize("stalls", [True, False], ids=["stalls", "cut"])
def test_a_link_that_fails_between_the_first_token_and_its_mask(
    stalls: bool, cloud: ServedCloud, ready_s: dict[int, float]
) -> None:
    over = Event()
    try:
        run = through(cloud, 1, over.wait if stalls else lambda: None, HALF_A_SECOND, BEHIND, event=MESSAGE)
    finally:
        over.set()
    why = "no mask has come from cloud for 1 s" if stalls else "cloud went away without saying goodbye"
    assert why in run.notes[0]
    # Tokens were shown before, and the device's own of the whole prompt come behind them.
    assert run.assisted is not None
    came = int(run.assisted.columns["came"][0])
    for n, (before_s, after_s) in enumerate(pairwise(run.requests[0].token_times_s), 1):
        if n >= came:
            assert after_s <= max(before_s, ready_s[n]) + LATE_S, f"token {n}"


def test_a_mask_behind_the_first_token_over_a_link(cloud: ServedCloud) -> None:
    found = []
    for more in ((), (BEHIND,)):
        with deadline(170):
            run = run_scenario(
                load_scenario("pd_device/live", [*SMALL, HALF_A_SECOND, f"live.cloud={cloud.url}", *more])
            )
        assert run.assisted is not None
        assert run.assisted.columns["lost"].tolist() == [0.0]
        assert run.assisted.columns["came"].tolist() == [TOKENS]
        found.append(run.assisted.answers)
    assert found[0] == found[1] != {}

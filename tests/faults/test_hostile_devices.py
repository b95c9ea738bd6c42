"""A cloud that is served to strangers: what one says has bounds, and another device is answered all the same."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deadline import deadline
from served_cloud import REQUEST, ServedCloud, Stranger, serving

from kvferry.api.serving import serve_cloud
from kvferry.backends.live import served_world
from kvferry.backends.live.wire import served_wires
from kvferry.backends.live.wire.event import read, written
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("hostile devices")]
# Prompts of at most 1,024 tokens, answers of 256: four times these.
SMALL = ("workload.prompt=256", "workload.beginning=6", "workload.question=7", "workload.output=64")
# The bounds of a message, and of what waits: 64 KiB, 32 bytes per token of a prompt, 256 per token of an answer.
MESSAGE_BYTES = 2**16 + 32 * 1024 + 256 * 256


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    with deadline(180):
        yield


@pytest.fixture(scope="module")
def cloud() -> Iterator[ServedCloud]:
    with serving(load_scenario("pd_device/live", [*SMALL])) as cloud:
        yield cloud


def refused(cloud: ServedCloud, request: Any) -> str:
    """What a device is told of its request."""
    with cloud.device("stranger") as device:
        device.say(request)
        kind, value = device.hear()
        assert kind == "message"
        return str(value["failed"])


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_device_that_asks_properly_is_answered(cloud: ServedCloud) -> None:
    assert cloud.answers("phone")
    with cloud.device("drafting") as device:
        device.say(REQUEST | {"drafts": True, "tokens": 1, "ratio": 1.0})
        assert device.hear()[0] == "message"
        device.say({"drafted": 2, "before": (), "said": [(97, "a"), (98, "b")]})
        _, verdict = device.hear()
        assert 1 <= verdict["stands"] <= 2
        device.say({"drafted": 0})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"answer": 10_000_000, "tokens": 1},
            "serves answers of at most 256 tokens, 4 times the longest of its scenario",
        ),
        ({"answer": 257}, "one of 257 was asked for"),
        ({"prompt": 1025}, "serves prompts of at most 1,024 tokens"),
        # Its text is longer than it says.
        ({"text": ("", "word " * 300, "")}, "serves prompts of at most 1,024 tokens"),
        ({"text": ("", "", "Which?")}, "its prompt has no content to refine"),
        ({"text": ("", "\ud800 half", "")}, "its text is"),
        ({"pace_s": int("9" * 400)}, "its pace_s is 999"),
        ({"pace_s": float("inf")}, "its pace_s is inf"),
        ({"request": 2**64}, "its request is"),
        ({"ratio": 0}, "its ratio is 0"),
        ({"refiner": []}, "its refiner is []"),
    ],
)
def test_more_than_the_scenario_serves_is_refused_with_a_sentence(
    changes: dict[str, Any], why: str, cloud: ServedCloud
) -> None:
    held_bytes = resident_bytes()
    assert why in refused(cloud, REQUEST | changes)
    assert resident_bytes() < held_bytes + 2**27
    assert cloud.answers("phone")
    assert "a fault of its own" not in "".join(cloud.said)


def test_a_request_that_is_longer_than_any_is_not_read(cloud: ServedCloud) -> None:
    with cloud.device("stranger") as device:
        status, why = device.post(b"[" * (MESSAGE_BYTES + 1))
        assert (status, why) == (413, f"takes a body of at most {MESSAGE_BYTES:,} bytes, and its length first")


@pytest.mark.parametrize(
    "said",
    [
        {"drafted": 2, "before": (), "said": [(97, "a")]},
        {"drafted": 1, "before": (), "said": [5]},
        {"drafted": 1, "before": [(97, "a")] * 300, "said": [(97, "a")]},
        {"drafted": 300, "before": (), "said": None},
        {"drafted": -1},
        {"drafted": 1, "before": (), "said": [(10**9, "a")]},
        "nonsense",
    ],
)
def test_drafts_that_are_none_are_refused(said: Any, cloud: ServedCloud) -> None:
    with cloud.device("drafting") as device:
        device.say(REQUEST | {"drafts": True, "tokens": 1, "ratio": 1.0})
        device.hear()
        device.say(said)
        assert device.hear()[1]["failed"]
    assert cloud.answers("phone")
    assert "a fault of its own" not in "".join(cloud.said)


def test_drafts_that_do_not_go_on_do_not_hold_a_slot_for_ever(cloud: ServedCloud) -> None:
    with cloud.device("drafting") as device:
        device.say(REQUEST | {"drafts": True, "tokens": 1, "ratio": 1.0})
        device.hear()
        device.say({"drafted": 2, "before": [(97, "a")], "said": [(97, "a"), (98, "b")]})
        stands = device.hear()[1]["stands"]
        again = {"drafted": 1, "before": [(97, "a")] * stands, "said": [(98, "b")]}
        device.say(again)
        assert device.hear()[1]["stands"] == 1
        # The same round once more: nothing was added to what stands.
        device.say(again)
        why = f"what the device has drafted was looked at before: {stands + 1} tokens stand"
        assert device.hear()[1]["failed"] == why
    assert cloud.answers("phone")


def test_parts_without_an_end_have_a_bound(cloud: ServedCloud) -> None:
    part = written("x" * 100_000, 1.0)
    with cloud.device("stranger") as device:
        statuses = list[int]()
        # What comes too much is dropped at once; the channel ends when the cloud's own thread has its turn.
        while statuses[-1:] != [404]:
            statuses.append(device.post(part, "part")[0])
        # Four messages' worth wait, and then no more is taken.
        assert statuses[:6] == [204] * 6
    assert cloud.answers("phone")


def test_what_is_small_on_the_wire_and_large_in_memory_counts_as_it_is(cloud: ServedCloud) -> None:
    part = b'{"weighs":1,"value":[' + b",".join([b"[]"] * 30_000) + b"]}"
    assert len(part) < MESSAGE_BYTES < 30_000 * sys.getsizeof([])
    with cloud.device("stranger") as device:
        # Four messages' worth are 655,360 bytes: the first list takes three times as much.
        assert device.post(part, "part")[0] == 204
        with pytest.raises(OSError):
            device.hear()
    assert cloud.answers("phone")


@pytest.mark.parametrize("said", ["\U0001f600", "\\ud83d\\ude00"], ids=["as it is", "escaped"])
def test_a_text_with_one_wide_character_counts_four_bytes_for_each(said: str) -> None:
    # Ten thousand letters and the wide one, four bytes each; what Python adds to each object, and the wait, are less.
    n_bytes = read("part", f'{{"weighs":1,"value":"{"a" * 10_000}{said}"}}'.encode()).n_bytes
    assert 4 * 10_001 <= n_bytes < 4 * 10_001 + 500
    held = read(
        "part", f'{{"weighs":1,"value":[{{"dict":{{"{"k" * 5_000}{said}":["{"a" * 5_000}{said}"]}}}}]}}'.encode()
    )
    assert 8 * 5_001 <= held.n_bytes < 8 * 5_001 + 1_000


def test_a_text_is_no_list_of_its_letters(cloud: ServedCloud) -> None:
    # Each letter would take 76 bytes, whatever it was counted as.
    part = '{"weighs":1,"value":{"tuple":"%s"}}' % ("\u4e2d" * 30_000)
    with cloud.device("stranger") as device:
        status, why = device.post(part.encode(), "part")
        assert (status, why) == (400, "this is no message of ours: ValueError: unknown tag 'tuple'")
    assert cloud.answers("phone")


def test_devices_that_say_nothing_make_room(cloud: ServedCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_wires, "MOST_CHANNELS", 8)
    silent: list[Stranger] = []
    try:
        for n in range(8):
            silent.append(cloud.device(f"silent-{n}"))  # noqa: PERF401 - those made before a failure are closed
        # It was the first, and has asked since.
        silent[0].say(REQUEST)
        list(silent[0].until("end"))
        time.sleep(0.1)
        assert cloud.answers("phone")
        with pytest.raises(OSError):
            silent[1].hear()
        silent[0].say(REQUEST)
        assert silent[0].hear()[0] == "message"
    finally:
        for device in silent:
            device.leave()


def test_a_cloud_that_may_not_listen_says_so_before_it_loads_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr(served_world, "parts_for", lambda *args: loaded.append(args))
    with pytest.raises(InputError, match=r"0\.0\.0\.0 can be reached from elsewhere: a token is needed"):
        serve_cloud(load_scenario("pd_device/live"), host="0.0.0.0")
    assert not loaded

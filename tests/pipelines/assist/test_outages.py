"""Instances that are down for a while, on paper (see test_by_hand.py)."""

from collections.abc import Iterator
from typing import Any

import pytest
from assisted import APART, BY_HAND, CLOUD, columns, only, ran
from by_hand import by_hand
from tiny import changed, tiny

from kvferry.specs.errors import InputError

SETTING = "policies.assist={tokens: 5, ratio: 0.25}"


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def down(start: str, duration: str, **more: Any) -> dict[str, Any]:
    return {"cloud": {**CLOUD, "outages": [{"start": start, "duration": duration}], **more}}


def test_a_prompt_in_hand_is_lost_and_the_device_told() -> None:
    # The prompt is there at 34 ms, forwarded at 39, and would be prefilled at 139.
    run = ran(SETTING, machines=down("50 ms", "1 s"))
    # 100 B of bad news cross within 10.1 ms; then 1,000 tokens are prefilled here.
    assert only(run)["first_s"] == pytest.approx(0.050 + 0.0101 + 1.0)
    assert only(run)["lost"] == 1
    assert "an instance is down until 1.05 s" in run.notes[0]


def test_a_prompt_that_comes_meanwhile_waits() -> None:
    whole, late = (
        only(ran(SETTING, machines=machines))["first_s"] for machines in ({"cloud": CLOUD}, down("0 s", "200 ms"))
    )
    assert late == pytest.approx(whole + 0.200 - 0.039)


def test_tokens_that_were_not_sent_are_the_devices_own() -> None:
    # The first token is sent at 139 ms, further ones at 149, 159 and 169; then the instance goes down.
    run = ran(system="cloud-only", machines=down("170 ms", "1 s"))
    (one,) = run.requests
    assert only(run)["came"] == 4 and only(run)["lost"] == 1
    assert len(one.token_times_s) == 10
    assert one.token_times_s[4] > 1.0
    assert "behind token 4 of 10" in run.notes[0]


def test_the_kv_of_a_prompt_that_waits_for_its_mask_is_lost_too() -> None:
    # Prefilled at 139 ms, refined at 159.
    run = ran(SETTING, machines=down("150 ms", "1 ms"))
    assert only(run)["lost"] == 1 and only(run)["first_s"] > 1.0
    assert "the prompt's KV is lost" in run.notes[0]


def test_the_others_of_a_group_take_its_requests() -> None:
    machines = down("0 s", "1000 s", count=2)
    machines["cloud"]["outages"][0]["instance"] = 0
    run = ran(SETTING, machines=machines, workload={"devices": 2})
    first_s = columns(run)["first_s"]
    assert columns(run)["lost"] == [0, 0]
    # The second prompt is prefilled on the one that is up, behind the first.
    assert max(first_s) - min(first_s) >= 0.05


@pytest.mark.parametrize("part", ["prefill", "decode"])
def test_apart(part: str) -> None:
    machines = {**APART, part: {**CLOUD, "outages": [{"start": "120 ms", "duration": "100 ms"}]}}
    lost = only(ran(SETTING, machines=machines))["lost"]
    # One that decodes has nothing in hand yet, and is waited for.
    assert lost == (part == "prefill")


def test_what_comes_behind_an_outage_is_served_as_ever() -> None:
    at = {"arrivals": {"rate": "0.2 Hz"}, "requests": 4}
    run = ran(SETTING, machines=down("0 s", "100 ms"), workload=at)
    assert columns(run)["lost"] == [0, 0, 0, 0]
    assert run.assisted is not None and run.assisted.cloud["cloud_latency_s"] < 1.0


@pytest.mark.parametrize(
    ("outages", "what"),
    [
        ([{"start": "1 s", "duration": "2 s"}, {"start": "2 s", "duration": "1 s"}], "overlap or are out of order"),
        ([{"start": "1 s", "duration": "2 s"}, {"start": "2 s", "duration": "1 s", "instance": 0}], "overlap"),
        ([{"start": "1 s", "duration": "2 s", "instance": 1}], "name instance 1; the group has 1, from 0 on"),
        ([{"start": "1 s", "duration": "0 s"}], "duration"),
    ],
)
def test_outages_that_cannot_be_are_refused(outages: list[dict[str, Any]], what: str) -> None:
    with pytest.raises(InputError, match=what):
        tiny(changed(BY_HAND, machines={"cloud": {**CLOUD, "outages": outages}}))

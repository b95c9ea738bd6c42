"""Beginnings whose KV an instance keeps, on paper (see test_by_hand.py): the cloud prefills a token in 0.1 ms."""

from collections.abc import Iterator
from typing import Any

import pytest
from assisted import APART, BY_HAND, CLOUD, columns, ran
from by_hand import by_hand
from held import engine_bytes
from tiny import tiny

from kvferry.pipelines.checks import names_in_use
from kvferry.pipelines.record import Run

CACHING = "policies.serving={name: slots, prefix_caching: true}"
SETTING = "policies.assist={tokens: 2, ratio: 0.5}"


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


def two_requests(*overrides: str, **workload: Any) -> Run:
    """One device, the second request when the first has been answered."""
    asked = {"requests": 2, "beginning": 400, **workload}
    return ran(SETTING, *overrides, workload=asked)


def test_the_second_prompt_is_prefilled_behind_the_beginning() -> None:
    run = two_requests(CACHING)
    # 1,000 tokens, then the 600 behind the beginning.
    assert columns(run)["cloud_prefill_s"] == pytest.approx([0.100, 0.060])
    assert run.assisted is not None and run.assisted.cloud["cloud_prefix_share"] == 400 / 2000


def test_by_default_nothing_is_kept() -> None:
    run = two_requests()
    assert columns(run)["cloud_prefill_s"] == pytest.approx([0.100, 0.100])
    assert run.assisted is not None and "cloud_prefix_share" not in run.assisted.cloud


def test_each_scene_has_a_beginning_of_its_own() -> None:
    run = two_requests(CACHING, scenes=1000)
    assert columns(run)["cloud_prefill_s"] == pytest.approx([0.100, 0.100])


def test_instances_that_prefill_keep_it_and_those_that_decode_do_not() -> None:
    run = ran(SETTING, CACHING, workload={"requests": 2, "beginning": 400}, machines=APART)
    assert columns(run)["cloud_prefill_s"] == pytest.approx([0.100, 0.060])


def test_an_outage_loses_it() -> None:
    # Both requests are over within 3 s; the second begins behind the first.
    first = columns(two_requests(CACHING))
    down_s = (first["last_s"][0] + first["began_s"][1]) / 2
    machines = {"cloud": {**CLOUD, "outages": [{"start": f"{down_s} s", "duration": "1 ms"}]}}
    run = ran(SETTING, CACHING, workload={"requests": 2, "beginning": 400}, machines=machines)
    assert columns(run)["cloud_prefill_s"] == pytest.approx([0.100, 0.100])


def test_requests_go_before_what_is_kept() -> None:
    """Of memory for 1,500 tokens a beginning of 990 leaves no room for the next request of 1,002, which pushes it
    out."""
    room_bytes = engine_bytes(tiny(BY_HAND), "cloud") + 1500 * tiny(BY_HAND).model.kv_bytes_per_token
    small = {**CLOUD["device"], "memory": {"capacity_bytes": f"{room_bytes} B"}}
    run = ran(
        SETTING, CACHING, workload={"requests": 3, "beginning": 990}, machines={"cloud": {**CLOUD, "device": small}}
    )
    assert columns(run)["cloud_prefill_s"] == pytest.approx([0.100, 0.100, 0.100])


def test_p_counts_on_it() -> None:
    """The first token of a prompt whose beginning is there is expected sooner, so the device waits less."""
    expected = [two_requests(*more).requests[1].first_token_s for more in ((CACHING,), ())]
    assert expected[0] < expected[1]


@pytest.mark.parametrize("name", ["prefix_caching", "batched_prefill"])
def test_real_instances_do_neither(name: str) -> None:
    policy = f"policies.serving={{name: slots, {name}: true}}"
    said = [
        f"{'.'.join(map(str, one.key))}: {one.what}" for one in names_in_use(tiny(BY_HAND, policy, "backend=torch"))
    ]
    assert any(f"policies.serving.{name}: is modelled alone" in line for line in said), said


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("workload.churn={online: 1 s, offline: 1 s}", "workload.churn"),
        ("machines.cloud.outages=[{start: 0 s, duration: 1 s}]", "machines.cloud.outages"),
    ],
)
def test_what_goes_wrong_in_a_modelled_fleet_is_refused_for_real(setting: str, key: str) -> None:
    said = [
        f"{'.'.join(map(str, one.key))}: {one.what}" for one in names_in_use(tiny(BY_HAND, setting, "backend=torch"))
    ]
    assert any(f"{key}: is modelled alone" in line for line in said), said
    assert not any("modelled alone" in one.what for one in names_in_use(tiny(BY_HAND, setting)))

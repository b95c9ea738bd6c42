"""A cloud that reads what is new in a turn: on paper, and with every decode system.

The device reads a token in 1 ms and decodes one in 20 ms, the cloud in 0.1 ms and 10 ms. The link carries 1 MB/s either
way, with a round trip of 20 ms; a token of a prompt weighs 4 B, the first response 260 B.
"""

import re
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from assisted import CLOUD
from by_hand import LayersByHand
from tiny import TURNS, changed, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.remarks import remarks_on
from kvferry.analysis.tables import compare_table, run_table, show
from kvferry.pipelines.assist.systems import ASSIST_SYSTEMS
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.specs.errors import InputError

BY_HAND: dict[str, Any] = {
    "name": "by-hand",
    "system": "in-memory",
    "device": "tiny",
    "model": "tiny",
    "link": {"rate": "1 MB/s", "rtt": "20 ms"},
    "machines": {"cloud": CLOUD},
    "costs": "layers-by-hand",
    "workload": {
        "kind": "session",
        "turns": 2,
        "context": 0,
        "question": 1000,
        "output": 10,
        "turns_each": 1000.0,
        "think": "5 s",
        "block": 101,
        "in_cloud": "nothing",
    },
    "policies": {"assist": {"name": "tokens-only", "assist": {"tokens": 5}}, "keep": "memory-cloud"},
}
# Prepared on the device, half a round trip, and forwarded; the first response and half a round trip.
BEFORE_S, AFTER_S = 0.020 + 0.010 + 0.005, 0.00026 + 0.010


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    COST_MODELS["layers-by-hand"] = LayersByHand
    yield
    del COST_MODELS["layers-by-hand"]


def ran(*overrides: str, **changes: Any) -> Run:
    run = run_scenario(tiny(changed(BY_HAND, **changes), *overrides))
    assert run.outcome == "done", run.why
    return run


def waits_s(run: Run) -> list[float]:
    assert run.sessions is not None
    return [turn.first_token_s - turn.arrival_s for turn in run.sessions.turns]


def test_the_cloud_reads_what_is_new_and_the_device_catches_up() -> None:
    run = ran()
    first_s = BEFORE_S + 0.004 + 0.100 + AFTER_S
    # Of 1,010 tokens ten blocks are kept here and there; of 2,010 tokens 1,000 are new to both.
    assert waits_s(run) == pytest.approx([first_s, first_s])
    assert run.sessions is not None
    second = run.sessions.turns[1]
    assert (second.from_memory, second.computed, second.said_by_cloud) == (1010, 1000, 5)
    # The device has its own first token after 20 ms and a second; until then the cloud's five are spread.
    pace_s = 0.020 + (1.020 - first_s) / 4
    shown_s = [first_s + pace_s * n for n in range(5)] + [1.020 + 0.020 * n for n in range(5, 10)]
    assert [time - second.arrival_s for time in run.requests[1].token_times_s] == pytest.approx(shown_s)


def test_a_turn_whose_cloud_is_silent_shows_the_devices_own_token() -> None:
    run = ran(link={"outages": [{"start": "30 ms", "duration": "100 s"}]})
    assert run.sessions is not None
    assert waits_s(run) == pytest.approx([1.020, 1.020])
    assert [turn.said_by_cloud for turn in run.sessions.turns] == [0, 0]
    # The cloud keeps what was brought to it behind the first turn, as where it helps.
    helped = ran()
    assert helped.sessions is not None
    kept = [[(turn.from_memory, turn.from_cloud) for turn in one.sessions.turns] for one in (run, helped)]  # type: ignore[union-attr]
    assert kept[0] == kept[1]


def test_a_turn_that_is_read_whole_waits_for_no_mask() -> None:
    whole = "policies.assist={{name: pd-device, assist: {{tokens: 5, ratio: 1.0, mask: {}}}}}"
    assert ran(whole.format("behind-token")).requests == ran(whole.format("with-token")).requests


def test_energy_says_whose_it_is() -> None:
    settings = "workload.turns=3", "workload.output=8"
    scenario = load_scenario("session/assisted", settings)
    run = run_scenario(scenario)
    found = metrics_for(scenario, run)
    assert found["said_by_cloud_share"] > 0
    of_cloud_j = sum(run.machines["cloud"].energy_j.values()) / 3
    assert of_cloud_j > 0
    assert found["cloud_energy_j"] == pytest.approx(of_cloud_j)
    assert found["total_energy_j"] == pytest.approx(found["energy_j"] + of_cloud_j)
    out = StringIO()
    show(run_table(found), out)
    show(compare_table({"everywhere": found}), out)
    for label in ("devices' energy/request", "cloud's energy/request", "both together", "devices' energy per day"):
        assert label in out.getvalue()
    alone = load_scenario("session/assisted", [*settings, "policies.assist=null", "machines={}"])
    assert {"cloud_energy_j", "total_energy_j"}.isdisjoint(metrics_for(alone, run_scenario(alone)))
    # A cloud without power: what it takes is not known, and neither is the sum.
    unknown = load_scenario("session/assisted", [*settings, "machines.cloud.device.base_w=0 W"])
    assert {"cloud_energy_j", "total_energy_j"}.isdisjoint(metrics_for(unknown, run))
    (line,) = [line for line in remarks_on({"everywhere": (unknown, run)}) if "the cloud's energy" in line]
    assert line.startswith("the cloud's energy is not counted: a800-80gb-host has no power for base")


def test_a_cloud_that_keeps_nothing_reads_it_all() -> None:
    waited_s = waits_s(ran("policies.keep=memory"))
    assert waited_s[1] == pytest.approx(BEFORE_S + 2010 * (4e-6 + 0.1e-3) + AFTER_S)


def test_help_that_would_be_later_is_not_asked_for() -> None:
    # 100 tokens take the device 0.1 s, and 45 ms pass on the way to the cloud and back.
    run = ran("policies.assist=tokens-only", "workload.question=30", "workload.block=10")
    assert run.sessions is not None
    assert waits_s(run) == pytest.approx([0.030, 0.030])
    assert [turn.said_by_cloud for turn in run.sessions.turns] == [0, 0]


def test_a_turn_leaves_as_much_as_without_help() -> None:
    alone = ran("policies.assist=null", "policies.keep=memory", machines={"cloud": None})
    helped = ran("policies.keep=memory")
    assert alone.sessions is not None and helped.sessions is not None
    kept = [[turn.kept_memory_bytes for turn in run.sessions.turns] for run in (alone, helped)]
    assert kept[0] == kept[1]
    # It ends later by what it takes to ask.
    ends = [run.requests[0].token_times_s[-1] for run in (alone, helped)]
    assert ends[1] - ends[0] == pytest.approx(0.020)


def test_a_device_that_is_helped_does_the_same_work() -> None:
    """With costs that grow with what comes before: prompts are read behind what is known, and answers are decoded."""

    def worked_s(run: Run) -> list[float]:
        spans = [span for span in run.spans if span.resource == "gpu" and span.request == 1]
        reads = sum(span.end_s - span.start_s for span in spans if span.label in ("PrefillLayer", "OutputHead"))
        return [reads, sum(span.end_s - span.start_s for span in spans) - reads]

    costs = {"truth": "roofline", "estimate": "roofline"}
    slow = "device.processors.gpu.flop_per_s=2 Gflop/s"
    alone = ran(slow, "policies.assist=null", "policies.keep=memory", machines={"cloud": None}, costs=costs)
    helped = ran(slow, "policies.keep=memory", costs=costs)
    assert worked_s(helped) == pytest.approx(worked_s(alone), rel=1e-6)
    # The cloud, too, reads a thousand tokens behind none, and then as many behind what it keeps.
    spans = [span for span in ran(slow, costs=costs).spans if (span.resource, span.label) == ("cloud/gpu", "Prefill")]
    first_s, second_s = (span.end_s - span.start_s for span in spans)
    assert 2 * first_s < second_s < 3 * first_s


# A device so slow that it never has a token of its own before the cloud's is there.
SLOW = {"processors": {"gpu": {"flop_per_s": "2 Gflop/s"}}}
ASSISTED_TURNS = changed(TURNS, device=SLOW, machines={"cloud": {"device": "rtx-5080-laptop", "model": "tiny"}})
# Decode systems with all KV in memory that keep a prompt's beginning.
IN_MEMORY = ("vllm", "full-eager", "full-flash", "full-flashinfer")


def test_a_conversation_may_be_longer_than_a_prompt_of_many_devices() -> None:
    long = ("policies.assist={name: tokens-only, assist: {tokens: 3}}", "policies.decode=vllm", "workload.turns=1")
    run = run_scenario(tiny(ASSISTED_TURNS, *long, "workload.context=1200000", "workload.block=4096", "budget={}"))
    assert run.outcome == "done" and run.sessions is not None
    assert run.sessions.turns[0].said_by_cloud == 3


@pytest.mark.parametrize("decode", DECODE_SYSTEMS)
def test_with_every_decode_system(decode: str) -> None:
    settings = ("policies.assist={name: tokens-only, assist: {tokens: 3}}", f"policies.decode={decode}")
    scenario = tiny(ASSISTED_TURNS, *settings, "policies.keep=memory-flash")
    if decode in IN_MEMORY:
        run = run_scenario(scenario)
        assert run.outcome == "done" and run.sessions is not None
        assert [turn.said_by_cloud for turn in run.sessions.turns] == [3, 3, 3, 3]
    else:
        with pytest.raises(InputError, match=f"policies.(assist|decode): {decode} "):
            run_scenario(scenario)


@pytest.mark.parametrize("load", SYSTEMS)
def test_with_every_loading_system(load: str) -> None:
    settings = ("policies.assist={name: tokens-only, assist: {tokens: 3}}", f"policies.load={load}")
    run = run_scenario(tiny(ASSISTED_TURNS, *settings, "policies.decode=vllm", "policies.keep=memory-flash-cloud"))
    assert run.outcome == "done" and run.sessions is not None
    assert all(turn.said_by_cloud == 3 for turn in run.sessions.turns)


@pytest.mark.parametrize("assist", [name for name in ASSIST_SYSTEMS if name != "tokens-only"])
def test_help_that_leaves_no_whole_kv_is_refused(assist: str) -> None:
    what = (
        f"policies.assist: {assist} leaves a device without the KV of what is new, from which its next turn goes on; "
    )
    with pytest.raises(InputError, match=re.escape(what)):
        run_scenario(tiny(ASSISTED_TURNS, f"policies.assist={assist}"))


def test_help_needs_a_cloud_and_a_cloud_something_to_do() -> None:
    with pytest.raises(InputError, match="machines: tokens-only needs a cloud: instances called cloud, or some called"):
        run_scenario(tiny(TURNS, "policies.assist=tokens-only"))
    with pytest.raises(InputError, match=r"machines\.cloud: session runs on the device alone; leave it out"):
        run_scenario(tiny(ASSISTED_TURNS))


def test_a_device_that_takes_minutes_for_a_token_is_helped() -> None:
    """It asks for a token a minute, the slowest pace that a cloud takes from strangers."""
    run = ran("workload.turns=1", "device.processors.gpu.dispatch_s=100 s")
    assert run.sessions is not None
    assert run.sessions.turns[0].said_by_cloud == 5

"""Steps that are worked out are those that events come to: the contract of the two ways to carry out a batch."""

from collections.abc import Mapping
from typing import Any

import pytest
from tiny import DECODING, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.decoding.foreseen import ForeseenSteps
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

SMALL = ["workload.context=6Ki", "workload.batch=2", "workload.output=40", "workload.decoded=12"]


@pytest.fixture
def foreseen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the steps that were worked out."""
    steps: list[int] = []
    step = ForeseenSteps.step

    def counted(self: ForeseenSteps) -> Any:
        steps.append(self._now.step)
        return step(self)

    monkeypatch.setattr(ForeseenSteps, "step", counted)
    return steps


def by_events(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> Run:
    with monkeypatch.context() as patch:
        patch.setattr("kvferry.pipelines.decoding.decode.foreseeable", lambda plan: False)
        return run_scenario(scenario)


def figures(run: Run, scenario: Scenario) -> Mapping[str, float]:
    return metrics_for(scenario, run)


@pytest.mark.parametrize(
    "settings",
    [
        ("device.storage=nvme",),
        ("device.storage=emmc",),
        ("device.storage=ufs-4.0",),
        ("device.storage=emmc", "system=infinigen-star-ru"),
        ("device.storage=nvme", "system=infinigen"),
        ("device.storage=emmc", "system=shadowkv"),
        ("device.storage=nvme", "policies.ahead=false", "policies.group_tokens=3"),
        ("device.storage=emmc", "policies.upkeep=none"),
        ("device.storage=nvme", "policies.reuse=false", "workload.decoded=null"),
        ("device.contention=null", "device.storage.duplex=half"),
    ],
)
def test_they_are_equal(settings: tuple[str, ...], foreseen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario("kvswap/throughput", [*SMALL, *settings])
    run = run_scenario(scenario)
    assert len(foreseen) == len(run.requests[0].token_times_s) - 1
    expected = by_events(scenario, monkeypatch)
    assert run.requests[0].token_times_s == pytest.approx(expected.requests[0].token_times_s, rel=1e-12)
    assert figures(run, scenario) == pytest.approx(figures(expected, scenario), rel=1e-9)
    assert run.energy_j == pytest.approx(expected.energy_j, rel=1e-9)
    told, wanted = ([tuple(span) for span in sorted(one.spans)] for one in (run, expected))
    assert len(told) == len(wanted)
    for one, other in zip(told, wanted, strict=True):
        assert one[:2] == other[:2]
        assert one[2:5] == pytest.approx(other[2:5], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        ("load={share: 0.5}",),
        ("device.storage.model=queue", "workload.batch=1", "workload.context=4Ki"),
        ("system=flexgen",),
        (
            "device.memory.unified=false",
            "device.memory.copy_bytes_per_s=10 GB/s",
            "device.memory.host_capacity_bytes=9 GiB",
        ),
        ("policies.placement={name: progressive, overflow: storage}",),
    ],
)
def test_where_something_may_interfere_events_decide(settings: tuple[str, ...], foreseen: list[int]) -> None:
    scenario = load_scenario("kvswap/throughput", [*SMALL, *settings])
    assert run_scenario(scenario).outcome == "done"
    assert not foreseen


def test_interrupted_it_keeps_what_was_decoded(foreseen: list[int]) -> None:
    def stop(tokens: int, of: int) -> None:
        raise KeyboardInterrupt

    run = run_scenario(tiny(DECODING, workload={"output": 60}), stop)
    assert (run.outcome, len(run.requests[0].token_times_s), len(foreseen)) == ("interrupted", 16, 15)

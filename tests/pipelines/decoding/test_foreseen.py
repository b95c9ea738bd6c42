"""Steps that are worked out are those that events come to: the contract of the two ways to carry out a batch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from plugin import none_left, written  # noqa: F401
from tiny import DECODING, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.decoding.foreseen import ForeseenSteps
from kvferry.pipelines.decoding.foreseen_stages import StagedSteps
from kvferry.pipelines.plugins import use
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

# Wants half of what is chosen.
HALF = """\
from dataclasses import dataclass

from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.scored_keys import LowRankKeys


@dataclass(frozen=True, kw_only=True)
class Half(LowRankKeys):
    def take(self, ranked):
        return BlockRows(ranked.blocks.ids[:, ::2])


KVFERRY = {"selector": {"half": Half}}
"""
CLUSTERS = ["model=qwen2.5-1.5b", "workload.context=256", "workload.output=60", "workload.decoded=20"]
SMALL = ["workload.context=6Ki", "workload.batch=2", "workload.output=40", "workload.decoded=12"]


@pytest.fixture
def foreseen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the steps that were worked out."""
    return counted(ForeseenSteps, monkeypatch)


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Those that were worked out stage by stage."""
    return counted(StagedSteps, monkeypatch)


def counted(kind: type[ForeseenSteps] | type[StagedSteps], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps: list[int] = []
    step = kind.step

    def one(self: Any) -> Any:
        steps.append(self._now.step)
        return step(self)

    monkeypatch.setattr(kind, "step", one)
    return steps


def by_events(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> Run:
    with monkeypatch.context() as patch:
        for how in ("foreseeable", "foreseeable_by_stages"):
            patch.setattr(f"kvferry.pipelines.decoding.decode.{how}", lambda plan, foresight: False)
        return run_scenario(scenario)


def test_a_selector_that_takes_less_than_is_chosen(
    foreseen: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is worked out without asking it."""
    monkeypatch.chdir(tmp_path)
    use(written(HALF))
    whole, half = (
        load_scenario("kvswap/throughput", [*SMALL, f"policies.selector={name}"]) for name in ("low-rank-keys", "half")
    )
    wanted = []
    for one in (whole, half):
        decoded = run_scenario(one).decoded
        assert decoded is not None
        wanted.append(decoded.end_counts["wanted"])
    assert wanted[1] == wanted[0] / 2


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
        ("device.storage=emmc", "device.storage.slowed_by_computing=true"),
        ("device.storage=nvme", "device.storage.slowed_by_computing=true", "system=shadowkv"),
        ("device.storage.slowed_by_computing=true", "device.storage.duplex=half", "policies.reuse=false"),
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
    assert run.decoded is not None and expected.decoded is not None
    assert run.decoded.step_blocks == expected.decoded.step_blocks
    told, wanted = ([tuple(span) for span in sorted(one.spans)] for one in (run, expected))
    assert len(told) == len(wanted)
    for one, other in zip(told, wanted, strict=True):
        assert one[:2] == other[:2]
        assert one[2:5] == pytest.approx(other[2:5], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        ("system=dynakv",),
        ("system=dynakv", "policies.page_buffers=4", "policies.buffer_tokens=2", "device.storage.merges=false"),
        ("system=dynakv", "policies.layout=cluster-by-cluster", "policies.residency=whole-cache"),
        ("system=dynakv", "policies.paired_by=8", "policies.selected_share=0.4"),
        (
            "system=dynakv",
            "policies.layout=cluster-pools",
            "policies.upkeep=global-clusters",
            "policies.every_tokens=5",
        ),
        ("system=pqcache", "device.storage.duplex=full"),
        ("system=clusterkv", "policies.window_tokens=8", "policies.window_clusters=2"),
        ("system=no-cluster", "device.storage.duplex=half"),
    ],
)
def test_clusters_are_equal_stage_by_stage(
    settings: tuple[str, ...], staged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = load_scenario("dynakv/latency", [*CLUSTERS, *settings])
    run = run_scenario(scenario)
    assert len(staged) == len(run.requests[0].token_times_s) - 1
    expected = by_events(scenario, monkeypatch)
    assert len(staged) == len(run.requests[0].token_times_s) - 1
    # To the last digit: nothing slows what is under way. Energy is summed in another order.
    assert run.requests[0].token_times_s == expected.requests[0].token_times_s
    assert figures(run, scenario) == pytest.approx(figures(expected, scenario), rel=1e-13)
    assert sorted(tuple(span) for span in run.spans) == sorted(tuple(span) for span in expected.spans)


@pytest.mark.parametrize(
    "settings",
    [
        ("load={share: 0.5}",),
        ("device.storage.model=queue", "workload.batch=1", "workload.context=4Ki"),
        ("system=flexgen",),
        ("system=no-cluster", "workload.batch=1", "budget.kv_share=1"),
        (
            "device.memory.unified=false",
            "device.memory.copy_bytes_per_s=10 GB/s",
            "device.memory.host_capacity_bytes=9 GiB",
        ),
        ("policies.placement={name: progressive, overflow: storage}", "policies.reuse=false"),
    ],
)
def test_where_something_may_interfere_events_decide(
    settings: tuple[str, ...], foreseen: list[int], staged: list[int]
) -> None:
    scenario = load_scenario("kvswap/throughput", [*SMALL, *settings])
    assert run_scenario(scenario).outcome == "done"
    assert not foreseen and not staged


def test_interrupted_it_keeps_what_was_decoded(foreseen: list[int]) -> None:
    def stop(tokens: int, of: int) -> None:
        raise KeyboardInterrupt

    run = run_scenario(tiny(DECODING, workload={"output": 60}), stop)
    assert (run.outcome, len(run.requests[0].token_times_s), len(foreseen)) == ("interrupted", 16, 15)

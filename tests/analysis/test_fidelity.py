"""Two worlds beside each other. Here both are modelled ones, so that every error is known by hand."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plugin import LOADER, none_left  # noqa: F401
from tiny import DECODING, TURNS

from kvferry.analysis import fidelity, fidelity_study
from kvferry.analysis.fidelity import TwoWorlds, beside, beside_pairs, figures_of, in_both_worlds, summary_of
from kvferry.analysis.fidelity_study import FidelityStudy, measure
from kvferry.analysis.remarks import how_known
from kvferry.backends.needs import Needs
from kvferry.backends.sim.world import SimWorld
from kvferry.backends.world import Inputs, Say, World
from kvferry.cli.fidelity import _show as show
from kvferry.machine.span import Span, Tell
from kvferry.pipelines.plugins import drop, use, used
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.loader import load_scenario
from kvferry.specs import human
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario
from kvferry.traces.selections import SelectionStream


def scenario(**changes: Any) -> Scenario:
    described = {
        "name": "both",
        "system": "stream-only",
        "device": "tiny",
        "model": "tiny",
        "link": {"rate": "8 Mbit/s"},
        "workload": {"kind": "context-reuse", "context": 4096},
    }
    return load_scenario(described | changes)


@contextmanager
def faithful(described: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say) -> Iterator[World]:
    yield SimWorld(described, needs, inputs, tell)


@contextmanager
def half_as_fast(described: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say) -> Iterator[World]:
    slow = described.model_copy(update={"link": described.link.model_copy(update={"rate_bytes_per_s": 0.5e6})})
    yield SimWorld(slow, needs, inputs, tell)


def test_a_world_that_is_as_simulated_shows_no_error() -> None:
    worlds = [in_both_worlds(scenario(), live=faithful) for _ in range(3)]
    simulated = figures_of(scenario(), worlds[0].simulated)
    figures = beside(simulated, [figures_of(scenario(), each.measured) for each in worlds])
    assert len(figures["runs"]) == 3
    assert {key: found["error"] for key, found in figures["metrics"].items()}.keys() >= {"ttft_s", "overlap"}
    assert all(found["error"] == 0 for found in figures["metrics"].values())
    assert all(not found["spread"] for found in figures["metrics"].values())
    assert all(op["error"] == 0 and op["simulated"] == op["measured"] for op in figures["ops"])


def test_turns_of_conversations_are_compared_one_by_one() -> None:
    alike: dict[str, Any] = {"metrics": {}, "ops": []}
    runs = [alike | {"turns": turns} for turns in ([1.0, 2.0, 8.0], [1.0, 4.0, 8.0], [3.0, 6.0, 8.0])]
    found = beside(alike | {"turns": [1.5, 3.0, 8.0]}, runs)
    # Medians of the runs: 1, 4 and 8 s.
    assert [turn["measured"] for turn in found["turns"]] == [1.0, 4.0, 8.0]
    assert [turn["error"] for turn in found["turns"]] == [0.5, -0.25, 0.0]
    assert found["turn_error_median"] == 0.25
    assert "turns" not in beside(alike, [alike])


def test_conversations_in_both_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    worlds = in_both_worlds(load_scenario(TURNS), live=faithful)
    figures = figures_of(worlds.scenario, worlds.simulated)
    assert len(figures["turns"]) == 4
    row = beside(figures, [figures_of(worlds.scenario, worlds.measured)]) | {"name": "tiny"}
    assert row["turn_error_median"] == 0
    show({"rows": [row], "study": "both", "runs": 1, "summary": {}, "remarks": []})
    told = "tiny: TTFT of 4 turns, each in the median of its runs: median error 0.0 %, largest 0.0 %"
    assert told in " ".join(capsys.readouterr().out.split())


def test_pictures_tell_the_error_of_the_medians_and_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(fidelity_study, "in_both_worlds", partial(in_both_worlds, live=half_as_fast))
    monkeypatch.setattr(fidelity_study, "render", lambda draw: figures.append(draw()) or {})
    report = measure(FidelityStudy(name="study", scenarios=[scenario()], varied=(), runs=2), tmp_path)
    found = report["rows"][0]["metrics"]["ttft_s"]
    first, last, all_rows = figures
    assert first.get_suptitle().splitlines()[0] == "both: stream-only in both worlds (tiny: not measured), run 1 of 2"
    above, below = last.get_suptitle().splitlines()
    assert above == "both: stream-only in both worlds (tiny: not measured), run 2 of 2"
    told = f"simulated {human.seconds(found['simulated'])}, measured {human.seconds(found['measured'])}"
    assert below == f"TTFT, mean: {told} in the median of 2: {100 * found['error']:+.1f} %, spread 0 %"
    assert all_rows.axes[0].get_title() == "study (tiny: not measured)"


def test_the_error_is_signed_and_relative_to_what_was_measured() -> None:
    # Streaming takes twice as long as simulated: the simulator is 50 % too fast, all but question and decompression.
    worlds = in_both_worlds(scenario(), live=half_as_fast)
    figures = [figures_of(scenario(), run) for run in (worlds.simulated, worlds.measured)]
    found = beside(figures[0], figures[1:])["metrics"]["ttft_s"]
    assert found["error"] == pytest.approx(-0.5, abs=0.01)
    assert found["error"] == found["simulated"] / found["measured"] - 1
    assert found["spread"] is None


@pytest.mark.parametrize("finished", [0, 1])
def test_ctrl_c_in_either_world_ends_both(finished: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [*[Run(outcome="done")] * finished, Run(outcome="interrupted", why="0 of 1 requests")]
    monkeypatch.setattr(fidelity, "run_scenario", lambda *_, **__: runs.pop(0))
    with pytest.raises(KeyboardInterrupt):
        in_both_worlds(scenario(), live=faithful)


def test_overlap_by_hand() -> None:
    # Of a load of 4 s, link and processor both work in [1, 2] and [3, 4]; what comes after the load does not count.
    spans = (
        Span("link", "Fetch", 0.0, 2.0, 1.0, 0),
        Span("link", "Fetch", 3.0, 4.0, 1.0, 0),
        Span("gpu", "Advance", 1.0, 4.0, 0.0, 0),
        Span("gpu", "Prefill", 4.0, 5.0, 0.0, 0),
    )
    record = RequestRecord(request=0, arrival_s=0.0, loaded_s=4.0, first_token_s=5.0)
    run = Run(outcome="done", requests=(record,), spans=spans)
    assert figures_of(scenario(), run)["metrics"]["overlap"] == pytest.approx(0.5)


def test_measured_is_the_median_of_the_runs() -> None:
    def figures(ttft_s: float, steps: int) -> dict[str, Any]:
        return {"metrics": {"ttft_s": ttft_s}, "ops": [["gpu", "Advance", steps, ttft_s / steps]] if steps else []}

    row = beside(figures(2, 4), [figures(5, 5), figures(1, 0), figures(3, 1)])
    found = row["metrics"]["ttft_s"]
    assert (found["measured"], found["error"]) == (3, pytest.approx(-1 / 3))
    assert found["spread"] == pytest.approx(2 / 3)  # deviation of 5, 1, 3 is 2
    # one run had no such op: its mean is that of the others, 1 and 3 s
    (op,) = row["ops"]
    assert (op["simulated"], op["measured"], op["measured_mean_s"], op["error"]) == (4, 1, 2, pytest.approx(-0.75))


def test_a_single_run_has_no_spread_between_runs() -> None:
    metrics = {"ttft_s": {"error": 0.1, "spread": None}}
    assert summary_of([{"headline": "ttft_s", "metrics": metrics}])["spread_median"] is None


def test_the_summary_allows_twice_the_spread() -> None:
    def row(error: float, spread: float | None) -> dict[str, Any]:
        return {"headline": "ttft_s", "metrics": {"ttft_s": {"error": error, "spread": spread}}}

    found = summary_of([row(0.01, 0.0), row(-0.2, 0.11), row(0.2, 0.05), row(-0.04, None)])
    assert found["error_median"] == pytest.approx(0.12)
    assert found["error_largest"] == 0.2
    assert found["beyond"] == 1
    assert summary_of([]) == {"scenarios": 0}


def test_runs_come_round_by_round_and_are_gone_on_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def counted(described: Scenario, *, say: Say) -> TwoWorlds:
        runs.append(described.system)
        if len(runs) == 4:
            raise KeyboardInterrupt
        return in_both_worlds(described, live=faithful)

    monkeypatch.setattr(fidelity_study, "in_both_worlds", counted)
    both = [scenario(), scenario(system="local-prefill")]
    study = FidelityStudy(name="both", scenarios=both, varied=(), runs=2)
    with pytest.raises(KeyboardInterrupt):
        measure(study, tmp_path)
    assert runs == ["stream-only", "local-prefill"] * 2
    report = measure(study, tmp_path)
    assert runs == ["stream-only", "local-prefill"] * 2 + ["local-prefill"]
    assert report == json.loads((tmp_path / "fidelity.json").read_text())
    assert [(row["system"], len(row["runs"])) for row in report["rows"]] == [("stream-only", 2), ("local-prefill", 2)]
    assert report["summary"]["error_largest"] == 0
    assert {path.name for path in (tmp_path / "plots").glob("*.png")} == {
        "ttft.png",
        "both-stream-only.png",
        "both-local-prefill.png",
    }


def test_the_error_of_pairs_is_the_median_of_their_own() -> None:
    """By hand: +10, -20 and +50 %; the medians of both worlds alone would say 0 %."""
    runs = [({"ttft_s": ours}, {"ttft_s": theirs}) for ours, theirs in ((1.1, 1.0), (1.6, 2.0), (6.0, 4.0))]
    pairs = [
        {"simulated": {"metrics": ours, "ops": []}, "measured": {"metrics": theirs, "ops": []}} for ours, theirs in runs
    ]
    found = beside_pairs(pairs)["metrics"]["ttft_s"]
    assert (found["simulated"], found["measured"]) == (1.6, 2.0)
    assert found["error"] == pytest.approx(0.1)


def test_turns_of_pairs_are_off_by_the_median_of_their_pairs() -> None:
    # The first turn is off by -0.5, 0 and 0.2; the second always by 0.5.
    runs = [([1.0, 3.0], [2.0, 2.0]), ([3.0, 3.0], [3.0, 2.0]), ([6.0, 1.5], [5.0, 1.0])]
    pairs = [
        {
            world: {"metrics": {}, "ops": [], "turns": turns}
            for world, turns in (("simulated", ours), ("measured", theirs))
        }
        for ours, theirs in runs
    ]
    found = beside_pairs(pairs)
    assert [turn["error"] for turn in found["turns"]] == pytest.approx([0.0, 0.5])
    assert [turn["simulated"] for turn in found["turns"]] == [3.0, 3.0]
    assert found["turn_error_median"] == pytest.approx(0.25)


class Probes:
    def __init__(self, change: float) -> None:
        self.change, self.kept = change, change < 1.15


def test_pairs_in_which_the_machine_changed_its_speed_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = iter([1.3, 1.0, 1.1, 1.2, 1.2])

    def paired(described: Scenario, say: Say) -> tuple[TwoWorlds, Any]:
        return in_both_worlds(described, live=faithful), Probes(next(changes))

    monkeypatch.setattr(fidelity_study, "_paired", paired)
    study = FidelityStudy(name="both", scenarios=[scenario()], varied=(), runs=3, paired=True)
    report = measure(study, tmp_path)
    assert (len(report["rows"][0]["runs"]), report["left_out"]) == (2, 1)
    (kept,) = json.loads((tmp_path / "runs.json").read_text()).values()
    assert [one["change"] for one in kept["left_out"]] == [1.3]
    show(report)
    assert "1 of 3 runs do not count: the machine changed its speed" in capsys.readouterr().out
    alone = FidelityStudy(name="both", scenarios=[scenario(system="local-prefill")], varied=(), runs=2, paired=True)
    with pytest.raises(KvferryError, match="the machine changed its speed in each of its 2 runs"):
        measure(alone, tmp_path)


def test_runs_of_a_changed_policy_are_anothers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be mixed with those of the file as it was."""
    runs = 0

    def counted(described: Scenario, *, say: Say) -> TwoWorlds:
        nonlocal runs
        runs += 1
        return in_both_worlds(described, live=faithful)

    monkeypatch.setattr(fidelity_study, "in_both_worlds", counted)
    study = FidelityStudy(name="one", scenarios=[scenario()], varied=(), runs=2)
    added = []
    for file in (None, LOADER, LOADER, LOADER + "# Changed.\n", None):
        for plugin in used():
            drop(plugin)
        if file is not None:
            (tmp_path / "mine.py").write_text(file)
            use(tmp_path / "mine.py")
        before = runs
        measure(study, tmp_path / "kept")
        added.append(runs - before)
    assert added == [2, 2, 0, 2, 0]


def test_the_error_on_a_guessed_profile_is_said_to_be_the_profiles_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        fidelity_study, "in_both_worlds", lambda described, say: in_both_worlds(described, live=faithful)
    )
    both = [scenario(), scenario(system="local-prefill")]
    report = measure(FidelityStudy(name="both", scenarios=both, varied=(), runs=1), None)
    assert report["remarks"] == [how_known(both[0].device)]
    assert "kvferry calibrate measures one" in report["remarks"][0]
    show(report)
    assert capsys.readouterr().out.count("is not a measured device") == 1
    processors = {
        name: one.model_copy(update={"measured": "measured"}) for name, one in both[0].device.processors.items()
    }
    calibrated = both[0].model_copy(update={"device": both[0].device.model_copy(update={"processors": processors})})
    assert list(fidelity_study._remarks([calibrated])) == []


def test_runs_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text("[1")
    study = FidelityStudy(name="both", scenarios=[scenario()], varied=(), runs=1)
    with pytest.raises(InputError, match="remove it"):
        measure(study, tmp_path)


def test_a_run_whose_link_went_down_measures_nothing() -> None:
    dying = scenario(link={"trace": "wifi-campus", "on_end": "end", "offset": "100000 s"})
    with pytest.raises(KvferryError, match="measures nothing: the link went down, .*trace ends"):
        in_both_worlds(dying, live=faithful)


def test_a_run_that_fails_is_reported() -> None:
    big = scenario(budget={"memory": "0.1 MB"})
    with pytest.raises(KvferryError, match="it ended out of memory"):
        in_both_worlds(big, live=faithful)


@contextmanager
def a_tenth_slower(described: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say) -> Iterator[World]:
    """Every rate of the device is a tenth lower, its storage's latency a tenth longer."""
    device = described.device
    processors = {
        name: one.model_copy(update={"flop_per_s": one.flop_per_s / 1.1, "bytes_per_s": one.bytes_per_s / 1.1})
        for name, one in device.processors.items()
    }
    memory = device.memory.model_copy(update={"bytes_per_s": device.memory.bytes_per_s / 1.1})
    assert device.storage is not None
    assert device.storage.bytes_per_s is not None
    slower = {"bytes_per_s": device.storage.bytes_per_s / 1.1, "latency_s": 1.1 * device.storage.latency_s}
    storage = device.storage.model_copy(update=slower)
    slow = device.model_copy(update={"processors": processors, "memory": memory, "storage": storage})
    yield SimWorld(described.model_copy(update={"device": slow}), needs, inputs, tell)


@pytest.mark.parametrize("system", ["kvswap", "flexgen", "vllm"])
def test_a_decoding_world_that_is_a_tenth_slower_shows_a_tenth(system: str) -> None:
    wanted = load_scenario(DECODING | {"system": system})
    worlds = in_both_worlds(wanted, live=a_tenth_slower)
    simulated, measured = (figures_of(wanted, run) for run in (worlds.simulated, worlds.measured))
    found = beside(simulated, [measured], "throughput_tokens_per_s")
    assert found["metrics"]["throughput_tokens_per_s"]["error"] == pytest.approx(0.10, abs=0.001)
    assert found["runs"] == [measured["metrics"]["throughput_tokens_per_s"]]


def test_selections_that_a_world_recorded_are_what_is_simulated() -> None:
    """The recorded stream wants the same two KV blocks at every step, and generated ones do not: all but the first
    step's are reused."""
    wanted = load_scenario(DECODING | {"policies": {"group_tokens": 4, "selected_tokens": 8, "slots": 4}})
    layers = wanted.model.layers
    same = SelectionStream(np.tile(np.array([3, 9], np.int32), (2 * 11, layers, 1, 1)), 259)

    @contextmanager
    def recording(described: Scenario, needs: Needs, inputs: Inputs, tell: Tell, say: Say) -> Iterator[World]:
        yield SimWorld(described, needs, Inputs(selections=same), tell)

    worlds = in_both_worlds(wanted, live=recording)
    for run in (worlds.simulated, worlds.measured):
        assert figures_of(wanted, run)["metrics"]["reuse_rate"] == pytest.approx(10 / 11)
    assert WORKLOADS["decode"].remark(wanted) is not None
    assert WORKLOADS["decode"].remark(load_scenario(DECODING | {"live": {"paced": False}})) is None
    # It reads no storage, paced or not.
    assert WORKLOADS["decode"].remark(load_scenario(DECODING | {"system": "vllm"})) is None
    for placement, paced in (("host", False), ("device", False), ("storage", True)):
        scenario = load_scenario(DECODING | {"policies": {"placement": placement}})
        assert (WORKLOADS["decode"].remark(scenario) is not None) == paced

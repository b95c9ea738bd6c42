"""Quality of decoding in both worlds: what is alike stands beside each other, the rest is marked."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import DECODING

from kvferry.analysis import fidelity_study
from kvferry.analysis.fidelity import TwoWorlds, beside
from kvferry.analysis.fidelity_quality import notes_on
from kvferry.analysis.fidelity_study import FidelityStudy, measure
from kvferry.api.fidelity import Fidelity
from kvferry.backends.world import Say
from kvferry.cli.fidelity import _show as show
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

MEASURED = {"agreement_share": 0.75, "kl_nats": 0.5, "attention_mass": 0.8, "recall_share": 0.4}


def figures(**quality: float) -> dict[str, dict[str, float]]:
    return {"metrics": {}, "ops": {}, "quality": quality}


def test_by_hand() -> None:
    runs = [MEASURED | {"attended_tokens": tokens, "kl_nats": nats} for tokens, nats in ((90, 0.4), (110, 0.6))]
    found = beside(figures(attended_tokens=110, attention_mass=0.9), [figures(**one) for one in runs])["quality"]
    assert list(found) == ["attended_tokens", "attention_mass", "recall_share", "agreement_share", "kl_nats"]
    # Both count tokens alike: 110 of 100.
    tokens = found["attended_tokens"]
    assert (tokens["measured"], tokens["error"], tokens["alike"]) == (100, pytest.approx(0.1), True)
    mass = found["attention_mass"]
    assert (mass["error"], mass["alike"]) == (pytest.approx(0.125), False)
    divergence = found["kl_nats"]
    assert (divergence["simulated"], divergence["error"], divergence["alike"]) == (None, None, False)
    assert divergence["measured"] == 0.5
    assert divergence["spread"] == pytest.approx(0.02**0.5 / 0.5)
    notes = notes_on([{"name": "one", "quality": found}])
    assert notes == [
        "~ attention mass, modelled: an indication: measured for the selector, not in this run",
        "not modelled: selection's recall, agrees with full attention, KL from full attention, nats",
    ]


def test_without_it_nothing_is_said() -> None:
    assert "quality" not in beside(figures(attended_tokens=1), [figures(attended_tokens=1)])


def asked(system: str) -> Scenario:
    policies = {"selected_share": 0.1} if system == "dynakv" else {}
    live = {"quality": True}
    return load_scenario(DECODING | {"system": system, "policies": policies, "live": live, "budget": {}})


def test_a_study_keeps_and_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def both(described: Scenario, *, say: Say) -> TwoWorlds:
        run = run_scenario(described)
        assert run.decoded is not None
        # What replays recorded selections knows no recall of its own.
        replayed = replace(run, decoded=replace(run.decoded, recall=None))
        return TwoWorlds(scenario=described, simulated=replayed, measured=replace(run, measured={"quality": MEASURED}))

    monkeypatch.setattr(fidelity_study, "in_both_worlds", both)
    scenarios = [asked("dynakv"), asked("kvswap")]
    report = measure(FidelityStudy(name="both", scenarios=scenarios, varied=(), runs=2), tmp_path)
    assert report == json.loads((tmp_path / "fidelity.json").read_text())
    for kept in json.loads((tmp_path / "runs.json").read_text()).values():
        assert [one["quality"]["kl_nats"] for one in kept["measured"]] == [0.5, 0.5]
    generated, unknown = (row["quality"]["recall_share"] for row in report["rows"])
    drawn = run_scenario(scenarios[0]).decoded
    assert drawn is not None
    assert generated["simulated"] == drawn.recall
    assert (generated["measured"], generated["alike"], generated["how"][:7]) == (0.4, False, "of keys")
    assert (unknown["simulated"], unknown["how"]) == (None, "not modelled")
    show(report)
    told = " ".join(capsys.readouterr().out.split())
    assert "KL from full attention, nats - 0.50 - 0.0 %" in told
    assert "~ selection's recall, modelled: of keys that are generated, not the model's" in told
    frame = Fidelity(report).quality
    assert list(frame[frame.metric == "agreement_share"].measured) == [0.75, 0.75]

"""Block-sparse attention measured in a session: which points, how often, and a scenario on the perceptron of it."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tiny import measured as on_measured

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvferry.calibration import sparsity
from kvferry.calibration.calibrate import calibrate
from kvferry.calibration.journal import NAME
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.settings import Settings
from kvferry.machine.ops import Advance
from kvferry.model.attention import BlockSparse
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_device
from kvferry.sim.costs.cost_model import main_costs
from kvferry.traces.chunks import CHUNK_TOKENS, causal_blocks

pytestmark = pytest.mark.torch

BASE = load_device("laptop-cpu")
QUICK = Settings(model="tiny", random_weights=True, context=3 * CHUNK_TOKENS, quick=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This part of a calibration of the tiny model; not compiled, attention is right and saves nothing."""
    folder = tmp_path_factory.mktemp("device")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparsity, "BlockSparse", partial(BlockSparse, compiled=False))
        calibrate(QUICK, folder, BASE, parts=["sparsity"])
    return folder


def measured(folder: Path, what: str) -> list[Measurement]:
    found = json.loads((folder / "calibration.json").read_text())["measurements"]
    return [Measurement.from_json(m) for m in found if m["what"] == what]


def test_points_are_a_grid_and_others_are_held_out(folder: Path) -> None:
    grid, held_out = measured(folder, "sparse_attention"), measured(folder, "sparse_attention held out")
    points = {(m.at["context"], m.at["density"]) for m in grid}
    assert points == {(c, d) for c in (0.0, 1024.0, 3072.0) for d in (0.1, 0.3, 0.6, 1.0)}
    # a context between those of the grid, and in no place a share of it
    assert {m.at["context"] for m in held_out} == {0.0, 1024.0, 2048.0, 3072.0}
    assert not points & {(m.at["context"], m.at["density"]) for m in held_out}
    assert len({m.at["blocks"] for m in held_out if m.at["context"] == 3072.0}) == 4
    for m in grid:
        blocks = max(round(m.at["density"] * causal_blocks(1024, int(m.at["context"]))), 16)
        assert m.at["blocks"] == blocks * 2
        assert min(m.values) > 0


def test_attention_is_part_of_its_advance_and_the_rest_is_dense(folder: Path) -> None:
    attended = {tuple(m.at.items()): m for m in measured(folder, "sparse_attention")}
    for m in measured(folder, "sparse_advance"):
        part = attended[tuple(m.at.items())]
        assert all(a < whole for a, whole in zip(part.values, m.values, strict=True))
    dense = measured(folder, "dense_operators")
    assert {m.at["tokens"] for m in dense} == {256.0, 1024.0}
    assert min(min(m.values) for m in dense) > 0


def test_a_scenario_runs_on_the_fitted_perceptron(folder: Path) -> None:
    whole = on_measured(folder, system="sparkv", costs="predictor")
    assert run_scenario(whole).outcome == "done"
    costs = main_costs("predictor", whole.device, whole.model)
    (dense,) = [m for m in measured(folder, "dense_operators") if m.at["tokens"] == 1024.0]
    for m in measured(folder, "sparse_attention"):
        modelled = costs.cost(Advance(1024, m.at["blocks"], int(m.at["context"]))).duration_s
        # fitted to a few calls of a machine at work: it is near, and no more is promised
        assert modelled == pytest.approx(m.typical + dense.typical, rel=1.0)
    source = whole.device.sources["processors.cpu.measured.predictor"]
    assert "12 points" in source and "16 points held out" in source and "did not compile" in source


def test_what_the_journal_has_is_not_measured_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = (folder / "measured" / "tiny" / "predictor.npz").read_bytes()
    journal = (folder / NAME).read_bytes()
    assert b"drawn shares of the blocks after 2048 tokens, held out, pass 1" in journal
    monkeypatch.setattr(sparsity, "column", None)
    calibrate(QUICK, folder, BASE, parts=["sparsity"])
    assert (folder / NAME).read_bytes() == journal
    assert (folder / "measured" / "tiny" / "predictor.npz").read_bytes() == weights


def test_a_model_of_few_layers_measures_column_by_column(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(QUICK)
    monkeypatch.setattr(rig, "spec", rig.spec.model_copy(update={"layers": 3}))
    names = [task.name for task in sparsity.tasks(rig) if "after 0 tokens" in task.name]
    assert names[:2] == [
        "sparsity: 10%, 30%, 60% of the blocks after 0 tokens",
        "sparsity: 100% of the blocks after 0 tokens",
    ]


def test_held_out_contexts_end_with_the_longest_and_are_not_too_many() -> None:
    of = partial(replace, QUICK, quick=False)
    assert sparsity.held_out_contexts(of(context=1024)) == (0, 1024)
    assert sparsity.held_out_contexts(of(context=3072)) == (0, 1024, 2048, 3072)
    long = sparsity.held_out_contexts(of(context=40 * 1024))
    assert (len(long), long[0], long[-1]) == (9, 0, 40 * 1024)
    assert not np.mod(long, 1024).any()

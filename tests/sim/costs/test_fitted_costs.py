"""The perceptron of a measured profile: prices by hand, beyond what was measured, files, a scenario on it, mistakes."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvferry.api.scenario import load
from kvferry.machine.ops import Advance, DecodeStep, PrefillHead, Project
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_device, load_model, load_scenario, scenario_hash
from kvferry.sim.costs.cost_model import main_costs
from kvferry.sim.costs.fitted import DENSE, PREDICTOR, FittedCosts
from kvferry.sim.costs.grid import Grid
from kvferry.sim.costs.mlp import Mlp
from kvferry.sim.costs.predictor import HIDDEN, Predictor
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.errors import InputError

TINY = load_model("tiny")
ROOFLINE = Roofline(load_device("tiny").processors["gpu"], TINY)
HEADS = TINY.kv_heads


def always(seconds: float, bounds: np.ndarray | None = None) -> Predictor:
    """A network of zeros: it says the same of every layer of a whole token chunk."""
    widths = (3, *HIDDEN, 1)
    weights = tuple(np.zeros(shape) for shape in itertools.pairwise(widths))
    biases = tuple(np.zeros(width) for width in widths[1:])
    if bounds is None:
        bounds = np.array([[1.0, 10.0, 0.0], [9.0, 1000.0, 0.0]])
    return Predictor(Mlp(weights, biases), np.array([0, 0, 0, np.log(seconds)]), np.ones(4), HEADS, bounds)


def folder_of(path: Path, predictor: Predictor, dense: str = "tokens,seconds\n512,0.002\n1024,0.003\n") -> Path:
    """A profile's folder of measured models, with tiny in it."""
    (path / TINY.name).mkdir(parents=True)
    predictor.save(path / TINY.name / PREDICTOR)
    (path / TINY.name / DENSE).write_text(dense)
    return path


def test_an_advance_by_hand() -> None:
    # 8 ms of attention for whole chunks, 4 for half ones; beside it 3 ms and 2 ms.
    dense = Grid("dense", ("tokens",), (np.array([512.0, 1024.0]),), np.array([0.002, 0.003]))
    costs = FittedCosts(ROOFLINE, always(0.008), ROOFLINE, dense)
    assert costs.cost(Advance(1024, 100, 2048)).duration_s == pytest.approx(0.011)
    assert costs.cost(Advance(512, 100, 2048)).duration_s == pytest.approx(0.006)
    both = costs.durations_s(Advance(np.array([1024, 512]), np.array([100, 100]), np.array([2048, 2048])))
    assert both == pytest.approx([0.011, 0.006])
    # a head is its share of a layer, with its share of the projection
    project_s = ROOFLINE.cost(Project(1024)).duration_s
    head = costs.cost(PrefillHead(1024, 100 / HEADS, False, 2048)).duration_s
    assert head == pytest.approx((0.011 + project_s) / HEADS)
    assert costs.cost(PrefillHead(1024, 100, True, 2048)).duration_s == pytest.approx(project_s / HEADS)
    # bytes, and everything else, are the roofline's
    assert costs.cost(Advance(1024, 100, 2048)).n_bytes == ROOFLINE.cost(Advance(1024, 100, 2048)).n_bytes
    assert costs.cost(DecodeStep(1, 100)) == ROOFLINE.cost(DecodeStep(1, 100))


def test_without_measured_dense_operators_the_roofline_has_them() -> None:
    costs = FittedCosts(ROOFLINE, always(0.008), ROOFLINE, None)
    no_blocks = ROOFLINE.cost(Advance(1024, 0, 2048)).duration_s
    assert costs.cost(Advance(1024, 100, 2048)).duration_s == pytest.approx(0.008 + no_blocks)


def test_beyond_what_was_measured_more_blocks_count_in_proportion() -> None:
    # Trained on up to 1,000 blocks: 2,500 are two and a half times as long, wherever they lie. Fewer than 10 cost
    # what 10 do, none nothing.
    predictor = always(0.008)
    assert predictor.seconds(1024, 2500, kv_heads=HEADS, context_tokens=40 * 1024) == pytest.approx(0.020)
    assert predictor.seconds(1024, 3, kv_heads=HEADS, context_tokens=0) == pytest.approx(0.008)
    assert predictor.seconds(1024, 0, kv_heads=HEADS, context_tokens=0) == 0


def test_features_beyond_their_bounds_are_taken_at_them() -> None:
    rng = np.random.default_rng(1)
    bounds = np.array([[1.0, 10.0, 0.0], [9.0, 1000.0, 0.0]])
    predictor = Predictor(Mlp.drawn((3, *HIDDEN, 1), rng), np.zeros(4), np.ones(4), HEADS, bounds)
    idle = predictor.seconds(1024, 500, kv_heads=HEADS, context_tokens=8 * 1024)
    # a load that was never measured, and a longer context than any
    assert predictor.seconds(1024, 500, kv_heads=HEADS, context_tokens=8 * 1024, load=0.5) == idle
    assert predictor.seconds(1024, 500, kv_heads=HEADS, context_tokens=90 * 1024) == idle


# --- a profile -----------------------------------------------------------------------------------------------------


def scenario(measured: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "fitted",
        "system": "ferry",
        "device": {"extends": "tiny", "processors": {"gpu": {"measured": str(measured)}}},
        "model": "tiny",
        "link": {"rate": "8 Mbit/s", "rtt": "4 ms"},
        "workload": {"kind": "context-reuse", "context": 4096, "output": 2},
        "costs": "predictor",
        **changes,
    }


def test_a_profile_brings_its_perceptron_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    bounds = np.array([[1.0, 16.0, 0.0], [4.0, 1000.0, 0.0]])
    drawn = Predictor(Mlp.drawn((3, *HIDDEN, 1), rng), np.array([2.0, 300, 0, -6]), np.ones(4) * 2, HEADS, bounds)
    whole = load_scenario(scenario(folder_of(tmp_path / "m", drawn)))
    costs = main_costs("predictor", whole.device, whole.model)
    for blocks in (20, 300, 3000):
        attention_s = drawn.seconds(1024, blocks, kv_heads=HEADS, context_tokens=2048)
        assert costs.cost(Advance(1024, blocks, 2048)).duration_s == pytest.approx(float(attention_s) + 0.003)


def test_tables_beside_it_price_what_they_have(tmp_path: Path) -> None:
    measured = folder_of(tmp_path / "m", always(0.008))
    (measured / "tiny" / "project.csv").write_text("tokens,seconds\n64,0.001\n1024,0.016\n")
    whole = load_scenario(scenario(measured))
    costs = main_costs("predictor", whole.device, whole.model)
    assert costs.cost(Project(512)).duration_s == pytest.approx(0.008)
    # and an advance's table is not what an advance costs here
    (measured / "tiny" / "advance.csv").write_text("context,tokens,seconds\n0,64,9\n0,1024,9\n64,64,9\n64,1024,9\n")
    costs = main_costs("predictor", whole.device, whole.model)
    assert costs.cost(Advance(1024, 100, 0)).duration_s == pytest.approx(0.011)


def test_a_scenario_runs_on_it(tmp_path: Path) -> None:
    # A slow link: everything is computed. Advances are 8 + 3 ms each, and a device's dispatch.
    whole = load_scenario(scenario(folder_of(tmp_path / "m", always(0.008)), system="local-prefill"))
    run = run_scenario(whole)
    assert run.outcome == "done"
    took = [span.end_s - span.start_s for span in run.spans if span.label == "Advance"]
    dispatch_s = whole.device.processors["gpu"].dispatch_s
    assert len(took) == 4 * (TINY.layers - 1)
    assert took == pytest.approx([0.011 + dispatch_s] * len(took))
    # twice as slow, and it is seen: weights are part of what a run depends on
    slower = load_scenario(scenario(folder_of(tmp_path / "n", always(0.016)), system="local-prefill"))
    assert run_scenario(slower).duration_s == pytest.approx(run.duration_s + 0.008 * len(took))
    assert scenario_hash(slower) != scenario_hash(whole)


# --- mistakes ------------------------------------------------------------------------------------------------------

FILE = """\
name: fitted
system: ferry
device:
  extends: tiny
  processors: {gpu: {measured: m, block_sparse: null}}
model: tiny
link: {rate: 8 Mbit/s, rtt: 4 ms}
workload: {kind: context-reuse, context: 4096, output: 2}
costs: predictor
"""


def refused(folder: Path, text: str = FILE) -> str:
    (folder / "s.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load(str(folder / "s.yaml"), [])
    return str(caught.value)


def test_a_profile_without_a_perceptron_says_what_would_do(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    message = refused(tmp_path)
    # Of both, truth and estimate, once.
    assert re.search(r"s\.yaml:9: costs: ", message) and len(message.splitlines()) == 1
    assert "predictor cannot price processor gpu of tiny: its profile has no tiny/predictor.npz" in message
    assert "`kvferry calibrate` fits" in message and "no block_sparse part" in message
    assert "has no `measured` folder" in refused(tmp_path, FILE.replace("measured: m, ", ""))


def test_a_damaged_perceptron_is_named(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "m", always(0.008)) / "tiny" / PREDICTOR
    path.write_bytes(path.read_bytes()[:500])
    assert f"{path}: not a predictor trace" in refused(tmp_path)


def test_pickled_arrays_are_never_opened(tmp_path: Path) -> None:
    path = folder_of(tmp_path / "m", always(0.008)) / "tiny" / PREDICTOR
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays["centre"] = np.array([{"a": 1}, 2, 3, 4], dtype=object)
    np.savez(path, **arrays)
    assert "not a predictor trace" in refused(tmp_path)


@pytest.mark.parametrize("bounds", [np.zeros((3, 2)), np.array([[2.0] * 3, [1.0] * 3]), np.full((2, 3), np.nan)])
def test_bounds_that_are_none_are_refused(bounds: np.ndarray, tmp_path: Path) -> None:
    folder_of(tmp_path / "m", always(0.008, bounds))
    assert "a lower and an upper bound" in refused(tmp_path)


def test_dense_operators_of_another_kind_are_refused(tmp_path: Path) -> None:
    folder_of(tmp_path / "m", always(0.008), dense="context,seconds\n1,1\n2,2\n")
    assert "dense.csv:1: column 'context'" in refused(tmp_path)

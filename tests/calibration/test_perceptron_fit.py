"""SparKV's perceptron fitted to measured attention: by hand, a known function, what is written and read back."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvferry.calibration.folder import write
from kvferry.calibration.masks import drawn_masks
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.perceptron import PerceptronFit, files_of, fit_perceptron, put_perceptron
from kvferry.calibration.profile_draft import Draft
from kvferry.machine.ops import Advance
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.costs.cost_model import main_costs
from kvferry.traces.chunks import CHUNK_TOKENS, causal_blocks

TINY = load_model("tiny")
HEADS = TINY.kv_heads
CONTEXTS = (0, 1024, 2048, 4096, 8192)
SHARES = (0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.65, 1.0)
VERSIONS = {"numpy": "2.0"}


def point(what: str, context: int, density: float, seconds_of: Callable[[float], float]) -> Measurement:
    """Of a whole layer, at least 16 blocks of it active; three calls around what `seconds_of` gives."""
    blocks = float(HEADS * max(round(density * causal_blocks(CHUNK_TOKENS, context)), 16))
    typical = seconds_of(blocks)
    at = {"context": float(context), "tokens": float(CHUNK_TOKENS), "density": density, "blocks": blocks}
    return Measurement(what=what, unit="s", values=(0.9 * typical, typical, 1.1 * typical), at=at)


def measured(seconds_of: Callable[[float], float]) -> list[Measurement]:
    rng = np.random.default_rng(5)
    grid = [point("sparse_attention", c, d, seconds_of) for c in CONTEXTS for d in SHARES]
    drawn = [(int(c) * 1024, float(np.exp(s))) for c, s in zip(range(9), rng.uniform(np.log(0.02), 0, 9), strict=True)]
    dense = [
        Measurement(what="dense_operators", unit="s", values=(t * 1e-6,), at={"tokens": t}) for t in (256.0, 1024.0)
    ]
    return [*grid, *(point("sparse_attention held out", c, d, seconds_of) for c, d in drawn), *dense]


def fitted(seconds_of: Callable[[float], float], seed: int = 0) -> PerceptronFit:
    fit = fit_perceptron(measured(seconds_of), TINY, 1e9, 1e9, date="2026-11-22", versions=VERSIONS, seed=seed)
    assert fit is not None
    return fit


def test_what_always_takes_the_same_is_learned_as_that() -> None:
    # 5 ms whatever is active, and 1 ms of dense operators per 1,000 tokens. Spread of 9, 10, 11: a tenth.
    fit = fitted(lambda blocks: 0.005)
    for context, blocks in ((0, 40), (3072, 500), (8192, 1000)):
        seconds = fit.predictor.seconds(1024, blocks, kv_heads=HEADS, context_tokens=context)
        assert seconds == pytest.approx(0.005, rel=1e-3)
    assert fit.dense == {256.0: pytest.approx(256e-6), 1024.0: pytest.approx(1024e-6)}
    assert (fit.points, fit.calls, fit.held_out_points) == (40, 120, 9)
    assert fit.held_out_spread == pytest.approx(0.1)
    assert fit.errors["perceptron"][1] < 1e-3 and fit.errors["table"][1] < 1e-12
    # a roofline takes what is active for all: it cannot
    assert fit.errors["roofline"][0] > 0.3


def test_what_takes_as_long_as_there_are_blocks_is_a_rooflines() -> None:
    fit = fitted(lambda blocks: 1e-5 * blocks)
    assert fit.errors["roofline"] == pytest.approx((0, 0), abs=1e-12)
    assert fit.errors["perceptron"][0] < 0.05


def test_a_known_function_is_found_again() -> None:
    # A launch, and blocks that get cheaper in longer runs: neither a line nor a roofline.
    def seconds_of(blocks: float) -> float:
        return 2e-3 + 3e-5 * blocks**0.9

    fit = fitted(seconds_of)
    mean, worst = fit.errors["perceptron"]
    assert mean < 0.03 and worst < 0.08
    assert fit.errors["roofline"][0] > 4 * mean
    # twice as many blocks as were ever measured count twice
    most = HEADS * sum(range(130, 146, 2))  # 128 blocks of keys before, and 2, 4, ... 16 of the chunk's own
    assert causal_blocks(1024, 8192) * HEADS == most
    beyond = fit.predictor.seconds(1024, 2 * most, kv_heads=HEADS, context_tokens=8192)
    assert beyond == pytest.approx(2 * seconds_of(most), rel=0.05)


def test_errors_are_of_points_that_were_held_out_by_hand() -> None:
    # All takes 5 ms but one held-out point, which takes 10: half of it is predicted, 1 of 9 points.
    found = measured(lambda blocks: 0.005)
    where = [n for n, m in enumerate(found) if m.what == "sparse_attention held out"]
    found[where[3]] = Measurement(what=found[where[3]].what, unit="s", values=(0.01,), at=found[where[3]].at)
    fit = fit_perceptron(found, TINY, 1e9, 1e9, date="", versions={})
    assert fit is not None
    assert fit.errors["table"] == pytest.approx((0.5 / 9, 0.5))


def test_the_same_measurements_make_the_same_file() -> None:
    assert files_of(fitted(lambda b: 1e-5 * b)) == files_of(fitted(lambda b: 1e-5 * b))
    assert files_of(fitted(lambda b: 1e-5 * b)) != files_of(fitted(lambda b: 1e-5 * b, seed=1))


def test_where_attention_was_not_measured_there_is_none() -> None:
    few = [m for m in measured(lambda b: 1e-5 * b) if m.what == "sparse_attention"][:7]
    assert fit_perceptron(few, TINY, 1e9, 1e9, date="", versions={}) is None
    assert fit_perceptron([], TINY, 1e9, 1e9, date="", versions={}) is None


# --- the profile ---------------------------------------------------------------------------------------------------


def drafted() -> Draft:
    draft = Draft("d", load_device("laptop-cpu"))
    draft.profile["main"] = "cpu"
    for key, value in (("kind", "cpu"), ("flop_per_s", "1 Tflop/s"), ("bytes_per_s", "10 GB/s")):
        draft.put(f"processors.cpu.{key}", value, "by hand")
    return draft


def written(folder: Path, found: list[Measurement]) -> PerceptronFit | None:
    draft = drafted()
    fit = put_perceptron(draft, TINY, found, date="2026-11-22", versions=VERSIONS)
    write(folder, draft, None, TINY, found, perceptron=fit, heading="by hand", circumstances={})
    return fit


def test_a_profile_carries_weights_and_where_they_come_from(tmp_path: Path) -> None:
    fit = written(tmp_path, measured(lambda blocks: 1e-3 + 2e-5 * blocks))
    assert fit is not None
    device = load_device(str(tmp_path / "profile.yaml"))
    measured_folder = str(tmp_path / "measured")
    processor = device.processors["cpu"].model_copy(update={"measured": measured_folder})
    costs = main_costs("predictor", device.model_copy(update={"processors": {"cpu": processor}}), TINY)
    for context, blocks in ((0, 100), (5120, 700)):
        attention_s = fit.predictor.seconds(1024, blocks, kv_heads=HEADS, context_tokens=context)
        assert costs.cost(Advance(1024, blocks, context)).duration_s == pytest.approx(float(attention_s) + 1024e-6)
    source = device.sources["processors.cpu.measured.predictor"]
    for words in (
        "seed 0",
        "40 points (120 calls)",
        "2026-11-22",
        "9 points held out",
        "numpy 2.0",
        "table",
        "roofline",
    ):
        assert words in source, words
    record = json.loads((tmp_path / "calibration.json").read_text())["perceptron"]
    assert record["relative_error"]["perceptron"]["mean"] == fit.errors["perceptron"][0]
    assert (record["seed"], record["points"], record["versions"]) == (0, 40, VERSIONS)


def test_masks_that_were_written_out_are_reported(tmp_path: Path) -> None:
    draft = drafted()
    out = Measurement(what="attention_written_out", unit="", values=(1.0,))
    put_perceptron(draft, TINY, [*measured(lambda b: 1e-5 * b), out], date="", versions={})
    assert "did not compile" in draft.sources["processors.cpu.measured.predictor"]


def test_weights_of_an_earlier_calibration_do_not_stay(tmp_path: Path) -> None:
    written(tmp_path, measured(lambda blocks: 0.005))
    assert (tmp_path / "measured" / "tiny" / "predictor.npz").is_file()
    assert written(tmp_path, []) is None
    assert not list((tmp_path / "measured").rglob("*.*"))
    assert "processors.cpu.measured.predictor" not in load_device(str(tmp_path / "profile.yaml")).sources


# --- masks ---------------------------------------------------------------------------------------------------------


def test_layers_and_heads_have_shares_of_their_own() -> None:
    # 2,048 tokens before 1,024; the diagonal alone is 16 blocks.
    causal = causal_blocks(1024, 2048)
    shares = np.array([[0.5, 0.25], [1.0, 0.001]])[:, :HEADS]
    masks = drawn_masks(TINY, 2048, 1024, shares)
    wanted = [[max(round(s * causal), 16) for s in layer] for layer in shares.tolist()]
    assert [masks.active(2, l).sum(axis=(1, 2)).tolist() for l in range(2)] == wanted

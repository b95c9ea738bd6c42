"""SparKV's perceptron from measured attention, beside a table and a roofline of the same points. Needs no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvferry.calibration.fit import non_negative
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.profile_draft import Draft
from kvferry.machine.ops import Advance
from kvferry.sim.costs.fitted import DENSE, PREDICTOR
from kvferry.sim.costs.grid import Grid
from kvferry.sim.costs.op_rules import Arithmetic
from kvferry.sim.costs.predictor import Predictor
from kvferry.sim.costs.samples import Samples
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.model import ModelSpec
from kvferry.traces.chunks import CHUNK_TOKENS, causal_blocks

# Steps of descent, of this many points each: three times as many bring nothing at points held out. Fewer points than
# the last fit anything.
_STEPS, _BATCH = 3000, 8
LEAST_POINTS = 8


@dataclass(frozen=True, eq=False)
class Points:
    """Whole layers of token chunks: float[n] each. ``blocks``: active ones of all heads; ``density``: their share of
    the causal ones, as asked for; ``seconds``: what is typical of the `calls` that were timed."""

    context: np.ndarray
    tokens: np.ndarray
    density: np.ndarray
    blocks: np.ndarray
    seconds: np.ndarray
    calls: int

    @classmethod
    def of(cls, measured: Sequence[Measurement], what: str) -> "Points":
        found = sorted((m for m in measured if m.what == what), key=lambda m: tuple(m.at.values()))
        columns = {key: np.array([m.at[key] for m in found]) for key in ("context", "tokens", "density", "blocks")}
        seconds = np.array([m.typical for m in found])
        return cls(**columns, seconds=seconds, calls=sum(len(m.values) for m in found))

    @property
    def samples(self) -> Samples:
        """The measurements as samples to train a predictor on, taken on an idle device."""
        return Samples(self.context // CHUNK_TOKENS + 1, self.blocks, np.zeros(self.seconds.size), self.seconds)


@dataclass(frozen=True, kw_only=True)
class PerceptronFit:
    """`errors`: by predictor of attention, the mean and the largest |predicted / measured - 1| at points that none of
    them was fitted to. All three were fitted to the same points."""

    predictor: Predictor
    # tokens -> seconds of what a layer takes besides.
    dense: dict[float, float]
    seed: int
    points: int
    calls: int
    held_out_points: int
    held_out_spread: float
    errors: dict[str, tuple[float, float]]
    versions: dict[str, str]
    date: str

    @property
    def summary(self) -> str:
        """In a line, as a profile's source."""
        fitted = f"SparKV's perceptron, seed {self.seed}, fitted to block-sparse attention at {self.points} points"
        if not self.held_out_points:
            return f"{fitted} ({self.calls} calls) on {self.date}, nothing held out; {self._made_with}"
        off = ", ".join(f"{name} {mean:.0%} (worst {worst:.0%})" for name, (mean, worst) in self.errors.items())
        return (
            f"{fitted} ({self.calls} calls) on {self.date}; |predicted / measured - 1| at {self.held_out_points} "
            f"points held out, mean: {off}, all of the same points; calls there spread by {self.held_out_spread:.0%}; "
            f"{self._made_with}"
        )

    @property
    def _made_with(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())

    def to_json(self) -> dict[str, Any]:
        content = {
            name: getattr(self, name) for name in ("date", "versions", "seed", "points", "calls", "held_out_points")
        }
        errors = {name: {"mean": mean, "worst": worst} for name, (mean, worst) in self.errors.items()}
        return {**content, "held_out_spread": self.held_out_spread, "relative_error": errors}


def fit_perceptron(
    measured: Sequence[Measurement],
    model: ModelSpec,
    flop_per_s: float,
    bytes_per_s: float,
    *,
    date: str,
    versions: dict[str, str],
    seed: int = 0,
) -> PerceptronFit | None:
    """Fits the perceptron to what ``sparsity.py`` measured; None when that is missing. The same measurements give the
    same weights."""
    points, held_out = Points.of(measured, "sparse_attention"), Points.of(measured, "sparse_attention held out")
    if points.seconds.size < LEAST_POINTS:
        return None
    predictor = trained(points, model.kv_heads, seed)
    whole_layers: dict[str, Callable[[Points], np.ndarray]] = {
        "perceptron": lambda at: predictor.seconds(
            at.tokens, at.blocks, kv_heads=model.kv_heads, context_tokens=at.context
        ),
        "table": table_of(points, model),
        "roofline": roofline_of(points, model, flop_per_s, bytes_per_s),
    }
    return PerceptronFit(
        predictor=predictor,
        dense={m.at["tokens"]: m.typical for m in measured if m.what == "dense_operators"},
        seed=seed,
        points=points.seconds.size,
        calls=points.calls,
        held_out_points=held_out.seconds.size,
        held_out_spread=float(np.median([m.spread for m in measured if m.what == "sparse_attention held out"] or [0])),
        errors={name: _error(predict(held_out), held_out.seconds) for name, predict in whole_layers.items()},
        versions=versions,
        date=date,
    )


def trained(points: Points, kv_heads: int, seed: int) -> Predictor:
    epochs = -(-_STEPS // -(-points.seconds.size // _BATCH))
    return Predictor.trained(points.samples, seed, kv_heads=kv_heads, epochs=epochs, batch=_BATCH)


def table_of(points: Points, model: ModelSpec) -> Callable[[Points], np.ndarray]:
    """The points as a grid over context and share, multilinear between, as ``sim/costs/table.py`` has it."""
    axes = tuple(np.unique(axis) for axis in (points.context, points.density))
    seconds = np.full([axis.size for axis in axes], np.nan)
    places = (np.searchsorted(axes[0], points.context), np.searchsorted(axes[1], points.density))
    seconds[places] = points.seconds
    grid = Grid("sparse attention", ("context", "density"), axes, seconds)

    def seconds_at(at: Points) -> np.ndarray:
        causal = causal_blocks(at.tokens.astype(int), at.context.astype(int))
        return grid({"context": at.context, "density": at.blocks / model.kv_heads / causal})

    return seconds_at


def roofline_of(
    points: Points, model: ModelSpec, flop_per_s: float, bytes_per_s: float
) -> Callable[[Points], np.ndarray]:
    """One efficiency of `sparse_attention`, fitted to the points."""
    arithmetic = Arithmetic(model)

    def at_peak(at: Points) -> np.ndarray:
        _, flop, n_bytes = arithmetic(Advance(at.tokens, at.blocks, at.context))[0]
        return np.maximum(flop / flop_per_s, n_bytes / bytes_per_s)

    ones = np.ones(points.seconds.size)
    (inverse,) = non_negative((at_peak(points) / points.seconds)[:, None], ones, ones)
    return lambda at: inverse * at_peak(at)


def _error(predicted: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    off = np.abs(predicted / seconds - 1)
    return (float(off.mean()), float(off.max())) if off.size else (0.0, 0.0)


def put_perceptron(
    draft: Draft, model: ModelSpec, measured: Sequence[Measurement], *, date: str, versions: dict[str, str]
) -> PerceptronFit | None:
    """Fit it, and have the profile tell where it comes from; None where attention was not measured."""
    main = draft.profile["main"]
    rates = ProcessorSpec.model_validate(draft.profile["processors"][main], context={"from_file": True})
    fit = fit_perceptron(measured, model, rates.flop_per_s, rates.bytes_per_s, date=date, versions=versions)
    if fit is None:
        return None
    key = f"processors.{main}.measured"
    if key not in draft.sources:
        draft.put(key, "measured", f"attention of {model.name} and what its layers take besides; see calibration.json")
    written = "; FlexAttention did not compile: masks were written out for dense attention, and save nothing"
    dense_all_the_same = any(m.what == "attention_written_out" for m in measured)
    draft.tell(f"{key}.predictor", fit.summary + (written if dense_all_the_same else ""))
    return fit


def files_of(fit: PerceptronFit) -> dict[str, bytes]:
    """What a profile's folder of the model gets: file name -> content."""
    found = {PREDICTOR: fit.predictor.to_bytes()}
    if len(fit.dense) > 1:  # a grid needs two points
        rows = [f"{tokens!r},{seconds!r}" for tokens, seconds in sorted(fit.dense.items())]
        found[DENSE] = "\n".join(["tokens,seconds", *rows, ""]).encode()
    return found

"""Measured ops as the tables that `sim/costs/table.py` reads: what is typical of each grid point."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from kvferry.calibration.fit import Timed
from kvferry.calibration.measurement import Measurement, only, typical
from kvferry.machine.ops import Advance, DecodeStep, Op, Prefill, Project
from kvferry.sim.costs.roofline import Roofline
from kvferry.sim.costs.table import MeasuredTable
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.model import ModelSpec
from kvferry.traces.chunks import causal_blocks

# The features that a table has; others of a measurement do not matter to the op, and are pooled.
AXES = {
    "project": ("tokens",),
    "advance": ("context", "density", "tokens"),
    "prefill": ("context", "tokens"),
    "decode_step": ("context",),
}
# Of ops that were measured in place, handing over included.
IN_PLACE = {
    "select": ("keys", "batch"),
    "retrieve": ("keys", "batch"),
    "bookkeep": ("blocks",),
    "decode_attention": ("context", "batch"),
    "feed_forward": ("batch",),
    "output_head": ("batch",),
}


def tables(measured: Sequence[Measurement]) -> dict[str, bytes]:
    """File name -> CSV. An op without a whole grid has no table, nor has one with an axis of a single point: nothing
    could be interpolated."""
    found = {}
    for what, axes in AXES.items():
        points = pooled(measured, what, axes)
        # One density is no axis: dense attention takes what it takes.
        if what == "advance" and len({point[1] for point in points}) == 1:
            axes = ("context", "tokens")
            points = {(context, tokens): seconds for (context, _, tokens), seconds in points.items()}
        sizes = [len({point[axis] for point in points}) for axis in range(len(axes))]
        if min(sizes) > 1 and np.prod(sizes) == len(points):
            found[f"{what}.csv"] = _csv(axes, points)
    return found | _in_place(measured)


def _in_place(measured: Sequence[Measurement]) -> dict[str, bytes]:
    """Dispatch, which a profile has for every op, is taken from these. An axis of a single point is left out."""
    dispatch_s = sum(m.typical for m in only(measured, "dispatch"))
    found = {}
    for what, axes in IN_PLACE.items():
        points = pooled(measured, what, axes)
        kept = [n for n in range(len(axes)) if len({point[n] for point in points}) > 1]
        if kept:
            points = {tuple(point[n] for n in kept): max(0.0, s - dispatch_s) for point, s in points.items()}
            found[f"{what}.csv"] = _csv(tuple(axes[n] for n in kept), points)
    return found


def _csv(axes: tuple[str, ...], points: dict[tuple[float, ...], float]) -> bytes:
    rows = (",".join(map(repr, (*point, seconds))) for point, seconds in sorted(points.items()))
    return "\n".join([",".join((*axes, "seconds")), *rows, ""]).encode()


def pooled(measured: Sequence[Measurement], what: str, axes: tuple[str, ...]) -> dict[tuple[float, ...], float]:
    """Per grid point what is typical of all repetitions there."""
    values: defaultdict[tuple[float, ...], list[float]] = defaultdict(list)
    for measurement in measured:
        if measurement.what == what:
            values[tuple(measurement.at[axis] for axis in axes)] += measurement.values
    return {point: typical(seconds) for point, seconds in values.items()}


def errors_off_grid(measured: Sequence[Measurement], model: ModelSpec, processor: ProcessorSpec) -> list[float]:
    """|predicted / measured - 1| of the tables, where columns were measured that no table has."""
    checks = [replace(m, what=m.what.removeprefix("check ")) for m in measured if m.what.startswith("check ")]
    found = tables(measured)
    if not found:
        return []
    with TemporaryDirectory() as name:
        for file, content in found.items():
            (Path(name) / file).write_bytes(content)
        costs = MeasuredTable.read(Path(name), Roofline(processor, model))
    return [abs(costs.cost(each.op).duration_s / each.seconds - 1) for each in timed_ops(checks, model)]


def timed_ops(measured: Sequence[Measurement], model: ModelSpec) -> list[Timed]:
    """The same points as ops, for a fit."""
    return [Timed(op, seconds) for op, seconds in _timed(measured, model)]


def _timed(measured: Sequence[Measurement], model: ModelSpec) -> Iterator[tuple[Op, float]]:
    for (tokens,), seconds in pooled(measured, "project", ("tokens",)).items():
        yield Project(int(tokens)), seconds
    for (context, density, tokens), seconds in pooled(measured, "advance", AXES["advance"]).items():
        blocks = density * causal_blocks(int(tokens), int(context)) * model.kv_heads
        yield Advance(int(tokens), blocks, int(context)), seconds
    for (context, tokens), seconds in pooled(measured, "prefill", AXES["prefill"]).items():
        yield Prefill(int(tokens), int(context)), seconds
    for (context,), seconds in pooled(measured, "decode_step", AXES["decode_step"]).items():
        yield DecodeStep(1, int(context)), seconds

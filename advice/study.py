"""The study behind an answer: contenders over contexts, and over two axes for the maps of which wins where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kvferry.advice.answer import EQUAL, FIGURES
from kvferry.advice.composition import KV_BITS
from kvferry.advice.fit import Fit
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial
from kvferry.analysis.dataset import read_points
from kvferry.analysis.executors.cores import Cores
from kvferry.analysis.executors.executor import Executor
from kvferry.api.sweep import study_of, sweep
from kvferry.scenarios.loader import scenario_hash
from kvferry.specs.units import with_unit
from kvferry.system.whole_file import write_file
from kvferry.traces.resolve import link_trace

if TYPE_CHECKING:
    import pandas as pd

MOST_CONTENDERS = 5
# Steps of the other axis of a map; turns of each point.
_STEPS, _TURNS = 4, 3
_LEAST_CONTEXT, _MOST_CONTEXT = 1024, 128 * 1024
# Beyond the longest context that fits, or that the use has, by this factor.
_BEYOND = 2
# The rate of the link from a tenth of its own to ten times as much; memory from what the best takes up to the device's.
_RATES = (0.1, 0.3, 1.0, 3.0)
CONTEXT, MEMORY = "workload.context", "budget.memory"


class OutOfTime(Exception):
    """The time is over; the folder keeps the points that are done."""


@dataclass(frozen=True)
class Map:
    """Points over contexts and another axis, whose ``column`` is as points have it."""

    name: str
    column: str
    points: pd.DataFrame


def contenders(question: Question, ranked: Sequence[Trial], others: Sequence[Trial]) -> list[Trial]:
    """Returns the best composition without help, and the best of each other kind, by where KV lies while it decodes,
    whether all of it is attended to, and whether contexts are loaded: also the ones that do not fit here, as they may
    win where contexts are shorter. KV in memory comes first."""
    metric, found = question.use.spec.best, dict[tuple[Any, ...], Trial]()
    best = next((one for one in ranked if one.composition.helped is None), None)
    if best is None:
        return []
    rest = sorted(others, key=lambda one: (one.composition.given_up, one.figures.get(metric, inf)))
    for one in (best, *ranked, *rest):
        c = one.composition
        if c.helped is None and one.scenario is not None and not (c.loss == "coarser" and c.kv_bits < KV_BITS[0]):
            loads = c.load != "local-prefill"
            if loads == (best.composition.load != "local-prefill") or (c.away is None and c.loss == "none"):
                found.setdefault((c.away, c.decoding.roles.selective, loads), one)
    kinds = sorted(found.values(), key=lambda one: (one.composition.loss != "none", one.composition.away is not None))
    return [best, *(one for one in kinds if one is not best)][:MOST_CONTENDERS]


def contexts_of(question: Question, fit: Fit) -> list[int]:
    """Returns powers of two, from a short context to one beyond what fits or is asked for."""
    longest = question.turns.longest
    wanted = min(_MOST_CONTEXT, _BEYOND * max(longest.prompt, fit.context))
    found = [_LEAST_CONTEXT]
    while found[-1] < wanted:
        found.append(2 * found[-1])
    return found


def every_other(contexts: Sequence[int]) -> list[int]:
    """Returns every second context, the longest one kept: for maps."""
    return list(contexts[len(contexts) % 2 == 0 :: 2])


def study_file(question: Question, of: Sequence[Trial], axes: Mapping[str, Any], folder: Path, name: str) -> Path:
    """Writes a study of these compositions over axes, which ``kvferry sweep`` carries out, and returns its file."""
    settings = [one.composition.settings for one in of]
    keys = [key for key in settings[0] if any(one[key] != settings[0][key] for one in settings)]
    zipped = {"name": [label(one) for one in of], **{key: [one[key] for one in settings] for key in keys}}
    turns = min(_TURNS, question.use.spec.workload.turns)
    described = {
        "name": name,
        "base": {"extends": "scenario.yaml", "workload": {"turns": turns, "spread": 0.0}},
        "axes": dict(axes),
        "zip": [zipped],
    }
    return write_file(folder / f"{name}.yaml", yaml.safe_dump(described, sort_keys=False, width=120).encode())


def label(one: Trial) -> str:
    """A name that a scenario may have."""
    return one.composition.name.replace("/", " ")[:100]


def run_file(
    file: Path, progress: Callable[[int, int], None], goes_on: Callable[[], bool], executor: Executor | str | None
) -> pd.DataFrame:
    """Carries a study out as far as there is time, and returns the points that are done. Raises KeyboardInterrupt."""

    def watched(done: int, of: int) -> None:
        progress(done, of)
        look()

    def look() -> None:
        if not goes_on():
            raise OutOfTime

    # On a busy machine a point takes longer than there is time.
    executor = Cores(look=look) if executor in (None, "cores") else executor
    folder, study = file.with_suffix(""), study_of(file)
    with suppress(OutOfTime):
        sweep(study, output=folder, plots=False, intervals=False, progress=watched, executor=executor)
    # An earlier answer may have left other points there.
    points = read_points(folder)
    return points[points["key"].isin([scenario_hash(one) for one in study.points])]


def rates_of(best: Trial) -> list[str]:
    """Returns rates of the link around its own mean."""
    assert best.scenario is not None
    mean = link_trace(best.scenario.link).mean()
    return [with_unit(float(f"{mean * factor:.2g}"), "rate") for factor in _RATES]


def memories_of(best: Trial) -> list[str]:
    """Returns budgets from what the best takes at its least to all that the device has."""
    assert best.scenario is not None
    most, least = best.scenario.device.memory.free_bytes, best.figures["memory_peak_bytes"]
    kv = best.figures.get("kv_memory_peak_bytes", 0.0)
    low = max(least - 0.8 * kv, 0.3 * least)
    return [f"{low + (most - low) * n / (_STEPS - 1):.0f} B" for n in range(_STEPS)]


def rule_of(question: Question, coarse: bool) -> str:
    """Returns in words what wins, as ``contenders`` and ``winner`` have it. `coarse`: the choice has full attention
    over KV of 8 bits."""
    metric = question.use.spec.best
    best = "most tokens/s" if metric == "tpot_s" else f"least {FIGURES[metric]}"
    first = "whatever is given up" if question.any_quality else "among those that give up least of the answer"
    return f"wins: {best} {first}; full attention over {'other ' if coarse else ''}KV of 8 bits is left out"


def winner(question: Question, rows: pd.DataFrame, losses: Mapping[str, int]) -> str | None:
    """Returns the name of the best composition among rows that differ in it alone, of equal ones the first of `losses`;
    None: none is done and keeps the limits."""
    metric, best, rank = question.use.spec.best, None, (9, inf)
    order = list(losses)
    for row in sorted(rows.to_dict("records"), key=lambda row: order.index(row["name"])):
        if row["outcome"] != "done" or row[metric] != row[metric]:
            continue
        broken = any(
            one.constraint.metric in row and one.constraint.excess(row[one.constraint.metric]) > 0
            for one in question.limits
        )
        if broken:
            continue
        own = (0 if question.any_quality else losses[row["name"]], row[metric])
        if own[0] < rank[0] or (own[0] == rank[0] and own[1] < (1 - EQUAL) * rank[1]):
            best, rank = row["name"], own
    return best

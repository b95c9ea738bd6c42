"""What a search found: as one JSON object, and as a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.analysis.envelope import to_json
from kvferry.analysis.folder import write_pictures
from kvferry.analysis.pareto import front_of, pareto_picture, progress_picture
from kvferry.analysis.search import Search
from kvferry.analysis.search_points import is_whole
from kvferry.analysis.study_plots import axis_of, devices_of
from kvferry.analysis.style import render
from kvferry.analysis.tried import Tried
from kvferry.specs.scenario import Scenario
from kvferry.system.whole_file import write_file

# Stands for the sampler where none chose.
EVERY = "every point"


def result_of(search: Search, tried: Sequence[Tried]) -> dict[str, Any]:
    """{"search", "points", "solutions", "objectives", "constraints", "sampler", "seed", "seeds", "front",
    "others"}.

    "front" has the points that no other solution beats in every objective, sorted by the first one, the earliest of
    equal ones alone: "point" (its number, from 0), "settings", "figures" (with "intervals" where points have these) and
    "keys" of its rows in points.parquet. "others" counts why points are no solutions; where all are
    none, "nearest" is the one that is least beyond the constraints. Equal searches give equal
    results: nothing of this run is in it.
    """
    solutions, front, lower = _solutions(search, tried)
    objectives = search.spec.objectives
    sign = 1.0 if lower[0] else -1.0
    best = [one for one, on_front in zip(solutions, front, strict=True) if on_front]
    best.sort(key=lambda one: (sign * one.figures[objectives[0].metric], one.number))
    first = {tuple(one.scenarios): one for one in reversed(best)}
    return {
        "search": search.name,
        "points": len(tried),
        "solutions": len(solutions),
        "objectives": [
            {"metric": one.metric, "better": "low" if is_lower else "high"}
            for one, is_lower in zip(objectives, lower, strict=True)
        ],
        "constraints": [bound.text for bound in search.constraints],
        "sampler": EVERY if is_whole(search.spec, search.space) else search.spec.sampler,
        "seed": search.spec.seed,
        "seeds": [node.plain() for node in search.seeds],
        "front": [
            {
                "point": one.number,
                "settings": one.settings,
                "figures": one.figures,
                **({"intervals": {key: list(ends) for key, ends in one.intervals.items()}} if one.intervals else {}),
                "keys": list(one.scenarios),
            }
            for one in best
            if first[tuple(one.scenarios)] is one
        ],
        **_nearest(search, tried if not solutions else ()),
        "others": dict(sorted(Counter(_reason(one) for one in tried if one.why is not None).items())),
    }


def _nearest(search: Search, tried: Sequence[Tried]) -> dict[str, Any]:
    """{"nearest": {"point", "settings", "figures"}}, or nothing where no point has all that constraints ask for."""
    bounds = search.constraints
    measured = [one for one in tried if bounds and all(bound.metric in one.figures for bound in bounds)]
    if not measured:
        return {}
    best = min(measured, key=lambda one: sum(max(0.0, bound.excess(one.figures[bound.metric])) for bound in bounds))
    figures = {bound.metric: best.figures[bound.metric] for bound in bounds}
    return {"nearest": {"point": best.number, "settings": best.settings, "figures": figures}}


def write_result(search: Search, tried: Sequence[Tried], folder: Path, plots: bool = True) -> tuple[Path, list[Path]]:
    """Write search.json and, where there is a solution, plots/pareto (or plots/progress for one objective)."""
    result = result_of(search, tried)
    file = write_file(folder / "search.json", to_json(result).encode())
    if not plots or not result["solutions"]:
        return file, []
    name = "pareto" if len(search.spec.objectives) > 1 else "progress"
    return file, write_pictures(folder / "plots" / name, render(lambda: _picture(search, tried, result)))


def whole_name(metric: str, scenarios: Iterable[Scenario]) -> str:
    """Returns the metric, or which of both rates of decoding it is where all scenarios measure the same."""
    measured = {one.measure if one.workload.kind == "decode" else None for one in scenarios}
    rates = {"decode": "decode_tokens_per_s", "end_to_end": "end_to_end_tokens_per_s"}
    if metric != "throughput_tokens_per_s" or len(measured) != 1:
        return metric
    return rates.get(measured.pop() or "", metric)


def has_cloud(scenarios: Iterable[Scenario]) -> bool:
    """Returns whether figures may be of devices with a cloud, whose energy is apart."""
    return any(one.workload.kind == "assist" or one.machines for one in scenarios)


def _picture(search: Search, tried: Sequence[Tried], result: dict[str, Any]) -> Any:
    metrics = [objective.metric for objective in search.spec.objectives]
    scenarios = [scenario for one in tried for scenario in one.scenarios.values()]
    of_devices = has_cloud(scenarios)
    axes = [axis_of(one, one, False, of_devices=of_devices, figure=whole_name(one, scenarios)) for one in metrics]
    title = search.name + devices_of(scenarios)
    solutions, front, lower = _solutions(search, tried)
    note = f"{len(solutions):,} of {len(tried):,} points keep every constraint"
    if search.seeds:
        note += f"; medians over {len(search.seeds)} seeds"
    if len(metrics) == 1:
        reached = [(one.number, one.figures[metrics[0]]) for one in solutions]
        better = min if lower[0] else max
        best = [(n, better(value for _, value in reached[: k + 1])) for k, (n, _) in enumerate(reached)]
        return progress_picture(best, reached, axes[0], title=title, note=note)
    broken = [one for one in tried if one.why is not None and all(metric in one.figures for metric in metrics)]
    named = {one["point"] for one in result["front"]}
    return pareto_picture(
        _values(solutions, metrics),
        _values(broken, metrics),
        front,
        axes,
        lower,
        names=[str(one.number) if one.number in named else "" for one, on in zip(solutions, front, strict=True) if on],
        title=title,
        note=note,
    )


def _solutions(search: Search, tried: Sequence[Tried]) -> tuple[list[Tried], np.ndarray, list[bool]]:
    """The points that keep every constraint, which of them are on the front, and whether less of a metric is better."""
    lower = [objective.lower for objective in search.spec.objectives]
    solutions = [one for one in tried if one.why is None]
    values = _values(solutions, [objective.metric for objective in search.spec.objectives])
    return solutions, front_of(values, lower), lower


def _values(tried: Sequence[Tried], metrics: Sequence[str]) -> np.ndarray:
    return np.array([[one.figures[metric] for metric in metrics] for one in tried]).reshape(len(tried), len(metrics))


def _reason(one: Tried) -> str:
    return "not a valid scenario" if not one.is_valid else str(one.why).partition(":")[0]

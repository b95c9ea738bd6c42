"""``kvferry search``: settings of a scenario that are best under objectives and constraints."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvferry.cli.options import (
    ExecutorOption,
    JobsOption,
    JsonOption,
    OutputOption,
    PlotsOption,
    PluginOption,
    PointIntervalsOption,
    SetOption,
)

if TYPE_CHECKING:
    import pandas as pd

    from kvferry.specs.scenario import Scenario

_MOST_SHOWN = 20


def search(
    search: Annotated[str, typer.Argument(metavar="SEARCH", help="A bundled search by name, or a file.")],
    settings: SetOption = None,
    plugins: PluginOption = None,
    output: OutputOption = None,
    jobs: JobsOption = None,
    executor: ExecutorOption = None,
    plots: PlotsOption = True,
    intervals: PointIntervalsOption = None,
    json: JsonOption = False,
) -> None:
    """Look for settings that are best under objectives and constraints; several objectives give a Pareto front.

    Points go into a data set as those of a sweep do. Interrupted or killed, the same command goes on from there: the
    same seed tries the same points, whatever the number of processes. Exit code 1: no point is a solution.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.analysis.executors.choice import executor_for
    from kvferry.api.search import search as carry_out
    from kvferry.api.search import search_of
    from kvferry.cli.progress import points_of, say, say_failures
    from kvferry.specs.errors import quoted

    where = executor_for(executor, jobs)
    loaded = search_of(search, settings or [])
    folder: Path = output or loaded.output
    with points_of(loaded, folder) as progress:
        found = carry_out(loaded, output=folder, executor=where, plots=plots, intervals=intervals, progress=progress)
    if json:
        sys.stdout.write(to_json(found.summary))
        for line in found.about_points:
            say(quoted(line))
    else:
        scenarios = [one for each in found.tried for one in each.scenarios.values()]
        front, mark = found.marked_front
        _show(found.summary, front, found.new, scenarios)
        told = [line for line in found.remarks if line not in loaded.remarks]
        for line in [*([mark] if mark else []), *told]:
            print(quoted(line))
        for line in found.said:
            say(line)
        say(f"written to {folder}")
    say_failures(
        [
            f"point {one.number}: {', '.join(f'{key} {value}' for key, value in one.settings.items())}: {one.why}"
            for one in found.tried
            if one.why is not None and one.why.startswith("failed: ")
        ]
    )
    if not found.summary["solutions"]:
        raise typer.Exit(1)


def _show(result: Mapping[str, Any], shown: pd.DataFrame, n_new: int, scenarios: Sequence[Scenario]) -> None:
    from kvferry.analysis.figures import label_of
    from kvferry.analysis.search_result import EVERY, has_cloud, whole_name
    from kvferry.cli.table import print_table
    from kvferry.specs.errors import quoted

    what = ", ".join(f"{n:,} {reason}" for reason, n in result["others"].items())
    every = " (all that there are)" if result["sampler"] == EVERY else ""
    print(
        f"{result['search']}: {result['points']:,} points{every}, {result['solutions']:,} of them solutions"
        f"{f' ({what})' if what else ''}; {n_new:,} scenarios run now"
    )
    front = result["front"]
    if not front:
        if nearest := result.get("nearest"):
            chosen = ", ".join(f"{key} {value}" for key, value in nearest["settings"].items())
            figures = ", ".join(f"{metric} {_figure(nearest, metric)}" for metric in nearest["figures"])
            print(quoted(f"nearest: point {nearest['point']} ({chosen}) with {figures}"))
        return
    metrics = [objective["metric"] for objective in result["objectives"]]
    metrics += [metric for metric in front[0]["figures"] if metric not in metrics]
    with_cloud = has_cloud(scenarios)
    settings = ["point", *dict.fromkeys(key for one in front for key in one["settings"])]
    # A setting that is an objective is a column of settings already.
    metrics = [metric for metric in metrics if metric not in settings]
    labels = [label_of(whole_name(metric, scenarios), with_cloud) for metric in metrics]
    rows: Any = shown.to_dict("records")
    title = "Pareto front" if len(result["objectives"]) > 1 else "Best"
    print_table(
        [*settings, *labels],
        [
            [*(_setting(one, row, key) for key in settings), *(_figure(one, key) for key in metrics)]
            for one, row in zip(front[:_MOST_SHOWN], rows, strict=False)
        ],
        title if len(front) <= _MOST_SHOWN else f"{title}: the first {_MOST_SHOWN} of {len(front)}",
    )


def _setting(one: Mapping[str, Any], row: Mapping[str, Any], key: str) -> Any:
    """Returns a setting of a point as it is written, systems and points with their marks; "-" for a policy that its
    system does not have."""
    return row[key] if key in ("point", "system") else one["settings"].get(key, "-")


def _figure(one: Mapping[str, Any], metric: str) -> str:
    """A figure of a point, with its interval if it has one."""
    from kvferry.specs import human

    shown = human.of_unit(metric)
    low, high = map(shown, one.get("intervals", {}).get(metric, (one["figures"][metric],) * 2))
    return shown(one["figures"][metric]) + (f" ({low} to {high})" if low != high else "")

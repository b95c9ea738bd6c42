"""``kvferry sweep``: a scenario over axes and seeds."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

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


def sweep(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A bundled study by name, or a file.")],
    settings: SetOption = None,
    plugins: PluginOption = None,
    output: OutputOption = None,
    jobs: JobsOption = None,
    executor: ExecutorOption = None,
    plots: PlotsOption = True,
    intervals: PointIntervalsOption = None,
    json: JsonOption = False,
) -> None:
    """Run the points of a study that are missing from its data set, on all cores or machines; then draw its plots.

    The folder is the one that the study names, or runs/NAME, unless --output names another. Interrupted, it keeps
    what is done: the same command goes on from there.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.analysis.executors.choice import executor_for
    from kvferry.api.sweep import study_of
    from kvferry.api.sweep import sweep as carry_out
    from kvferry.cli.progress import points_of, say, say_failures
    from kvferry.specs.errors import quoted

    where = executor_for(executor, jobs)
    loaded = study_of(study, settings or [])
    folder: Path = output or loaded.output
    with points_of(loaded, folder) as progress:
        swept = carry_out(loaded, output=folder, executor=where, plots=plots, intervals=intervals, progress=progress)
    summary = swept.summary
    if json:
        sys.stdout.write(to_json(summary))
    else:
        print(_in_words(summary))
        for pair in summary["pairs"]:
            print(pair)
        told = [line for line in swept.remarks if line not in loaded.remarks]
        for note in told if set(summary["outcomes"]) != {"failed"} else ():
            print(quoted(note))
        say(f"written to {folder}")
    for line in summary["said"]:
        say(line)
    for name, what in summary["marks"].items():
        say(f"{name}: {what}")
    for name, why in summary["not_drawn"].items():
        say(f"{name}: not drawn: {why}")
    if summary["failed"]:
        say_failures(
            [
                f"failed: {', '.join(f'{key} {value}' for key, value in point.items() if key != 'why')}: {point['why']}"
                for point in summary["failed"]
            ]
        )
        raise typer.Exit(1)


def _in_words(summary: Mapping[str, Any]) -> str:
    outcomes = ", ".join(f"{n:,} {outcome.replace('_', ' ')}" for outcome, n in summary["outcomes"].items())
    again = (
        f", {summary['outdated']:,} run again: KVFerry, a plugin or a file has changed (rows are in earlier.parquet)"
        if summary["outdated"]
        else ""
    )
    return f"{summary['study']}: {summary['points']:,} points ({outcomes}), {summary['new']:,} of them new{again}"

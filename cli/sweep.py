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

_MOST_FAILED = 20


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
    from kvferry.cli.progress import PointsProgress, counted, say
    from kvferry.specs.errors import quoted

    where = executor_for(executor, jobs)
    loaded = study_of(study, settings or [])
    for line in loaded.remarks:
        say(quoted(line))
    folder: Path = output or loaded.output
    progress = PointsProgress()
    try:
        with counted(loaded.name, " points") as progress.bar:
            swept = carry_out(
                loaded, output=folder, executor=where, plots=plots, intervals=intervals, progress=progress
            )
    except KeyboardInterrupt:
        say(f"interrupted; kept {progress.done:,} of {progress.of:,} points in {folder}; run it again to go on")
        raise typer.Exit(130) from None
    summary = swept.summary
    if json:
        sys.stdout.write(to_json(summary))
    else:
        print(_in_words(summary))
        told = [line for line in swept.remarks if line not in loaded.remarks]
        for note in told if set(summary["outcomes"]) != {"failed"} else ():
            print(quoted(note))
        say(f"written to {folder}")
    for name, what in summary["marks"].items():
        say(f"{name}: {what}")
    for name, why in summary["not_drawn"].items():
        say(f"{name}: not drawn: {why}")
    if summary["failed"]:
        say("\n".join(_failures(summary["failed"])))
        raise typer.Exit(1)


def _in_words(summary: Mapping[str, Any]) -> str:
    outcomes = ", ".join(f"{n:,} {outcome.replace('_', ' ')}" for outcome, n in summary["outcomes"].items())
    again = f", {summary['outdated']:,} run again as KVFerry has changed" if summary["outdated"] else ""
    return f"{summary['study']}: {summary['points']:,} points ({outcomes}), {summary['new']:,} of them new{again}"


def _failures(failed: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"failed: {', '.join(f'{key} {value}' for key, value in point.items() if key != 'why')}: {point['why']}"
        for point in failed[:_MOST_FAILED]
    ]
    return lines if len(failed) <= _MOST_FAILED else [*lines, f"... and {len(failed) - _MOST_FAILED:,} more"]

"""``kvferry sweep``: a scenario over axes and seeds."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer

from kvferry.cli.options import JsonOption, OutputOption, PlotsOption, PluginOption, SetOption

# Where no bar can be drawn: a line this often.
_LINE_EVERY_S = 10.0
_MOST_FAILED = 20


def sweep(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A bundled study by name, or a file.")],
    settings: SetOption = None,
    plugins: PluginOption = None,
    output: OutputOption = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes. Default: one per core.")] = None,
    plots: PlotsOption = True,
    json: JsonOption = False,
) -> None:
    """Run the points of a study that are missing from its data set, on all cores; then draw its plots.

    The folder is the one that the study names, or runs/NAME, unless --output names another. Interrupted, it keeps
    what is done: the same command goes on from there.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.analysis.remarks import unmeasured
    from kvferry.analysis.study import load_study
    from kvferry.analysis.sweep import run_study
    from kvferry.cli.progress import counted, say
    from kvferry.pipelines.checks import names_in_use
    from kvferry.specs.errors import quoted

    loaded = load_study(study, settings or [], check=names_in_use)
    folder: Path = output or loaded.output
    progress = _Progress(loaded.name)
    try:
        with counted(loaded.name) as progress.bar:
            summary = run_study(loaded if plots else replace(loaded, plots=()), folder, jobs, progress)
    except KeyboardInterrupt:
        say(f"interrupted; kept {progress.done:,} of {progress.of:,} points in {folder}; run it again to go on")
        raise typer.Exit(130) from None
    if json:
        sys.stdout.write(to_json(summary))
    else:
        print(_in_words(summary))
        for note in dict.fromkeys(unmeasured(point.device) for point in loaded.points):
            if note is not None and set(summary["outcomes"]) != {"failed"}:
                print(quoted(note))
        say(f"written to {folder}")
    for name, what in summary["marks"].items():
        say(f"{name}: {what}")
    for name, why in summary["not_drawn"].items():
        say(f"{name}: not drawn: {why}")
    if summary["failed"]:
        say("\n".join(_failures(summary["failed"])))
        raise typer.Exit(1)


class _Progress:
    """Moves the bar, or says a line now and then; remembers how far it came."""

    def __init__(self, name: str) -> None:
        self.bar: Callable[[int, int], None] = lambda done, of: None
        self.done, self.of = 0, 0
        self._name, self._said_s = name, monotonic()

    def __call__(self, done: int, of: int) -> None:
        from kvferry.cli.progress import say

        self.done, self.of = done, of
        self.bar(done, of)
        if not sys.stderr.isatty() and done < of and monotonic() - self._said_s >= _LINE_EVERY_S:
            say(f"{self._name}: {done:,} of {of:,} points")
            self._said_s = monotonic()


def _in_words(summary: dict[str, Any]) -> str:
    outcomes = ", ".join(f"{n:,} {outcome.replace('_', ' ')}" for outcome, n in summary["outcomes"].items())
    again = f", {summary['outdated']:,} run again as KVFerry has changed" if summary["outdated"] else ""
    return f"{summary['study']}: {summary['points']:,} points ({outcomes}), {summary['new']:,} of them new{again}"


def _failures(failed: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"failed: {', '.join(f'{key} {value}' for key, value in point.items() if key != 'why')}: {point['why']}"
        for point in failed[:_MOST_FAILED]
    ]
    return lines if len(failed) <= _MOST_FAILED else [*lines, f"... and {len(failed) - _MOST_FAILED:,} more"]

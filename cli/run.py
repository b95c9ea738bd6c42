"""``kvferry run``: one scenario under one system."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvferry.cli.options import (
    IntervalsOption,
    JsonOption,
    OutputOption,
    PlotsOption,
    PluginOption,
    RunsOption,
    ScenarioArgument,
    SeedOption,
    SetOption,
    TokensOption,
    one_of,
    overrides,
)

if TYPE_CHECKING:
    from kvferry.specs.scenario import Scenario


def run(
    scenario: ScenarioArgument,
    system: Annotated[
        str | None,
        typer.Option("--system", "--systems", help="Run it under this system, with that system's own policies."),
    ] = None,
    point: Annotated[
        str | None,
        typer.Option("--point", metavar="KEY", help="SCENARIO is a sweep's folder: run its point whose key begins so."),
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    seed: SeedOption = None,
    runs: RunsOption = 1,
    intervals: IntervalsOption = True,
    output: OutputOption = None,
    tokens: TokensOption = False,
    plots: PlotsOption = True,
    json: JsonOption = False,
) -> None:
    """Run a scenario: a table of its metrics, and a folder with spans, timeline and pictures.

    The folder is runs/NAME-SYSTEM, with what --set changed and a number where other results have that name, unless
    --output names another; with --json alone, none is written. Interrupted, it keeps the requests that are done. Of
    several real runs (--runs) it shows medians with their ranges, and keeps the run of the median.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.analysis.tables import show
    from kvferry.api.repeats import check_runs
    from kvferry.api.result import run as carry_out
    from kvferry.api.scenario import load, remarks_under
    from kvferry.api.written import written
    from kvferry.cli.output import import_matplotlib, own_folder
    from kvferry.cli.progress import in_turn, say
    from kvferry.specs.errors import quoted

    key, source = ("", scenario) if point is None else _point(scenario, point)
    loaded = load(source, overrides(settings, seed), system=one_of(system, "kvferry compare"))
    check_runs(loaded, runs)
    for line in remarks_under(source, overrides(settings, seed), loaded):
        say(quoted(line))
    if output is None and not json:
        # Real runs of one scenario differ.
        known = {".": written(loaded)} if loaded.backend == "sim" else {}
        name = f"{loaded.name}-{loaded.system}{key and f'-{key[:8]}'}"
        output = own_folder(name, overrides(settings, seed), known)
    try:
        result = carry_out(loaded, runs=runs, intervals=intervals, watch=in_turn(), say=say)
    except KeyboardInterrupt as stopped:
        if str(stopped):
            say(f"interrupted; kept {stopped}")
        raise typer.Exit(130) from None
    if output is not None:
        if plots:
            import_matplotlib()
        result.write(output, plots=plots, tokens=tokens)
    if json:
        sys.stdout.write(to_json(result.envelope))
    else:
        show(result.table())
        for line in result.remarks:
            print(quoted(line))
        say(f"written to {output}")
    if result.interrupted is not None:
        if result.interrupted:
            say(f"interrupted; kept {result.interrupted}")
        raise typer.Exit(130)


def _point(folder: str, key: str) -> tuple[str, Scenario]:
    # Imported when asked for: a run needs no sweeps.
    from kvferry.api.sweep import point_of

    return point_of(folder, key)

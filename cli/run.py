"""``kvferry run``: one scenario under one system."""

import sys
from typing import Annotated

import typer

from kvferry.cli.options import (
    JsonOption,
    OutputOption,
    PlotsOption,
    PluginOption,
    RunsOption,
    ScenarioArgument,
    SeedOption,
    SetOption,
    overrides,
)


def run(
    scenario: ScenarioArgument,
    system: Annotated[
        str | None, typer.Option("--system", help="Run it under this system, with that system's own policies.")
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    seed: SeedOption = None,
    runs: RunsOption = 1,
    output: OutputOption = None,
    plots: PlotsOption = True,
    json: JsonOption = False,
) -> None:
    """Run a scenario: a table of its metrics, and a folder with spans, timeline and pictures.

    The folder is runs/NAME-SYSTEM, with what --set changed and a number where other results have that name, unless
    --output names another; with --json alone, none is written. Interrupted, it keeps the requests that are done. Of
    several real runs (--runs) it shows medians with their ranges, and keeps the run of the median.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.analysis.folder import write_run
    from kvferry.analysis.remarks import remarks_on
    from kvferry.analysis.tables import run_table, show
    from kvferry.cli.checks import scenario_for_run
    from kvferry.cli.output import own_folder
    from kvferry.cli.progress import say
    from kvferry.cli.repeats import carry_out, check_runs, summed_up
    from kvferry.cli.result import envelope_for
    from kvferry.pipelines.workloads import WORKLOADS
    from kvferry.scenarios.loader import dump_yaml
    from kvferry.specs.errors import quoted

    loaded = scenario_for_run(scenario, overrides(settings, seed), system)
    check_runs(loaded, runs)
    described = dump_yaml(loaded)
    if output is None and not json:
        # Real runs of one scenario differ.
        known = {".": described} if loaded.backend == "sim" else {}
        output = own_folder(f"{loaded.name}-{loaded.system}", overrides(settings, seed), known)
    carried = carry_out({loaded.system: loaded}, runs, keep_going=False)
    finished = carried.runs.get(loaded.system, [])
    kept = finished or ([carried.interrupted] if carried.interrupted and carried.interrupted.requests else [])
    if kept:
        result, envelope = summed_up(loaded, kept, WORKLOADS[loaded.workload.kind].headline, envelope_for)
        if output is not None:
            write_run(output, described, result, envelope, plots=plots)
        if json:
            sys.stdout.write(to_json(envelope))
        else:
            title = f"{loaded.name}: {loaded.system}" + (f", {len(kept)} runs" if len(kept) > 1 else "")
            show(run_table(envelope["metrics"], title=title, ranges=envelope.get("ranges")))
            if result.outcome not in ("done", "interrupted"):
                print(f"{result.outcome.replace('_', ' ')}: {result.why}")
            for line in (*result.faults, *result.notes, *remarks_on({loaded.system: (loaded, result)})):
                print(quoted(line))
            say(f"written to {output}")
    if carried.interrupted:
        what = f"{len(finished)} of {runs} runs" if runs > 1 else carried.interrupted.why
        if what:
            say(f"interrupted; kept {what}")
        raise typer.Exit(130)

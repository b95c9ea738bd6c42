"""``kvferry run``: one scenario under one system."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli.options import JsonOption, OutputOption, ScenarioArgument, SeedOption, SetOption, overrides


def run(
    scenario: ScenarioArgument,
    system: Annotated[
        str | None, typer.Option("--system", help="Run it under this system, with that system's own policies.")
    ] = None,
    settings: SetOption = None,
    seed: SeedOption = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Run a scenario once: a table of its metrics, and a folder with spans, timeline and pictures.

    The folder is runs/NAME-SYSTEM unless --output names another; with --json alone, none is written. Interrupted, it
    keeps the requests that are done.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.analysis.folder import folder_name, write_run
    from kvferry.analysis.remarks import remarks_on
    from kvferry.analysis.tables import run_table, show
    from kvferry.cli.checks import scenario_for_run
    from kvferry.cli.output import results_folder
    from kvferry.cli.progress import counted, say
    from kvferry.cli.result import envelope_for
    from kvferry.pipelines.run import run_scenario
    from kvferry.scenarios.loader import dump_yaml
    from kvferry.specs.errors import quoted

    loaded = scenario_for_run(scenario, overrides(settings, seed), system)
    if output is None and not json:
        output = results_folder(str(Path("runs") / folder_name(f"{loaded.name}-{loaded.system}")))
    with counted(f"{loaded.name}: {loaded.system}") as progress:
        result = run_scenario(loaded, progress, say=say)
    if result.requests or not result.interrupted:
        envelope = envelope_for(loaded, result)
        if output is not None:
            write_run(output, dump_yaml(loaded), result, envelope)
        if json:
            sys.stdout.write(to_json(envelope))
        else:
            show(run_table(envelope["metrics"], title=f"{loaded.name}: {loaded.system}"))
            if result.outcome not in ("done", "interrupted"):
                print(f"{result.outcome.replace('_', ' ')}: {result.why}")
            for line in (*result.faults, *result.notes, *remarks_on({loaded.system: (loaded, result)})):
                print(quoted(line))
            say(f"written to {output}")
    if result.interrupted:
        say(f"interrupted; kept {result.why}")
        raise typer.Exit(130)

"""``kvferry compare``: one scenario under several systems, side by side."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from kvferry.cli.options import (
    JsonOption,
    OutputOption,
    PluginOption,
    RunsOption,
    ScenarioArgument,
    SeedOption,
    SetOption,
    overrides,
)

if TYPE_CHECKING:
    from kvferry.pipelines.workload import System


def compare(
    scenario: ScenarioArgument,
    systems: Annotated[
        str | None,
        typer.Option(
            "--systems", metavar="A,B,...", help="Systems to compare. Default: those of the same paper that can run."
        ),
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    seed: SeedOption = None,
    runs: RunsOption = 1,
    output: OutputOption = None,
    plots: Annotated[
        bool | None,
        typer.Option("--plots/--no-plots", help="Draw pictures; most of the time goes there. Default: with --output."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a scenario under several systems and show them side by side.

    The scenario's policies apply to its own system only; other systems run with their own. Ctrl-C keeps the systems
    that are done. Of several real runs (--runs), which the systems take in turns, it shows medians with their ranges
    and marks differences that lie inside the noise.

    The folder is runs/NAME-compared, with what --set changed and a number where other results have that name, unless
    --output names another; with --json alone, none is written.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.analysis.folder import folder_name, write_comparison
    from kvferry.analysis.remarks import remarks_on
    from kvferry.analysis.tables import compare_table, show, terminal_width
    from kvferry.cli.checks import scenario_for_run, scenarios_under
    from kvferry.cli.output import own_folder
    from kvferry.cli.progress import counted, say
    from kvferry.cli.repeats import carry_out, check_runs, summed_up
    from kvferry.cli.result import envelope_for
    from kvferry.pipelines.workloads import WORKLOADS
    from kvferry.scenarios.loader import dump_yaml
    from kvferry.specs.errors import InputError, quoted

    loaded = scenario_for_run(scenario, overrides(settings, seed))
    check_runs(loaded, runs)
    under = scenarios_under(loaded, systems)
    kind = WORKLOADS[loaded.workload.kind]
    chosen = {name: kind.systems[name].with_policies(one.policy_values) for name, one in under.items()}
    for name, system in chosen.items():
        # What cannot run is refused before the first one runs; left out where all were asked for.
        try:
            kind.flow(under[name], system, lambda done, of: None)
        except InputError as error:
            if systems is not None or name == loaded.system:
                raise InputError(f"{name}: {error}") from None
            say(f"{name} is left out: {error}")
            del under[name]
    draws = output is not None if plots is None else plots
    described = {name: dump_yaml(one) for name, one in under.items()}
    if output is None and not json:
        # Real runs of one scenario differ.
        known = {folder_name(name): text for name, text in described.items()} if loaded.backend == "sim" else {}
        output = own_folder(f"{loaded.name}-compared", overrides(settings, seed), known)
    carried = carry_out(under, runs)
    results, envelopes = {}, {}
    for name, of_system in carried.runs.items():
        results[name], envelopes[name] = summed_up(under[name], of_system, kind.headline, envelope_for)
    if output is not None and results:
        with counted(f"{loaded.name}: pictures") as progress:
            write_comparison(output, described, results, envelopes, kind.headline, plots=draws, progress=progress)
    if json:
        sys.stdout.write(to_json({"scenario": loaded.name, "seed": loaded.seed, "systems": envelopes}))
    elif results:
        outcomes = {name: result.outcome for name, result in results.items()}
        metrics = {name: envelope["metrics"] for name, envelope in envelopes.items()}
        notes = _notes({name: chosen[name] for name, figures in metrics.items() if "regret" in figures})
        if runs > 1:
            notes.append(f"medians of up to {runs} runs, taken in turns; ~: its range meets that of the best")
        notes += [f"{name}: {fault}" for name, result in results.items() for fault in (*result.faults, *result.notes)]
        show(
            compare_table(
                metrics,
                title=loaded.name,
                outcomes=outcomes,
                ranked_by=kind.headline,
                notes=notes,
                width=terminal_width(),
                ranges={name: one["ranges"] for name, one in envelopes.items() if "ranges" in one}
                if runs > 1
                else None,
            )
        )
        for line in remarks_on({name: (under[name], result) for name, result in results.items()}):
            print(quoted(line))
    if output is not None and results:
        say(f"written to {output}" + (f"; pictures in {output / 'plots'}" if draws else ""))
    for name, why in carried.failed.items():
        say(f"{name}: failed: {why}")
    if carried.interrupted:
        say(f"interrupted; kept {len(results)} of {len(under)} systems")
        raise typer.Exit(130)
    if carried.failed:
        raise typer.Exit(1)


def _notes(systems: Mapping[str, "System"]) -> list[str]:
    """What figures of systems do not say by themselves."""
    import numpy as np

    from kvferry.codecs.sizes import CODECS

    one_chunk = np.ones((1, 1, 1))
    codecs = {name: system.codec for name, system in systems.items() if system.codec is not None}
    several = ", ".join(name for name, codec in codecs.items() if len(CODECS[codec](one_chunk, 1).level_scale) > 1)
    return [f"regret of {several}: against the bound at the smallest encoding"] if several else []

"""``kvferry compare``: one scenario under several systems, side by side."""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from kvferry.cli.options import (
    IntervalsOption,
    JsonOption,
    OutputOption,
    PluginOption,
    RunsOption,
    ScenarioArgument,
    SeedOption,
    SetOption,
    TokensOption,
    as_options,
    listed,
    overrides,
)


def compare(
    scenario: ScenarioArgument,
    systems: Annotated[
        str | None,
        typer.Option(
            "--systems",
            "--system",
            metavar="A,B,...",
            help="Systems to compare. Default: those of the same paper that can run.",
        ),
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(
            "--variants",
            metavar="FILE",
            help="In place of systems: a file, or a mapping in braces, that says by label which keys each sets.",
        ),
    ] = None,
    equal_tokens: Annotated[
        int | None,
        typer.Option(
            "--equal-tokens",
            min=1,
            metavar="N",
            help="Where decoding: every system that selects KV selects N tokens. Whole blocks and new tokens on top.",
        ),
    ] = None,
    settings: SetOption = None,
    plugins: PluginOption = None,
    seed: SeedOption = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            min=2,
            metavar="N",
            help="Each with N seeds, 0, 1, ...: medians with ranges, and at how many seeds one beats another.",
        ),
    ] = None,
    runs: RunsOption = 1,
    intervals: IntervalsOption = True,
    output: OutputOption = None,
    tokens: TokensOption = False,
    plots: Annotated[
        bool | None,
        typer.Option("--plots/--no-plots", help="Draw pictures; most of the time goes there. Default: with --output."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run a scenario under several systems and show them side by side.

    Policies given with --set hold for every system that has them. The scenario's policies are its own system's; others
    run with their own. Ctrl-C keeps the systems that are done. Of several real runs (--runs), which the systems take in
    turns, it shows medians with their ranges and marks differences that lie inside the noise.

    The folder is runs/NAME-compared, with what --set changed and a number where other results have that name, unless
    --output names another; with --json alone, none is written.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.analysis.folder import folder_name
    from kvferry.analysis.tables import show, terminal_width
    from kvferry.api.comparable import comparable, with_seeds
    from kvferry.api.comparison import compare as carry_out
    from kvferry.api.repeats import check_runs
    from kvferry.api.written import written
    from kvferry.cli.output import import_matplotlib, own_folder
    from kvferry.cli.progress import counted, in_turn, say
    from kvferry.specs.errors import InputError, quoted

    if seeds is not None and (seed is not None or runs > 1):
        raise InputError("--seeds: stands for --seed and --runs; leave these out")
    with as_options("systems", "equal_tokens", "variants", "seeds"):
        asked = overrides(settings, seed)
        if seeds is None:
            chosen = comparable(scenario, listed(systems), asked, equal_tokens=equal_tokens, variants=variants)
        else:
            chosen = with_seeds(scenario, seeds, listed(systems), asked, equal_tokens=equal_tokens, variants=variants)
    loaded = chosen.scenario
    check_runs(loaded, runs)
    if json:
        for line in chosen.without_effect:
            say(line)
    for name, why in chosen.left_out.items():
        say(f"{name} is left out: {why}")
    draws = output is not None if plots is None else plots
    if output is None and not json:
        # Real runs of one scenario differ.
        described = {folder_name(name): written(one) for name, one in chosen.under.items()}
        known = described if loaded.backend == "sim" and seeds is None else {}
        options = {"equal-tokens": equal_tokens, "seeds": seeds}
        changed = [f"{name}={value}" for name, value in options.items() if value is not None]
        output = own_folder(f"{loaded.name}-compared", [*overrides(settings, seed), *changed], known)
    compared = carry_out(chosen, runs=runs, intervals=intervals, watch=in_turn(), say=say)
    if output is not None and compared.results:
        with counted(f"{loaded.name}: pictures") as progress:
            if draws:
                import_matplotlib()
            compared.write(output, plots=draws, tokens=tokens, progress=progress)
    if json:
        envelopes = {name: result.envelope for name, result in compared.results.items()}
        found = {"scenario": loaded.name, "seed": loaded.seed, "systems": envelopes, "marks": compared.marks}
        if compared.beats:
            found["beats"] = compared.beats
        if compared.pairs:
            found["paired"] = [asdict(pair) for pair in compared.pairs]
        sys.stdout.write(to_json(found))
    elif compared.results:
        show(compared.table(terminal_width()))
        for pair in compared.pairs:
            print(pair)
        for line in compared.remarks:
            print(quoted(line))
    if output is not None and compared.results:
        say(f"written to {output}" + (f"; pictures in {output / 'plots'}" if draws else ""))
    if json or not compared.results:
        for name, why in compared.failed.items():
            say(f"{name}: failed: {why}")
    if compared.interrupted:
        say(f"interrupted; kept {len(compared.results)} of {len(chosen.under)} systems")
        raise typer.Exit(130)
    if compared.failed:
        raise typer.Exit(1)

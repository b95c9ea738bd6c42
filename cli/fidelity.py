"""``kvferry fidelity``: measures the simulator's error on this device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from kvferry.cli.options import (
    JsonOption,
    OutputOption,
    PluginOption,
    SeedOption,
    SetOption,
    as_options,
    listed,
    overrides,
)


def fidelity(
    source: Annotated[str, typer.Argument(metavar="SCENARIO", help="A scenario or a study, by name or file.")],
    systems: Annotated[
        str | None, typer.Option("--systems", "--system", help="Systems, comma-separated. Default: the scenario's.")
    ] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, max=1000, help="Real runs of each scenario.")] = 5,
    paired: Annotated[
        bool,
        typer.Option(
            "--paired",
            help="Measure tables of each run's ops before and behind it, and leave out runs in which the machine"
            " changed its speed.",
        ),
    ] = False,
    settings: SetOption = None,
    plugins: PluginOption = None,
    seed: SeedOption = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Run scenarios in both worlds, the real one several times, and show how far the simulator is off.

    Beside each error is the hardware's own spread between runs. With --output both timelines are drawn, one above the
    other, and the same command resumes after Ctrl-C.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.analysis.remarks import errors_of_the_profile
    from kvferry.api.fidelity import fidelity as measure
    from kvferry.api.fidelity import study_in_both_worlds
    from kvferry.cli.progress import counted, say

    with as_options("systems"):
        study = study_in_both_worlds(source, listed(systems), overrides(settings, seed), runs, paired)
    for line in dict.fromkeys(errors_of_the_profile(one.device) for one in study.scenarios):
        if line is not None:
            say(line)
    with counted(study.name) as progress:
        report = measure(study, output=output, progress=progress, say=say).report
    if output is not None:
        say(f"written to {output}")
    if json:
        print(to_json(report), end="")
        return
    _show(report)


def _of_turns(row: Mapping[str, Any]) -> str:
    """Returns a line on the turns of conversations."""
    from kvferry.analysis.figure_beside import percent

    errors = [abs(turn["error"]) for turn in row["turns"] if turn["error"] is not None]
    return (
        f"{row['name']}: TTFT of {len(row['turns'])} turns, each in the median of its runs: median error"
        f" {percent(row['turn_error_median'])}, largest {percent(max(errors))}"
    )


def _show_quality(rows: Sequence[Mapping[str, Any]]) -> None:
    """Shows nothing where it was not measured."""
    from kvferry.analysis.fidelity_quality import notes_on, quality_rows
    from kvferry.analysis.figure_beside import shown_beside
    from kvferry.analysis.figures import FIGURES
    from kvferry.cli.table import print_table

    shown = [(name, FIGURES[key].label, *shown_beside(key, found).values()) for name, key, found in quality_rows(rows)]
    if shown:
        print_table(("scenario", "quality", "modelled", "measured", "error", "spread"), shown)
        for line in notes_on(rows):
            print(line)


def _show(report: Mapping[str, Any]) -> None:
    from kvferry.analysis.figure_beside import percent, shown_beside
    from kvferry.analysis.figures import FIGURES
    from kvferry.cli.table import print_table
    from kvferry.specs import human
    from kvferry.specs.errors import quoted

    rows = []
    for row in report["rows"]:
        for key, found in row["metrics"].items():
            if key in (row["headline"], "link_bytes", "overlap", "reuse_rate") or len(report["rows"]) == 1:
                label = FIGURES[key].label if key in FIGURES else key
                rows.append((row["name"], label, *shown_beside(key, found).values()))
    columns = ("scenario", "metric", "simulated", "measured", "error", "spread")
    print_table(columns, rows, title=f"{report['study']}: {report['runs']} runs each")
    _show_quality(report["rows"])
    if len(report["rows"]) == 1:
        ops = [
            (
                op["resource"],
                op["op"],
                f"{op['simulated']:g}",
                f"{op['measured']:g}",
                *(
                    None if op[key] is None else human.seconds(op[key])
                    for key in ("simulated_mean_s", "measured_mean_s")
                ),
                percent(op["error"]),
            )
            for op in report["rows"][0]["ops"]
        ]
        print_table(("resource", "op", "simulated", "measured", "mean, simulated", "measured", "error"), ops)
    for row in report["rows"]:
        if "turns" in row:
            print(_of_turns(row))
    summary = report["summary"]
    if "error_median" in summary:
        spread = summary["spread_median"]
        between = "one run has no spread" if spread is None else f"spread between runs {percent(spread)}"
        print(
            f"{summary['headline']} of {summary['scenarios']} scenarios: median error"
            f" {percent(summary['error_median'])}, largest {percent(summary['error_largest'])}; {between};"
            f" {summary['beyond']} beyond 15 %{'' if spread is None else ' and twice their spread'}"
        )
    if report.get("left_out"):
        of = report["runs"] * len(report["rows"])
        print(f"{report['left_out']} of {of} runs do not count: the machine changed its speed")
    for remark in report["remarks"]:
        print(quoted(remark))

"""``kvferry traces``: lists, shows, plots, imports, fetches and fits traces of bandwidth and load."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvferry.cli.options import JsonOption
from kvferry.cli.output import results_file
from kvferry.cli.progress import say

if TYPE_CHECKING:
    from kvferry.traces.format import StoredTrace

app = typer.Typer(no_args_is_help=True, help="Bandwidth and load over time.")

TraceArgument = Annotated[str, typer.Argument(metavar="TRACE", help="A bundled or recorded trace by name, or a file.")]


@app.command("list")
def list_traces(json: JsonOption = False) -> None:
    """The traces that can be named in a scenario: bundled ones, and recorded ones that are fetched first."""
    from kvferry.traces.catalogue import folder, path_of, sources
    from kvferry.traces.resolve import bundled, bundled_model

    rows = []
    for name in bundled():
        model = bundled_model(name)
        rows.append({"name": name, "kind": model.kind, "from": "bundled", "here": True, "about": model.description})
    for source_name, source in sources().items():
        for name, entry in source.traces.items():
            here = path_of(name).is_file()
            about = f"{entry.about} (near {entry.near})" if entry.near else entry.about
            rows.append({"name": name, "kind": "bandwidth", "from": source_name, "here": here, "about": about})
    if json:
        _print_json({"folder": str(folder()), "traces": rows})
        return
    from kvferry.cli.table import print_table

    shown = [
        tuple(("yes" if cell else "no") if isinstance(cell, bool) else cell for cell in row.values()) for row in rows
    ]
    print_table(("trace", "kind", "from", "here", "about"), shown)
    typer.echo(f"Recorded traces lie in {folder()}; get one with: kvferry traces fetch NAME")


@app.command()
def show(trace: TraceArgument, json: JsonOption = False) -> None:
    """One trace in figures: how much, how unsteady, how long its memory, how bad its fades."""
    from dataclasses import asdict

    from kvferry.traces.resolve import stored_trace
    from kvferry.traces.statistics import statistics_of

    if trace.endswith(".npz"):
        _show_arrays(trace, json)
        return
    stored = stored_trace(trace)
    found = statistics_of(stored.trace)
    if json:
        _print_json(
            {"trace": trace, "kind": stored.kind, "on_end": stored.trace.on_end, "tags": dict(stored.tags)}
            | asdict(found)
        )
        return
    from kvferry.cli.table import print_table

    print_table(("figure", trace), _in_words(stored), title="")


def _show_arrays(trace: str, json: bool) -> None:
    """Describe a trace of chunks, selections or keys by the arrays that it holds."""
    from kvferry.cli.table import print_table
    from kvferry.traces.arrays import peek_arrays

    kind, arrays = peek_arrays(Path(trace))
    if json:
        _print_json({"trace": trace, "kind": kind, "arrays": arrays})
    else:
        print_table((f"{kind} trace", Path(trace).name), arrays.items())


def _in_words(stored: "StoredTrace") -> list[tuple[str, str | None]]:
    from kvferry.specs import human
    from kvferry.traces.statistics import FADE_SHARE, LAGS_S, TRANSFERS_S, statistics_of

    found = statistics_of(stored.trace)
    rate = human.rate if stored.kind == "bandwidth" else human.percent
    rows: list[tuple[str, str | None]] = [(key, value) for key, value in stored.tags.items()]
    rows += [("kind", stored.kind), ("after its end", stored.trace.on_end)]
    rows += [("duration", human.seconds(found.duration_s)), ("pieces", human.number(found.pieces))]
    for name, value in (("mean", found.mean), ("std", found.std), ("least", found.least), ("5 %", found.p5)):
        rows.append((name, rate(value)))
    for name, value in (("median", found.median), ("95 %", found.p95), ("most", found.most)):
        rows.append((name, rate(value)))
    rows.append(("std of 1 s means", None if found.std_1s is None else rate(found.std_1s)))
    for lag, memory in zip(LAGS_S, found.autocorrelation_1s, strict=True):
        rows.append((f"autocorrelation of 1 s means, lag {lag} s", None if memory is None else f"{memory:.2f}"))
    step = found.autocorrelation_step
    rows.append(("autocorrelation, lag of a step", None if step is None else f"{step:.2f}"))
    for usual_s, times_s in zip(TRANSFERS_S, found.transfers_s, strict=True):
        if times_s and stored.kind == "bandwidth":
            rows.append((f"time for {usual_s} s of data, median, 95 %", ", ".join(map(human.seconds, times_s))))
    rows.append((f"time below {FADE_SHARE:.0%} of the mean", human.percent(found.fade_share)))
    rows.append(("such fades", human.number(found.fades)))
    rows.append(("longest of them", human.seconds(found.longest_fade_s)))
    return rows


@app.command("import")
def import_log(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="The file that iperf3, mahimahi or another recorder wrote.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", parser=results_file, help="The trace to write (CSV)."),
    ],
    reader: Annotated[str | None, typer.Option(help="Its format. Default: detected from the content.")] = None,
    trim: Annotated[
        str, typer.Option(metavar="FROM:TO", help="Keep only these seconds; either end may be left out.")
    ] = ":",
    drop_slow_start: Annotated[
        bool, typer.Option("--drop-slow-start", help="Drop the first 3 s, in which TCP starts.")
    ] = False,
    on_end: Annotated[str, typer.Option(metavar="loop|hold|end", help="What follows the last sample.")] = "loop",
) -> None:
    """Turn a measured log into a trace that a scenario can replay."""
    from kvferry.specs.errors import InputError
    from kvferry.traces.format import StoredTrace, write_trace
    from kvferry.traces.importers import import_trace, reader_of
    from kvferry.traces.logs import Log
    from kvferry.traces.rate import RateTrace

    reader = reader or reader_of(Log.of(log))
    trace = import_trace(log, reader, drop_slow_start=drop_slow_start, trim_s=_span(trim))
    try:
        trace = RateTrace(trace.edges_s, trace.rates, on_end)  # type: ignore[arg-type]
    except ValueError as error:
        raise InputError(f"--on-end: {error}") from None
    tags = {"source": log.name, "reader": reader, "trimmed": trim} | (
        {"slow_start": "dropped"} if drop_slow_start else {}
    )
    stored = StoredTrace("bandwidth", trace, {key: value for key, value in tags.items() if value != ":"})
    write_trace(output, stored)
    say(f"{output}: {len(trace.rates):,} pieces, {trace.duration_s:g} s, mean {trace.mean() * 8e-6:.4g} Mbit/s")


@app.command()
def plot(
    traces: Annotated[list[str], typer.Argument(metavar="TRACE...", help="Up to four, drawn one above the other.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", parser=results_file, help="A .png or .svg file. Default: TRACE.png."
        ),
    ] = None,
    span: Annotated[
        str, typer.Option(metavar="FROM:TO", help="Draw these seconds of each. Default: the whole trace, once.")
    ] = ":",
) -> None:
    """Draw traces over time, with their distributions and autocorrelations beside each other."""
    from kvferry.cli.traces_plot import MOST_TRACES, draw_traces
    from kvferry.specs.errors import InputError
    from kvferry.system.whole_file import write_file
    from kvferry.traces.resolve import stored_trace

    output = output or Path(f"{'-'.join(Path(name).stem for name in traces):.100}.png")
    form = output.suffix.lstrip(".")
    if form not in ("png", "svg"):
        raise InputError(f"--output {output}: the name must end in .png or .svg")
    if len(traces) > MOST_TRACES:
        raise InputError(f"{len(traces)} traces; at most {MOST_TRACES} are legible in one picture")
    stored = {name: stored_trace(name) for name in traces}
    if len({one.kind for one in stored.values()}) > 1:
        raise InputError("bandwidth and load do not share an axis; draw them apart")
    write_file(output, draw_traces(stored, _span(span))[form])
    say(str(output))


@app.command()
def fetch(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Recorded traces by name.")] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Fetch every trace that has an address.")] = False,
) -> None:
    """Download recorded traces from their public home, each checked against its SHA-256."""
    from kvferry.specs.errors import InputError, KvferryError
    from kvferry.traces.catalogue import FOLDER_VARIABLE, catalogue, fetch, folder, sources

    wanted = list(names or [])
    if all_of_them:
        wanted = [name for name, (source, entry) in catalogue().items() if sources()[source].address and entry.at]
    if not wanted:
        raise InputError("name the traces to fetch, or say --all; kvferry traces list shows them")
    say(f"into {folder()} ({FOLDER_VARIABLE} names another folder)")
    failed = []
    for name in wanted:
        try:
            say(f"{name}: {fetch(name)}")
        except InputError:
            raise
        except KvferryError as error:
            failed.append(str(error))
    if failed:
        raise KvferryError("\n".join(failed))


@app.command()
def fit(
    trace: TraceArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", parser=results_file, help="The model to write (YAML)."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model. Default: that of the file or trace.")] = None,
    mean: Annotated[str | None, typer.Option(help="Move the distribution to this mean, as in '850 Mbit/s'.")] = None,
    median: Annotated[str | None, typer.Option(help="Move it to this median instead.")] = None,
    std: Annotated[str | None, typer.Option(help="Stretch it to this standard deviation.")] = None,
    duration: Annotated[str, typer.Option(help="Length of the generated trace before it repeats.")] = "600 s",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated trace.")] = 1,
    about: Annotated[str, typer.Option(help="A description of the model, shown in lists.")] = "",
    json: JsonOption = False,
) -> None:
    """Fit a generator to a trace and show how near it comes: distribution, memory and fades."""
    from kvferry.specs.errors import InputError
    from kvferry.traces.fit import figures_of, fit_bandwidth, with_figures
    from kvferry.traces.generate import write_model
    from kvferry.traces.resolve import bandwidth_trace
    from kvferry.traces.statistics import statistics_of

    if mean and median:
        raise InputError("--mean and --median: only one of them can be met")
    moments = {"mean": mean, "median": median, "std": std}
    wanted_rates = {key: _quantity(f"--{key}", text, "rate") for key, text in moments.items() if text}
    real = bandwidth_trace(trace)
    model = fit_bandwidth(
        real,
        name or re.sub(r"[^a-z0-9._]+", "-", (output or Path(trace)).stem.lower()).strip("-"),
        description=about,
        fitted_to=_fitted_to(trace, {key: text for key, text in moments.items() if text}),
        seed=seed,
        duration_s=_quantity("--duration", duration, "time"),
        **wanted_rates,
    )
    wanted = figures_of(statistics_of(real))
    if wanted_rates:
        # The shape is the trace's, its place and width are not: what was asked for stands in their stead.
        wanted = {key: None if key.endswith("_mbit_per_s") else value for key, value in wanted.items()}
        wanted |= {f"{key}_mbit_per_s": value * 8e-6 for key, value in wanted_rates.items()}
    model = with_figures(model, wanted)
    if output:
        write_model(output, model)
    if json:
        _print_json(model.model_dump(mode="json"))
        return
    from kvferry.cli.table import print_table

    rows = [(key, *("-" if v is None else f"{v:.4g}" for v in pair)) for key, pair in model.figures.items()]
    print_table(("figure", "fitted to", "generated"), rows, title=f"{model.name}, seed {model.seed}")


def _fitted_to(trace: str, moments: Mapping[str, str]) -> str:
    asked = " and ".join(f"{key} {text}" for key, text in moments.items())
    return f"{asked}; shape, time structure and fades of {trace}" if asked else trace


def _span(text: str) -> tuple[float | None, float | None]:
    """Seconds from "FROM:TO"; either side may be empty."""
    import math

    from kvferry.specs.errors import InputError

    start, colon, end = text.partition(":")
    try:
        span = tuple(float(part) if part.strip() else None for part in (start, end))
    except ValueError:
        span, colon = (None, None), ""
    if not colon or any(part is not None and not (math.isfinite(part) and part >= 0) for part in span):
        raise InputError(f"{text!r} is not a span; write it in seconds like 5:60, or 5: up to the end")
    return span[0], span[1]


def _quantity(option: str, text: str, kind: str) -> float:
    from kvferry.specs.errors import InputError
    from kvferry.specs.units import quantity

    try:
        value = quantity(text, kind)
        if value <= 0:
            raise ValueError(f"{text!r} is not above 0")
        return value
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def _print_json(value: dict[str, Any]) -> None:
    from kvferry.analysis.envelope import to_json

    print(to_json(value), end="")

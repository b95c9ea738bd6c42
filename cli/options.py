"""The arguments that several commands share."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli.output import results_folder

ScenarioArgument = Annotated[str, typer.Argument(metavar="SCENARIO", help="A bundled scenario by name, or a file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value, as in link.rtt='20 ms'. Repeatable."),
]
SeedOption = Annotated[int | None, typer.Option("--seed", min=0, help="The same as --set seed=N.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="DIR", parser=results_folder, help="Folder for the results.")
]
JobsOption = Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Processes. Default: one per core.")]
ExecutorOption = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="WHERE",
        help="in-process, cores, or a dask scheduler's address as tcp://127.0.0.1:8786. Results are the same bytes.",
    ),
]
PlotsOption = Annotated[bool, typer.Option("--plots/--no-plots", help="Draw pictures; most of the time goes there.")]
TokensOption = Annotated[
    bool, typer.Option("--tokens", help="Also write tokens.parquet: when each token of each request was there.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def _used(text: str) -> str:
    """A plugin's file or module, used while the command line is read: before a scenario names what it has."""
    from kvferry.pipelines.plugins import use

    use(text)
    return text


PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="FILE",
        parser=_used,
        help="A Python file, or a module, with policies of your own (docs/plugins.md). Repeatable.",
    ),
]
RunsOption = Annotated[
    int,
    typer.Option("--runs", min=1, max=1000, metavar="N", help="Run for real so often; medians and ranges are shown."),
]


IntervalsOption = Annotated[
    bool,
    typer.Option(
        "--intervals/--no-intervals",
        help="Say how far figures may be off, by what was measured elsewhere; decoding is run a few times more.",
    ),
]


PointIntervalsOption = Annotated[
    bool | None,
    typer.Option(
        "--intervals/--no-intervals",
        help="Both ends of each point's intervals; it is run a few times more. Default: where its runtime is assumed.",
    ),
]


def overrides(settings: list[str] | None, seed: int | None) -> list[str]:
    return [*(settings or []), *([] if seed is None else [f"seed={seed}"])]


@contextmanager
def as_options(*names: str, **called: str) -> Iterator[None]:
    """What the API says of a parameter is said of the option of that name, or of the one that it is `called`."""
    from kvferry.specs.errors import InputError

    try:
        yield
    except InputError as error:
        options = {name: name.replace("_", "-") for name in names} | called
        named = re.compile(rf"^({'|'.join(options)})\b(?!\.)", re.MULTILINE)
        raise InputError(named.sub(lambda found: f"--{options[found[0]]}", str(error))) from None


def listed(systems: str | None) -> list[str] | None:
    """The names of a comma-separated --systems."""
    return None if systems is None else [name.strip() for name in systems.split(",") if name.strip()]


def one_of(system: str | None, several: str) -> str | None:
    """The name of the only --system; `several` is the command that takes more."""
    from kvferry.specs.errors import InputError

    if system is not None and len(listed(system) or ()) > 1:
        raise InputError(
            f"--system {system:.100}: this takes one system; several: {several} SCENARIO --systems {system:.100}"
        )
    return system

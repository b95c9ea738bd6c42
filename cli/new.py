"""``kvferry new``: files to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli.output import results_folder

app = typer.Typer(no_args_is_help=True)


@app.callback()
def new() -> None:
    """Files to begin with: a policy of your own."""


@app.command()
def policy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What scenarios will call it, as in my-loader.")],
    role: Annotated[
        str,
        typer.Option(
            "--role",
            help="loader, schedule, selector, residency, layout, upkeep, placement, batching, attention, index, system"
            " or cost-model.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", parser=results_folder, help="Folder for the two files."),
    ] = None,
) -> None:
    """Write a commented example of a policy, and a test that runs it. Both are yours to change.

    A command uses it with --plugin FILE, Python with kvferry.use(FILE).
    """
    from kvferry.api.new_policy import new_policy
    from kvferry.cli.progress import say
    from kvferry.specs.errors import quoted

    file, test = new_policy(name, role, output or Path())
    print(quoted(str(file)))
    print(quoted(str(test)))
    say(f"how it is used stands at the top of {file}; test it with: pytest {test}")

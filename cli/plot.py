"""``kvferry plot``: pictures of results that are there already."""

from pathlib import Path
from typing import Annotated

import typer

from kvferry.cli.output import results_folder


def plot(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a sweep or a comparison.")],
    study: Annotated[
        Path | None, typer.Option("--study", metavar="FILE", help="Draw the plots of this study's file instead.")
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option("--rows", metavar="VERSION", help="Rows of this version of KVFerry alone, also replaced ones."),
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", metavar="A,B", help="png, svg and pdf, several with commas between.")
    ] = "png,svg",
    width: Annotated[
        str | None,
        typer.Option("--width", metavar="WIDTH", help="Of a paper's column, as in 3.3in or 84mm: small, no titles."),
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Also a table of what marks show, NAME.tex.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", parser=results_folder, help="Folder. Default: FOLDER/plots."),
    ] = None,
) -> None:
    """Draw the pictures of a results folder again from its rows: nothing is run."""
    from kvferry.api.artefact import plot as drawn_again
    from kvferry.cli.options import as_options
    from kvferry.cli.progress import say

    with as_options("width", "rows", "study", formats="format"):
        drawn, said = drawn_again(
            folder, study=study, rows=rows, formats=formats.split(","), width=width, latex=latex, output=output
        )
    for line in said:
        say(line)
    for name, what in drawn.behind.items():
        say(f"{name}: {what}")
    for name, why in drawn.not_drawn.items():
        say(f"{name}: not drawn: {why}")
    for file in drawn.files:
        print(file)
    if not drawn.files:
        raise typer.Exit(1)

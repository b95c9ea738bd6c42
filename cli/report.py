"""``kvferry report``: one HTML file about what lies in results folders."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, comparisons, sweeps or reproductions.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one HTML file with tables that sort and filter, charts that zoom, scenarios and sources.

    The file needs no network and nothing beside it. Of a folder that holds no results itself, those one level below it
    are taken.
    """
    from kvferry.api.report import report as written
    from kvferry.cli.progress import say

    written(folders, output)
    say(f"written to {output}")

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
    from kvferry.analysis.report.page import report as page_about
    from kvferry.cli.progress import say
    from kvferry.system.whole_file import write_file

    write_file(output, page_about(folders).encode())
    say(f"written to {output}")

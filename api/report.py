"""One HTML file about what lies in results folders."""

from collections.abc import Sequence
from pathlib import Path


def report(folders: str | Path | Sequence[str | Path], output: str | Path = "report.html") -> Path:
    """Writes one HTML file with tables that sort and filter, charts that zoom, scenarios and sources; returns its path.

    `folders`: of runs, comparisons, sweeps, reproductions or fidelity; of one that holds no results itself, those one
    level below it are taken. The file needs no network and nothing beside it.

    Raises InputError for folders without results and damaged files, MissingExtra without the report extra.
    """
    from kvferry.api.report_page.page import report as page_about
    from kvferry.system.whole_file import write_file

    named = [folders] if isinstance(folders, str | Path) else folders
    return write_file(Path(output), page_about([Path(folder) for folder in named]).encode())

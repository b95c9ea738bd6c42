"""A paper's claims, tables and figures beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.pipelines.workload import Progress

if TYPE_CHECKING:
    import pandas as pd

EVERY = "all"


@dataclass(frozen=True, eq=False)
class Reproduction:
    """Papers reproduced. As the last value of a notebook's cell it shows its claims.

    ``reports``: by paper what ``kvferry reproduce PAPER --json`` prints: claims, cells, tables, agreement. ``pages``:
    the pages and files whose tables were rewritten.
    """

    reports: Mapping[str, Mapping[str, Any]]
    pages: tuple[Path, ...] = ()

    @cached_property
    def claims(self) -> pd.DataFrame:
        """A row per claim: paper, id, what, the paper's and our figures, how many seeds hit, verdict, fitted, why."""
        return self._frame("claims")

    @cached_property
    def cells(self) -> pd.DataFrame:
        """A row per printed figure of a table: paper, experiment, case, system, metric, the paper's and ours,
        relative_error, fitted."""
        return self._frame("cells")

    def _frame(self, part: str) -> pd.DataFrame:
        import pandas as pd

        return pd.DataFrame([{"of": name, **row} for name, report in self.reports.items() for row in report[part]])

    def __repr__(self) -> str:
        verdicts = [claim["verdict"] for report in self.reports.values() for claim in report["claims"]]
        counted = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts))
        return f"{', '.join(self.reports)}: {counted}"

    def _repr_html_(self) -> str:
        return str(self.claims.to_html(max_rows=60))


def reproduce(
    paper: str = EVERY,
    *,
    output: str | Path | None = None,
    seeds: int | None = None,
    pages: str | Path | None = None,
    each: Callable[[str, Mapping[str, Any]], None] = lambda name, report: None,
    watch: Callable[[str], AbstractContextManager[Progress]] = lambda name: nullcontext(lambda done, of: None),
) -> Reproduction:
    """Runs what a paper ran, and puts each claim beside our figure, with a verdict: hit, miss, measured.

    `paper`: "sparkv", "kvswap", "dynakv", "pd_device", "specontext", or "all". `output`: a folder that keeps runs,
    report and pictures, of all papers one in it for each; the same call then runs only what is missing. `seeds`: the
    first this many of each run; None: all. `pages`: a folder whose pages' tables are rewritten, between their
    markers, and every row in its folder ``data`` (CSV). `each` is called with a paper's name and report once it is
    done; `watch` as in ``run``.

    Raises InputError for a paper that is not known, KvferryError for a folder that cannot be written.
    """
    from kvferry.analysis.reproduce import reproduce_paper
    from kvferry.analysis.reproduction.paper import paper_names
    from kvferry.api.validation_page import write_pages

    folder = None if output is None else Path(output)
    reports: dict[str, dict[str, Any]] = {}
    for name in paper_names() if paper == EVERY else [paper]:
        own = folder / name if folder is not None and paper == EVERY else folder
        with watch(name) as progress:
            reports[name] = reproduce_paper(name, own, seeds=seeds, progress=progress)
        each(name, reports[name])
    anew = write_pages(Path(pages), reports) if pages is not None else []
    return Reproduction(reports, tuple(anew))

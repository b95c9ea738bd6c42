"""A search: settings of a scenario that are best under objectives and constraints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.dataset import read_points
from kvferry.analysis.executors.choice import executor_for
from kvferry.analysis.executors.executor import Executor
from kvferry.analysis.quality import MARK, SPARSE
from kvferry.analysis.remarks import rests_on
from kvferry.analysis.search import Search, invalid_under, load_search, run_search
from kvferry.analysis.search_record import write_search_record
from kvferry.analysis.search_result import result_of, write_result
from kvferry.analysis.tried import Tried
from kvferry.api.html import with_remarks
from kvferry.api.intervals import INTERVALS
from kvferry.api.scenario import Settings, overrides_of
from kvferry.pipelines.checks import names_in_use
from kvferry.pipelines.plugins import naming_plugins
from kvferry.pipelines.workload import Progress
from kvferry.scenarios.idle import IdlePolicies

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Found:
    """What a search tried and found, in its folder. As the last value of a notebook's cell it shows the front.

    ``summary``: what ``kvferry search --json`` prints: the front with settings, figures and keys of rows, how many
    points are solutions, and why others are not. ``tried``: every point, in order. ``new``: how many scenarios were run
    now. ``said``: what is to be said of the folder.
    """

    search: Search
    folder: Path
    summary: Mapping[str, Any]
    tried: tuple[Tried, ...]
    new: int
    plots: tuple[Path, ...]
    said: tuple[str, ...] = ()

    @cached_property
    def front(self) -> pd.DataFrame:
        """A row per point of the Pareto front, or the best point of a single objective: its number, settings as the
        search's file writes them, and medians of the metrics that objectives and constraints name, in SI units."""
        import pandas as pd

        front = self.summary["front"]
        # A setting that is an objective stays as it is written.
        return pd.DataFrame([{"point": one["point"], **(one["settings"] | _measured(one))} for one in front])

    @cached_property
    def points(self) -> pd.DataFrame:
        """A row per scenario that was run, as a sweep's points have it."""
        return read_points(self.folder)

    @property
    def marked_front(self) -> tuple[pd.DataFrame, str]:
        """``front`` with a mark behind each system that attends to a part of the tokens, and what the mark means; ""
        where there is none."""
        points, front = self.points, self.front
        if "attended_share" not in points.columns or front.empty:
            return front, ""
        part = points[points["attended_share"] < 1]
        keys = set(part["key"])
        sparse = [not keys.isdisjoint(one["keys"]) for one in self.summary["front"]]
        if not any(sparse):
            return front, ""
        column = "system" if "system" in front.columns else "point"
        names = [f"{name} {MARK}" if part else name for name, part in zip(front[column], sparse, strict=True)]
        return front.assign(**{column: names}), SPARSE

    @property
    def about_points(self) -> list[str]:
        """Policies and settings that have no effect on some systems, and of each system the first point that is no
        valid scenario, with what is wrong."""
        idle = IdlePolicies()
        for one in self.tried:
            if one.scenarios:
                idle.add(one.system, one.idle, one.heard)
        invalid = {one.system: one for one in reversed(self.tried) if not one.is_valid}
        said = [
            f"point {one.number} is not a valid scenario: {invalid_under(one).splitlines()[0]}"
            for one in sorted(invalid.values(), key=lambda one: one.number)
        ]
        tried = (scenario for one in self.tried for scenario in one.scenarios.values())
        return [*idle.remarks(), *self.search.base.idle_settings(tried), *said]

    @property
    def remarks(self) -> list[str]:
        """What a reader of all the figures should know: policies of one system alone, what is to be said about points,
        profiles that were not measured, runtimes that are assumed."""
        scenarios = [one for each in self.tried for one in each.scenarios.values()]
        return [*self.search.remarks, *self.about_points, *rests_on(scenarios)]

    def __repr__(self) -> str:
        summary = self.summary
        return (
            f"{summary['search']}: {summary['solutions']:,} solutions in {summary['points']:,} points in {self.folder}"
        )

    def _repr_html_(self) -> str:
        front, mark = self.marked_front
        return with_remarks(front.to_html(max_rows=20), [*([mark] if mark else []), *self.remarks])


@naming_plugins()
def search_of(source: str | Path | Mapping[str, Any], settings: Settings = ()) -> Search:
    """The search of a bundled name, a file or a mapping; `settings` apply to its base, as in ``load``. Raises
    InputError with a line per fault."""
    given = source if isinstance(source, Mapping) else str(source)
    return load_search(given, overrides_of(settings), check=names_in_use)


def search(
    source: str | Path | Mapping[str, Any] | Search,
    settings: Settings = (),
    *,
    output: str | Path | None = None,
    jobs: int | None = None,
    executor: str | Executor | None = None,
    plots: bool = True,
    intervals: bool | None = None,
    progress: Progress = lambda done, of: None,
) -> Found:
    """Looks for settings that are best under objectives and constraints, and draws what it found.

    `source`: a bundled name, a file (docs/search.md), or a mapping as a file has it.
    `settings` apply to its base. `output`: the folder; None: the
    one that the search names. `jobs`, `executor` and `intervals` as in ``sweep``: they change nothing about what is
    tried. `progress` is called with how many points are done, of how many.

    Interrupted, the folder keeps what is done, and the same call goes on from there. Raises InputError with a line per
    fault of the file, KvferryError where the folder cannot be used, MissingExtra without optuna.
    """
    loaded = source if isinstance(source, Search) else search_of(source, settings)
    folder = loaded.output if output is None else Path(output)
    where = executor if executor is not None and not isinstance(executor, str) else executor_for(executor, jobs)
    tried, new = run_search(loaded, folder, where, progress, intervals_of=INTERVALS[intervals])
    _, pictures = write_result(loaded, tried, folder, plots)
    said = write_search_record(folder, loaded, tried, intervals)
    return Found(loaded, folder, result_of(loaded, tried), tuple(tried), new, tuple(pictures), tuple(said))


def _measured(one: Mapping[str, Any]) -> dict[str, Any]:
    return {key: figure for key, figure in one["figures"].items() if key not in one["settings"]}

"""A study: one scenario over axes and seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.dataset import read_points
from kvferry.analysis.executors.choice import executor_for
from kvferry.analysis.executors.executor import Executor
from kvferry.analysis.interval_columns import COLUMNS, LEAST
from kvferry.analysis.remarks import rests_on
from kvferry.analysis.study import Study, load_study
from kvferry.analysis.study_plots import marked
from kvferry.analysis.study_record import recorded_point
from kvferry.analysis.sweep import run_study
from kvferry.api.archive import MANIFEST
from kvferry.api.html import with_remarks
from kvferry.api.intervals import INTERVALS
from kvferry.api.reach import check_points, check_text
from kvferry.api.result import Result, run
from kvferry.api.scenario import Settings, overrides_of
from kvferry.pipelines.checks import names_in_use
from kvferry.pipelines.plugins import naming_plugins
from kvferry.pipelines.workload import Progress
from kvferry.scenarios.loader import scenario_hash
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Sweep:
    """The points of a study in their folder. As the last value of a notebook's cell it shows the table of its points.

    ``summary``: what ``kvferry sweep --json`` prints: points, new, outcomes, failed (for each such point the values of
    the axes, and why), data, plots and more.
    """

    study: Study
    folder: Path
    summary: Mapping[str, Any]

    @cached_property
    def points(self) -> pd.DataFrame:
        """A row per point, in the order of the study: key, outcome, why, settings by their path (``link.rtt_s``),
        metrics by their name (``ttft_s``), version. Units are those in the names."""
        keys = [scenario_hash(point) for point in self.study.points]
        return read_points(self.folder).set_index("key").loc[keys].reset_index()

    def run(self, key: str) -> Result:
        """Runs one point again, by its key or the first letters of it. Raises InputError for a key that there is not,
        or that several begin with."""
        found = [one for one in self.study.points if scenario_hash(one).startswith(key)]
        if len(found) != 1:
            raise InputError(f"key: {len(found):,} points have a key that begins with {key!r:.80}")
        return run(found[0])

    @property
    def remarks(self) -> list[str]:
        """What a reader of all the figures should know: policies of one system alone, profiles that were not measured,
        runtimes that are assumed."""
        ranged = [COLUMNS] if any(column.startswith(LEAST) for column in self.points.columns) else []
        return [*self.study.remarks, *rests_on(self.study.points), *ranged]

    @property
    def plots(self) -> list[Path]:
        """Files of the study's pictures."""
        return [Path(path) for path in self.summary["plots"]]

    def __repr__(self) -> str:
        outcomes = ", ".join(f"{n:,} {outcome}" for outcome, n in self.summary["outcomes"].items())
        return f"{self.study.name}: {self.summary['points']:,} points ({outcomes}) in {self.folder}"

    def _repr_html_(self) -> str:
        points, mark = marked(self.points)
        return with_remarks(points.to_html(max_rows=20, max_cols=20), [*([mark] if mark else []), *self.remarks])


@naming_plugins()
def study_of(source: str | Path | Mapping[str, Any], settings: Settings = (), *, is_whole: bool = True) -> Study:
    """The study of a bundled name, a file or a mapping, each of its points checked; `settings` apply to its base, as
    in ``load``. `is_whole`: no other systems run beside its own. Raises InputError with a line per fault."""
    given = source if isinstance(source, Mapping) else str(source)
    return load_study(given, overrides_of(settings), check=names_in_use, is_whole=is_whole)


@naming_plugins()
def point_of(folder: str | Path, key: str) -> tuple[str, Scenario]:
    """Returns the point of a sweep's folder whose key begins so, with its whole key: what ``run`` takes. Raises
    InputError, also where an archive's study reaches beyond its folder."""
    place = Path(folder)
    if not (place / MANIFEST).is_file():
        return recorded_point(place, key, names_in_use)
    check_text(place)
    whole, point = recorded_point(place, key, names_in_use)
    check_points(place, [point])
    return whole, point


def sweep(
    study: str | Path | Mapping[str, Any] | Study,
    settings: Settings = (),
    *,
    output: str | Path | None = None,
    jobs: int | None = None,
    executor: str | Executor | None = None,
    plots: bool = True,
    intervals: bool | None = None,
    progress: Progress = lambda done, of: None,
) -> Sweep:
    """Runs the points of a study that are missing from its folder, and draws its pictures.

    `study`: a bundled name, a file (docs/sweeps.md), or a mapping as a file has it.
    `settings` apply to its base. `output`: the folder; None: the
    one that the study names. `jobs`: processes; None: one per core. `executor`: "in-process", "cores" or the address
    of a dask scheduler; None: cores. `intervals`: whether points have both ends of their 80 % intervals, for which
    each is carried out a few times more; None: those whose runtime is only assumed. `progress` is called with how many
    points are done, of how many.

    The same bytes come of any executor. Raises InputError with a line per fault of the study, KvferryError
    where the folder cannot be used; a point that fails is named in ``summary["failed"]``. Interrupted, the folder keeps
    what is done, and the same call goes on from there.
    """
    loaded = study if isinstance(study, Study) else study_of(study, settings)
    folder = loaded.output if output is None else Path(output)
    where = executor_for(executor, jobs) if isinstance(executor, str) else executor
    summary = run_study(
        loaded if plots else replace(loaded, plots=()), folder, jobs, progress, where, INTERVALS[intervals], intervals
    )
    return Sweep(loaded, folder, summary)

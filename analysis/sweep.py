"""Many scenarios on all cores, into one data set: only what is missing is run."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from threading import Thread
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from kvferry.analysis.code_version import code_version
from kvferry.analysis.dataset import MEASURED, Dataset, Row, read_points
from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.settings import column_of, settings_of
from kvferry.analysis.study import Study
from kvferry.analysis.study_plots import draw_plots
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import scenario_hash
from kvferry.specs.errors import KvferryError
from kvferry.specs.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

# Called with how many points are there, of how many; the first call counts those that were there already.
Progress = Callable[[int, int], None]
_MOST_WORDS = 1000


def run_points(
    points: Sequence[Scenario],
    folder: Path,
    workers: int | None = None,
    progress: Progress = lambda done, of: None,
    run: Callable[[Scenario], Run] = run_scenario,
) -> pd.DataFrame:
    """A row per point, in the order of the points; those that the folder does not hold yet are run.

    Columns: key (the scenario's hash), outcome, why, settings (as ``settings_of`` names them), metrics (as
    ``metrics_of`` does), version. The folder is a ``Dataset``: its bytes depend neither on the number of workers
    (None: all cores; real runs: one) nor on the order in which points finish. Points of another version of KVFerry
    run again and replace their rows. A point that raises, or whose process dies, has the outcome "failed" and runs
    again next time; the others go on. Interrupted (KeyboardInterrupt), the folder keeps what was finished.

    Raises KvferryError when the folder cannot be used.
    """
    keys = [scenario_hash(point) for point in points]
    with Dataset(folder) as data:
        known = _usable(data.compact())  # a killed sweep may have left parts
        missing = {key: point for key, point in zip(keys, points) if key not in known}
        done, of = len(set(keys) & known), len(set(keys))
        progress(done, of)
        try:
            # Real runs have the machine to themselves, one after the other.
            alone = any(point.backend != "sim" for point in missing.values())
            with closing(_rows(missing, 1 if alone else workers, run)) as rows:
                for row in rows:
                    data.add(row)
                    done += 1
                    progress(done, of)
        finally:
            table = data.compact()
    return table.set_index("key").loc[keys].reset_index()


def run_study(
    study: Study, folder: Path, workers: int | None = None, progress: Progress = lambda done, of: None
) -> dict[str, Any]:
    """Run the points of a study that are missing, draw its plots into plots/, and tell how it went.

    Returns what ``kvferry sweep --json`` prints: study, points, new (how many were run now), outdated (how many of
    those had a result of another version of KVFerry), outcomes (how many of each), failed (for each such point the
    values of the axes, and why), data, plots, marks (by plot, what stands behind each), not_drawn (why, by plot),
    not_measured (devices whose profile is not). Raises as ``run_points`` does.
    """
    before = read_points(folder)
    frame = run_points(study.points, folder, workers, progress).drop_duplicates("key")
    drawn = draw_plots(frame, study.plots, folder / "plots", study.axes)
    failed = frame[frame["outcome"] == "failed"]
    columns = {key: column for key in study.axes if (column := column_of(key, frame.columns))}
    return {
        "study": study.name,
        "points": len(frame),
        "new": len(set(frame["key"]) - _usable(before)),
        "outdated": int((before["key"].isin(frame["key"]) & (before["version"] != code_version())).sum()),
        "outcomes": {outcome: int(n) for outcome, n in frame["outcome"].value_counts().sort_index().items()},
        "failed": [
            {**{key: row[column] for key, column in columns.items()}, "why": row["why"]}
            for row in failed.astype(object).where(failed.notna(), None).to_dict("records")
        ],
        "data": str(folder / "points.parquet"),
        "plots": [str(path) for path in drawn.files],
        "marks": drawn.behind,
        "not_drawn": drawn.not_drawn,
        "not_measured": sorted({point.device.name for point in study.points if not point.device.is_measured}),
    }


def _usable(table: pd.DataFrame) -> set[str]:
    """The keys of the points that need not be run again."""
    if table.empty:
        return set()
    return set(table["key"][(table["version"] == code_version()) & (table["outcome"] != "failed")])


def _rows(
    missing: Mapping[str, Scenario], workers: int | None, run: Callable[[Scenario], Run]
) -> Generator[Row, None, None]:
    """Yields a row per point as the points finish. When a process dies, the points under way are run once more."""
    from joblib import cpu_count
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = dict(missing)
    while left:
        started: list[str] = []
        try:
            for row in _parallel(left, min(workers or cpu_count(), len(left)), run, started):
                del left[row["key"]]
                yield row
        except TerminatedWorkerError:
            for key in [key for key in started if key in left]:
                yield _row_alone(key, left.pop(key), run)


def _parallel(
    points: Mapping[str, Scenario], workers: int, run: Callable[[Scenario], Run], started: list[str]
) -> Generator[Row, None, None]:
    """The same in so many processes, or in this one for a single worker. Appends the key of each point that begins to
    `started`."""
    from joblib import Parallel, delayed

    version = code_version()  # here: the files may be edited before the last worker looks at them

    def tasks() -> Iterator[Any]:
        for key, point in list(points.items()):
            started.append(key)
            yield delayed(_row)(key, point, run, version)

    rows = Parallel(
        n_jobs=workers,
        backend="loky",
        return_as="generator_unordered",
        inner_max_num_threads=1,
        initializer=_begin_worker,
        initargs=(os.getpid(),),
    )(tasks())
    try:
        yield from rows
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that results are thrown away: they are not needed any more
            rows.close()


def _row_alone(key: str, point: Scenario, run: Callable[[Scenario], Run]) -> Row:
    """Runs by itself one of the points that were under way when a process died, and returns its row: so the point that
    makes a process die is found."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    began_s = perf_counter()
    try:
        return next(_parallel({key: point}, 2, run, []))
    except TerminatedWorkerError:
        found = {"outcome": "failed", "why": "its process died: killed, or out of memory"}
        return _row_of(key, point, found, code_version(), perf_counter() - began_s)


def _begin_worker(parent: int) -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal: the parent answers it. A killed parent cannot end
    its workers, so they look for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_the_parent() -> None:
        while os.getppid() == parent:
            sleep(1.0)
        os._exit(1)

    Thread(target=end_with_the_parent, daemon=True).start()


def _row(key: str, point: Scenario, run: Callable[[Scenario], Run], version: str) -> Row:
    began_s = perf_counter()
    try:
        result = run(point)
        if result.interrupted:
            raise KeyboardInterrupt  # a part of a run is no result
        metrics = metrics_for(point, result)
        found = {"outcome": result.outcome, "why": result.why or "; ".join(result.faults) or None, **metrics}
        found |= {MEASURED + name: value for name, value in result.measured.items() if isinstance(value, int | float)}
    except Exception as error:
        why = str(error) if isinstance(error, KvferryError) else f"{type(error).__name__}: {error}"
        found = {"outcome": "failed", "why": why[:_MOST_WORDS]}
    return _row_of(key, point, found, version, perf_counter() - began_s)


def _row_of(key: str, point: Scenario, found: Mapping[str, Any], version: str, wall_s: float) -> Row:
    return {"key": key, **settings_of(point), **found, "version": version, MEASURED + "wall_s": wall_s}

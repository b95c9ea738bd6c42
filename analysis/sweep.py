"""Many scenarios into one data set: only what is missing is run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.axis_values import written_values
from kvferry.analysis.code_version import code_version
from kvferry.analysis.dataset import Dataset, read_earlier, read_points
from kvferry.analysis.executors.choice import InProcess, executor_for
from kvferry.analysis.executors.executor import Executor
from kvferry.analysis.interval_columns import IntervalsOf
from kvferry.analysis.paired import paired
from kvferry.analysis.point import Point, Work
from kvferry.analysis.settings import column_of
from kvferry.analysis.study import Study
from kvferry.analysis.study_plots import chance_of, devices_of, draw_plots
from kvferry.analysis.study_record import Recorded, write_record
from kvferry.pipelines.plugins import used
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.loader import scenario_hash
from kvferry.specs.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd

# Called with how many points are there, of how many; the first call counts the ones that were there already.
Progress = Callable[[int, int], None]


def run_points(
    points: Sequence[Scenario],
    folder: Path,
    workers: int | None = None,
    progress: Progress = lambda done, of: None,
    run: Callable[[Scenario], Run] = run_scenario,
    executor: Executor | None = None,
    intervals_of: IntervalsOf | None = None,
    labels: Sequence[str] = (),
    kin: Sequence[str] = (),
) -> pd.DataFrame:
    """A row per point, in the order of the points; the ones that the folder does not hold yet are run.

    Columns: key (the scenario's hash), outcome, why, settings (as ``settings_of`` names them), metrics (as
    ``metrics_of`` does), version. The folder is a ``Dataset``: its bytes depend neither on the number of workers (None:
    all cores; real runs: one), nor on the executor (None: that many processes), nor on the order in which points
    finish. `intervals_of` gives columns with both ends of a point's intervals (``low_tpot_s``, ``high_tpot_s``). Points
    of another version of KVFerry run again; rows that they replace are kept apart (``read_earlier``), and rows of this
    version come back from there. `labels`: of variants, by point; `kin`: as Point has it, by point. A point that
    raises, or whose process dies, has the outcome "failed" and runs again next time; the others go on. Interrupted
    (KeyboardInterrupt), the folder keeps what was finished.

    Raises KvferryError when the folder cannot be used.
    """
    keys = [scenario_hash(point) for point in points]
    label_of, kin_of = (dict(zip(keys, of, strict=False)) for of in (labels, kin))
    with Dataset(folder) as data:
        known = _usable(data.compact(label_of))  # a killed sweep may have left parts
        known |= _brought_back(data, set(keys) - known)
        missing = {key: point for key, point in zip(keys, points) if key not in known}
        done, of = len(set(keys) & known), len(set(keys))
        progress(done, of)
        try:
            # Real runs have the machine to themselves, one after the other.
            alone = any(point.backend != "sim" for point in missing.values())
            where = InProcess() if alone else executor or executor_for(None, workers)
            tasks = (Point.of(point, key, label_of.get(key, ""), kin_of.get(key, "")) for key, point in missing.items())
            with where, closing(where.rows(tasks, Work(run, code_version(), used(), intervals_of))) as rows:
                for row in rows:
                    data.add(row)
                    done += 1
                    progress(done, of)
        finally:
            table = data.compact(label_of)
    return table.set_index("key").loc[keys].reset_index()


def run_study(
    study: Study,
    folder: Path,
    workers: int | None = None,
    progress: Progress = lambda done, of: None,
    executor: Executor | None = None,
    intervals_of: IntervalsOf | None = None,
    intervals: bool | None = None,
) -> dict[str, Any]:
    """Run the points of a study that are missing, draw its plots into plots/, and tell how it went.

    Returns what ``kvferry sweep --json`` prints: study, points, new (how many were run now), outdated (how many of
    those had a result of another version of KVFerry), outcomes (how many of each), failed (for each such point the
    values of the axes, and why), data, plots, marks (by plot, what stands behind each), not_drawn (why, by plot),
    not_measured (devices whose profile is not), paired (systems beside each other, by the kind's headline figure),
    pairs (the same in words). Raises as ``run_points`` does.
    """
    before = read_points(folder)
    frame = run_points(
        study.points, folder, workers, progress, executor=executor, intervals_of=intervals_of, labels=study.labels
    )
    frame = frame.drop_duplicates("key")
    record = Recorded("study", study.name, study.points, study.axes, study.settings, study.text)
    said = write_record(folder, record, list(frame["key"]), intervals)
    not_measured = sorted({point.device.name for point in study.points if not point.device.is_measured})
    about, chance = (study.name, devices_of(study.points)), chance_of(study.points)
    drawn = draw_plots(frame, study.plots, folder / "plots", study.axes, about, chance)
    said += _of_former_plots(folder / "plots", {*drawn.behind, *drawn.not_drawn}) if study.plots else []
    headlines = {WORKLOADS[point.workload.kind].headline for point in study.points}
    pairs = paired(frame, headlines.pop(), study.axes, chance) if len(headlines) == 1 else []
    failed = frame[frame["outcome"] == "failed"]
    columns = {key: column for key in study.axes if (column := column_of(key, frame.columns))}
    written = {key: dict(zip(frame["key"], written_values(frame, key), strict=True)) for key in study.axes}
    return {
        "study": study.name,
        "points": len(frame),
        "new": len(set(frame["key"]) - _usable(before)),
        "outdated": int((before["key"].isin(frame["key"]) & (before["version"] != code_version())).sum()),
        "outcomes": {outcome: int(n) for outcome, n in frame["outcome"].value_counts().sort_index().items()},
        "failed": [
            {
                **{key: row[columns[key]] if key in columns else written[key][row["key"]] for key in study.axes},
                "why": row["why"],
            }
            for row in failed.astype(object).where(failed.notna(), None).to_dict("records")
        ],
        "data": str(folder / "points.parquet"),
        "plots": [str(path) for path in drawn.files],
        "marks": drawn.behind,
        "not_drawn": drawn.not_drawn,
        "not_measured": not_measured,
        "said": said,
        "paired": [asdict(one) for one in pairs],
        "pairs": [str(one) for one in pairs],
    }


def _of_former_plots(folder: Path, names: Collection[str]) -> list[str]:
    """Returns a line on pictures that lie there and that the study does not ask for any more."""
    former = sorted({path.stem for path in folder.glob("*.png")} - set(names))
    return [f"{folder} still holds pictures that this study does not draw: {', '.join(former)}"] if former else []


def _brought_back(data: Dataset, keys: Collection[str]) -> set[str]:
    """Brings rows of this version back that those of another one had replaced; returns the keys of these."""
    earlier = read_earlier(data.folder)
    rows = earlier[earlier["key"].isin(keys) & (earlier["version"] == code_version())]
    for row in rows.astype(object).where(rows.notna(), None).to_dict("records"):
        data.add({str(column): value for column, value in row.items() if value is not None})
    return set(rows["key"])


def _usable(table: pd.DataFrame) -> set[str]:
    """The keys of the points that need not be run again."""
    if table.empty:
        return set()
    return set(table["key"][(table["version"] == code_version()) & (table["outcome"] != "failed")])

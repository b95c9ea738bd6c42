"""Results that last: pictures drawn again, and sweeps and searches as archives that others rerun."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.code_version import code_version
from kvferry.analysis.dataset import read_points
from kvferry.analysis.executors.choice import executor_for
from kvferry.analysis.search import run_search
from kvferry.analysis.search_record import recorded_search, write_search_record
from kvferry.analysis.search_result import write_result
from kvferry.analysis.study_plots import Drawn
from kvferry.analysis.study_record import (
    FRONT,
    keys_in_order,
    read_provenance,
    recorded_study,
    versions_behind,
)
from kvferry.analysis.style import FORMATS, Print
from kvferry.api import archive as artefact
from kvferry.api.intervals import INTERVALS
from kvferry.api.reach import check_points, check_text
from kvferry.api.redraw import redraw
from kvferry.api.sweep import sweep
from kvferry.pipelines.checks import names_in_use
from kvferry.pipelines.plugins import naming_plugins, use
from kvferry.pipelines.workload import Progress
from kvferry.specs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

# Inches by unit, and the widths that are taken.
_INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}
_WIDTHS = (1.0, 30.0)
_MOST_DIFFERENCES = 20


def plot(
    folder: str | Path,
    *,
    study: str | Path | None = None,
    rows: str | None = None,
    formats: Sequence[str] = ("png", "svg"),
    width: str | None = None,
    latex: bool = False,
    output: str | Path | None = None,
) -> tuple[Drawn, list[str]]:
    """Draws the pictures of a sweep's or a comparison's folder from its rows; returns what became of them and lines on
    the rows. `study`: a file whose plots are drawn instead. `rows`: of this version of KVFerry. `formats`: png, svg,
    pdf. `width`: of a paper's column, "3.3in": small letters, no titles. `latex`: tables, too. `output`: None: plots/
    of the folder. Raises InputError."""
    for one in formats:
        if one not in FORMATS:
            raise InputError(f"formats: {one!r:.40} is none of {', '.join(FORMATS)}")
    how = Print(tuple(dict.fromkeys(formats)), None if width is None else _inches(width))
    place = Path(folder) / "plots" if output is None else Path(output)
    return redraw(Path(folder), place, study=None if study is None else Path(study), version=rows, how=how, latex=latex)


def _inches(width: str) -> float:
    text = width.strip()
    unit = next((unit for unit in _INCHES if text.endswith(unit)), "")
    try:
        inches = float(text.removesuffix(unit)) * _INCHES[unit]
    except (ValueError, KeyError):
        raise InputError(f"width: {width!r:.40} is no width; write it like 3.3in or 84mm") from None
    if not _WIDTHS[0] <= inches <= _WIDTHS[1]:
        raise InputError(f"width: {width} is not between {_WIDTHS[0]:g}in and {_WIDTHS[1]:g}in")
    return inches


def pack(folder: str | Path, output: str | Path | None = None) -> tuple[Path, artefact.Manifest]:
    """Writes a sweep's or a search's folder as one archive: its text, files that it names, plugins' text, rows,
    pictures and versions. `output`: None: NAME.kvferry.zip in this folder. Equal folders give equal bytes. Raises
    InputError."""
    place = Path(folder)
    file = Path(f"{place.resolve().name}{artefact.SUFFIX}") if output is None else Path(output)
    return file, artefact.pack(place, file)


@dataclass(frozen=True)
class Checked:
    """What a rerun came to: ``same``: rows, and a search's front, have the same bytes. ``differences``: lines, none
    where all figures are equal. ``notes``: what is other here than where it was packed."""

    rows: int
    same: bool
    differences: tuple[str, ...]
    notes: tuple[str, ...]


def unpack(file: str | Path, output: str | Path | None = None) -> tuple[Path, artefact.Manifest]:
    """Writes an archive's files into a new folder; of a folder that was unpacked before, says what it is. Nothing of it
    is run. `output`: None: the archive's name without its ending. Raises InputError."""
    path = Path(file)
    if path.is_dir():
        return path, artefact.manifest_of(path)
    name = path.name.removesuffix(artefact.SUFFIX).removesuffix(".zip")
    folder = Path(output) if output is not None else Path(name if name != path.name else f"{name}-unpacked")
    return folder, artefact.unpack(path, folder)


@naming_plugins()
def check(
    folder: str | Path,
    *,
    run_plugins: bool = False,
    jobs: int | None = None,
    progress: Progress = lambda done, of: None,
) -> Checked:
    """Runs the study or search of an unpacked folder in its rerun/, and holds the rows, and a search's front, against
    the folder's. `run_plugins`: the code that it brings along is run. Raises InputError, KvferryError."""
    place = Path(folder)
    manifest, provenance = artefact.manifest_of(place), read_provenance(place)
    if lines := artefact.missing_files(place, manifest):
        raise InputError("\n".join(lines))
    plugins = _plugin_files(place)
    # Whatever the manifest says: what lies there is what would run.
    if plugins and not run_plugins:
        files = ", ".join(map(str, plugins))
        how = f"kvferry unpack {shlex.quote(str(place))} --check --run-plugins"
        raise InputError(f"{place}: brings code along, which a check would run: read {files}, then: {how}")
    for path in plugins:
        use(path)
    check_text(place)
    again, n_rows = place / "rerun", len(set(keys_in_order(place)))
    is_search = provenance.kind == "search"
    (_search_again if is_search else _sweep_again)(place, again, provenance.intervals, jobs, progress)
    compared = (artefact.POINTS, FRONT) if is_search else (artefact.POINTS,)
    if all(_bytes(place / name) == _bytes(again / name) for name in compared):
        return Checked(n_rows, True, (), ())
    differences = _differences(read_points(place), read_points(again))
    differences += _other_results(place / FRONT, again / FRONT) if is_search else []
    here = {"code": code_version(), **versions_behind(provenance.kind)}
    there = {"code": manifest.code, **manifest.versions}
    notes = [f"{name}: {there[name]} there, {here[name]} here" for name in here if there.get(name) != here[name]]
    mine_of = read_provenance(again).traces
    notes += [
        f"trace {name}: another file here"
        for name, digest in provenance.traces.items()
        if mine_of.get(name, digest) != digest
    ]
    if "torch" in provenance.backends:
        notes.append("real runs differ from each other")
    return Checked(n_rows, False, tuple(differences), tuple(notes))


def _sweep_again(folder: Path, output: Path, intervals: bool | None, jobs: int | None, progress: Progress) -> None:
    study = recorded_study(folder, names_in_use)
    check_points(folder, study.points)
    sweep(study, output=output, jobs=jobs, plots=False, intervals=intervals, progress=progress)


def _search_again(folder: Path, output: Path, intervals: bool | None, jobs: int | None, progress: Progress) -> None:
    """Searches again. Each point is checked just before it runs, since the search chooses it only then."""
    search = recorded_search(folder, names_in_use)
    tried, _ = run_search(
        search,
        output,
        executor_for(None, jobs),
        progress,
        intervals_of=INTERVALS[intervals],
        allow=partial(check_points, folder),
    )
    write_result(search, tried, output, plots=False)
    write_search_record(output, search, tried, intervals)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; it is not as it was packed") from None


def _other_results(theirs: Path, mine: Path) -> list[str]:
    """Returns a line for each part of what a search found that is not the same."""
    try:
        there = json.loads(_bytes(theirs))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{theirs}: is damaged: {str(error)[:200]}") from None
    if not isinstance(there, dict):
        raise InputError(f"{theirs}: is damaged: holds no object")
    here = json.loads(_bytes(mine))
    return [
        f"{mine.name}: {key}: {there.get(key)!s:.80} there, {here.get(key)!s:.80} here"
        for key in sorted({*there, *here})
        if there.get(key) != here.get(key)
    ]


def _plugin_files(folder: Path) -> list[Path]:
    return sorted((folder / "plugins").glob("*/*.py"))


def _differences(theirs: pd.DataFrame, mine: pd.DataFrame) -> list[str]:
    """Lines on rows and figures that are not the same, but for the version."""
    theirs, mine = (table.set_index("key").drop(columns="version") for table in (theirs, mine))
    lines = [f"{key[:12]}: only there" for key in theirs.index.difference(mine.index)]
    lines += [f"{key[:12]}: only here" for key in mine.index.difference(theirs.index)]
    both = theirs.index.intersection(mine.index)
    for column in dict.fromkeys([*theirs.columns, *mine.columns]):
        there, here = _cells(theirs, column, both), _cells(mine, column, both)
        lines += [
            f"{key[:12]}: {column}: {one} there, {other} here"
            for key, one, other in zip(both, there, here, strict=True)
            if one != other
        ]
    rest = len(lines) - _MOST_DIFFERENCES
    return lines[:_MOST_DIFFERENCES] + ([f"... and {rest:,} more"] if rest > 0 else [])


def _cells(table: pd.DataFrame, column: str, keys: Any) -> list[Any]:
    if column not in table:
        return [None] * len(keys)
    cells = table.loc[keys, column].astype(object)
    return list(cells.where(cells.notna(), None))

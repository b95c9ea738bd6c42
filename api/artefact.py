"""Results that last: pictures drawn again, and sweeps as archives that others rerun."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.code_version import code_version
from kvferry.analysis.dataset import read_points
from kvferry.analysis.envelope import versions
from kvferry.analysis.study_plots import Drawn
from kvferry.analysis.study_record import keys_in_order, read_provenance, recorded_study
from kvferry.analysis.style import FORMATS, Print
from kvferry.api import archive as artefact
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
    """Writes a sweep's folder as one archive: study, files that it names, plugins' text, rows, pictures and versions.
    `output`: None: NAME.kvferry.zip in this folder. Equal folders give equal bytes. Raises InputError."""
    place = Path(folder)
    file = Path(f"{place.resolve().name}{artefact.SUFFIX}") if output is None else Path(output)
    return file, artefact.pack(place, file)


@dataclass(frozen=True)
class Checked:
    """What a rerun came to: ``same``: the rows' file has the same bytes. ``differences``: lines, none where all figures
    are equal. ``notes``: what is other here than where it was packed."""

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
    """Runs the study of an unpacked folder in its rerun/, and holds the rows against the folder's. `run_plugins`: the
    code that it brings along is run. Raises InputError, KvferryError."""
    place = Path(folder)
    manifest, provenance = artefact.manifest_of(place), read_provenance(place)
    if lines := artefact.missing_files(place, manifest):
        raise InputError("\n".join(lines))
    plugins = _plugin_files(place)
    # Whatever the manifest says: what lies there is what would run.
    if plugins and not run_plugins:
        files = ", ".join(map(str, plugins))
        raise InputError(f"{place}: brings code along, which a check would run: read {files}, then add --run-plugins")
    for path in plugins:
        use(path)
    check_text(place)
    study = recorded_study(place, names_in_use)
    check_points(place, study.points)
    swept = sweep(
        study, output=place / "rerun", jobs=jobs, plots=False, intervals=provenance.intervals, progress=progress
    )
    theirs = (place / artefact.POINTS).read_bytes()
    mine = (swept.folder / "points.parquet").read_bytes()
    keys = keys_in_order(place)
    if theirs == mine:
        return Checked(len(set(keys)), True, (), ())
    differences = tuple(_differences(read_points(place), read_points(swept.folder)))
    here = {"code": code_version(), **versions()}
    there = {"code": manifest.code, **manifest.versions}
    notes = [f"{name}: {there[name]} there, {here[name]} here" for name in here if there.get(name) != here[name]]
    mine_of = read_provenance(swept.folder).traces
    notes += [
        f"trace {name}: another file here"
        for name, digest in provenance.traces.items()
        if mine_of.get(name, digest) != digest
    ]
    if "torch" in provenance.backends:
        notes.append("real runs differ from each other")
    return Checked(len(set(keys)), False, differences, tuple(notes))


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

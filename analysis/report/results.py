"""What lies in a results folder: runs, a comparison of runs, the points of a sweep, the verdicts of a reproduction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.specs.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RunResult:
    """A run's folder: the object that the run printed, its scenario as YAML, its spans and requests."""

    name: str
    found: dict[str, Any]
    scenario: str
    spans: pd.DataFrame
    requests: pd.DataFrame


@dataclass(frozen=True)
class Comparison:
    """Runs of one scenario under several systems."""

    name: str
    runs: Sequence[RunResult]


@dataclass(frozen=True)
class Points:
    """The table of a sweep or a search: a row per point."""

    name: str
    table: pd.DataFrame


@dataclass(frozen=True)
class Verdicts:
    """A paper's claims beside ours."""

    name: str
    found: dict[str, Any]


Result = RunResult | Comparison | Points | Verdicts


def results_in(folders: Sequence[Path]) -> list[Result]:
    """What lies in each folder, or one below it. Raises InputError for a folder without results, or a damaged file."""
    found: list[Result] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder; give the folder of a run, a comparison or a sweep")
        here = list(_in(folder)) or [one for below in sorted(folder.iterdir()) if below.is_dir() for one in _in(below)]
        if not here:
            what = "metrics.json, comparison.json, points.parquet or report.json"
            raise InputError(f"{folder}: holds no results (none of {what}, nor do its folders)")
        found += here
    return found


def _in(folder: Path) -> Iterator[Result]:
    name = folder.name or str(folder.resolve().name)
    if (folder / "comparison.json").is_file():
        systems = _json(folder / "comparison.json")["systems"]
        runs = [_run(folder / system) for system in systems if (folder / system / "metrics.json").is_file()]
        yield Comparison(name, runs)
    elif (folder / "metrics.json").is_file():
        yield _run(folder)
    elif (folder / "points.parquet").is_file():
        yield Points(name, _table(folder / "points.parquet"))
    elif (folder / "report.json").is_file():
        yield Verdicts(name, _json(folder / "report.json"))


def _run(folder: Path) -> RunResult:
    return RunResult(
        name=folder.name,
        found=_json(folder / "metrics.json"),
        scenario=_text(folder / "scenario.yaml"),
        spans=_table(folder / "spans.parquet"),
        requests=_table(folder / "requests.parquet"),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise InputError(f"{path}: is damaged: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: holds no object")
    return found


def _table(path: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_parquet(path)
    except Exception as error:  # pyarrow has errors of several kinds
        raise InputError(f"{path}: cannot be read: {str(error)[:200]}") from None

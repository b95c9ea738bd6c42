"""What lies in a results folder: runs, a comparison of runs, the points of a sweep, the verdicts of a reproduction,
both worlds beside each other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.figures import FIGURES, Figure
from kvferry.analysis.folder import folder_name
from kvferry.analysis.study_record import PROVENANCE, read_provenance
from kvferry.analysis.table_file import table_of
from kvferry.analysis.variants import VARIANT
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

    @property
    def system(self) -> str:
        """Its system, or the label of its variant."""
        return str(self.found.get(VARIANT, self.found["system"]))


@dataclass(frozen=True)
class Comparison:
    """Runs of one scenario under several systems; ``failed``: why others have none."""

    name: str
    runs: Sequence[RunResult]
    failed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Points:
    """The table of a sweep or a search: a row per point. ``not_measured``: devices whose profile was not."""

    name: str
    table: pd.DataFrame
    not_measured: Sequence[str] = ()


@dataclass(frozen=True)
class Verdicts:
    """A paper's claims beside ours."""

    name: str
    found: dict[str, Any]


@dataclass(frozen=True)
class BothWorlds:
    """What ``kvferry fidelity`` found: figures of real runs beside modelled ones."""

    name: str
    found: dict[str, Any]


# What the object of a run may also hold.
_BESIDE: Mapping[str, type] = {"provenance": dict, "versions": dict, "notes": list, "intervals": dict, "evidence": dict}
Result = RunResult | Comparison | Points | Verdicts | BothWorlds


def results_in(folders: Sequence[Path]) -> list[Result]:
    """What lies in each folder, or one below it. Raises InputError for a folder without results, or a damaged file."""
    found: list[Result] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder; give the folder of a run, a comparison or a sweep")
        here = list(_in(folder)) or [one for below in sorted(folder.iterdir()) if below.is_dir() for one in _in(below)]
        if not here:
            what = "metrics.json, comparison.json, points.parquet, report.json or fidelity.json"
            raise InputError(f"{folder}: holds no results (none of {what}, nor do its folders)")
        found += here
    return found


def _in(folder: Path) -> Iterator[Result]:
    name = folder.name or str(folder.resolve().name)
    if (folder / "comparison.json").is_file():
        found = _with(folder / "comparison.json", _json(folder / "comparison.json"), {"systems": dict})
        failed = _with(folder / "comparison.json", {"failed": {}, **found}, {"failed": dict})["failed"]
        folders = [folder / folder_name(system) for system in found["systems"]]
        runs = [_run(own) for own in folders if (own / "metrics.json").is_file()]
        yield Comparison(name, runs, {str(system): str(why) for system, why in failed.items()})
    elif (folder / "metrics.json").is_file():
        yield _run(folder)
    elif (folder / "points.parquet").is_file():
        yield Points(name, _table(folder / "points.parquet", ("outcome", "why", "version")), _unmeasured(folder))
    elif (folder / "report.json").is_file():
        yield Verdicts(name, _verdicts(folder / "report.json"))
    elif (folder / "fidelity.json").is_file():
        yield BothWorlds(name, _both_worlds(folder / "fidelity.json"))


def _unmeasured(folder: Path) -> list[str]:
    """Of a sweep that says it."""
    if not (folder / PROVENANCE).is_file():
        return []
    return [name for name, one in read_provenance(folder).devices.items() if not one.get("measured", True)]


def _run(folder: Path) -> RunResult:
    path = folder / "metrics.json"
    found, scenario = _json(path), _text(folder / "scenario.yaml")
    found = _with(path, found, {"scenario": str, "system": str, "outcome": str, "metrics": dict})
    found = _with(path, {key: kind() for key, kind in _BESIDE.items()} | found, _BESIDE)
    for key, value in found["metrics"].items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{path}: is damaged: metrics.{key} is {value!r:.60} and no number")
    for key, ends in found["intervals"].items():
        if not isinstance(ends, list) or len(ends) != 2 or not all(isinstance(end, int | float) for end in ends):
            raise InputError(f"{path}: is damaged: intervals.{key} is {ends!r:.60} and no pair of numbers")
    return RunResult(
        name=folder.name,
        found=found,
        scenario=scenario,
        spans=_table(folder / "spans.parquet", ("resource", "label"), ("start_s", "end_s", "n_bytes")),
        requests=_table(folder / "requests.parquet"),
    )


def _verdicts(path: Path) -> dict[str, Any]:
    found = _with(path, {"cells": [], "tables": [], **_json(path)}, {"claims": list, "cells": list, "tables": list})
    for key in ("claims", "cells", "tables"):
        for n, row in enumerate(found[key]):
            where = f"{key}.{n}"
            if not isinstance(row, dict):
                raise InputError(f"{path}: is damaged: {where} is {row!r:.60} and no object")
            if key == "claims":
                _with(path, row, {"id": str, "what": str, "verdict": str}, f"{where}.")
                _with(
                    path, row, dict.fromkeys(("paper_low", "paper_high", "ours"), (int, float, type(None))), f"{where}."
                )
    return found


def _both_worlds(path: Path) -> dict[str, Any]:
    kinds: Mapping[str, type] = {
        "study": str,
        "runs": int,
        "rows": list,
        "summary": dict,
        "remarks": list,
        "provenance": dict,
    }
    found = _with(path, {"versions": {}, **_json(path)}, {**kinds, "versions": dict})
    share, figure = (int, float, type(None)), (int, float)
    of_summary: Mapping[str, type | tuple[type, ...]] = {
        "headline": str,
        "error_median": figure,
        "error_largest": figure,
        "beyond": figure,
    }
    _with(path, found["summary"], of_summary if "error_median" in found["summary"] else {}, "summary.")
    _with(path, found["provenance"], {"device": dict}, "provenance.")
    for n, row in enumerate(found["rows"]):
        where = f"rows.{n}"
        if not isinstance(row, dict):
            raise InputError(f"{path}: is damaged: {where} is {row!r:.60} and no object")
        row.setdefault("quality", {})
        _with(path, row, {"name": str, "metrics": dict, "quality": dict}, f"{where}.")
        for part in ("metrics", "quality"):
            for key, one in row[part].items():
                at = f"{where}.{part}.{key}"
                if not isinstance(one, dict):
                    raise InputError(f"{path}: is damaged: {at} is {one!r:.60} and no object")
                _with(path, one, {"measured": figure, "simulated": share, "error": share, "spread": share}, f"{at}.")
                if part == "quality":
                    _with(path, one, {"alike": bool, "how": str}, f"{at}.")
                    _with(path, {at: FIGURES.get(key)}, {at: Figure})
    return found


def _with(
    path: Path, found: dict[str, Any], kinds: Mapping[str, type | tuple[type, ...]], where: str = ""
) -> dict[str, Any]:
    """The object itself. Raises InputError where a key is missing or has a value of another kind."""
    for key, kind in kinds.items():
        if key not in found:
            raise InputError(f"{path}: is damaged: {where}{key} is missing")
        if not isinstance(found[key], kind):
            raise InputError(f"{path}: is damaged: {where}{key} is {found[key]!r:.60}")
    return found


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


def _table(path: Path, columns: Sequence[str] = (), numbers: Sequence[str] = ()) -> pd.DataFrame:
    """Raises InputError for what cannot be read, and where one of `columns`, of text, or of `numbers` is missing."""
    try:
        table: pd.DataFrame = table_of(path, needed=columns, numbers=numbers).to_pandas()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {str(error)[:300]}") from None
    return table

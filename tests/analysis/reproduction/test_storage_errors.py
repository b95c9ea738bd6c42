"""Errors of steps that storage bounds: which cells speak, and that the kept ones are those of the papers."""

import csv
from collections import Counter
from pathlib import Path

import pytest

from kvferry.analysis.reproduction.left_out import held
from kvferry.analysis.reproduction.storage_errors import COLUMNS, STORAGE_ERRORS, storage_coverage, storage_spread


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_cells_that_storage_bounds_speak_with_all_of_the_error_laid_on_it(tmp_path: Path) -> None:
    path = tmp_path / "storage.csv"
    cells = ("nvme,d,m,a,0.8,0.2", "nvme,d,m,b,0.49,0.9", "emmc,d,m,a,1.0,-0.1", "nvme,d,n,a,0.5,0.02")
    path.write_text("\n".join([",".join(COLUMNS), *cells]))
    spread = storage_spread(path)
    assert spread.by_device == {"m": [pytest.approx(0.25), -0.1], "n": [pytest.approx(0.04)]}
    assert spread.half_width() == pytest.approx(0.25)


def test_coverage_of_a_method_is_by_intervals_of_the_others() -> None:
    """Of two others, the largest error; a does not lie in it."""
    found = storage_coverage({"a": [0.5], "b": [0.2, -0.1], "c": [0.3]})
    assert [(one["device"], one["inside"], one["rows"]) for one in found] == [("a", 0, 1), ("b", 2, 2), ("c", 1, 1)]
    rate = {"device": "d", "of": "power", "rows": 2, "inside": 1, "without_interval": 0, "median_factor": 1.0}
    said = "1 of 2 rates (50%) lie in intervals made without their device (power 1 of 2)"
    assert held([rate, *found]) == f"{said}; 3 of 4 cells bound by storage in intervals made without it"


def test_every_cell_that_reads_storage_is_kept_as_its_fit_left_it_out() -> None:
    """Another fit asks for `python fits/storage.py`."""
    papers = STORAGE_ERRORS.parents[1]
    left_out = [*rows(papers / "kvswap/left_out.csv"), *rows(papers / "dynakv/left_out.csv")]
    reading = [row for row in left_out if not row["case"].startswith("None")]
    keys = ("device", "part", "case", "log_error")
    kept = rows(STORAGE_ERRORS)
    assert Counter(tuple(row[key] for key in keys) for row in kept) == Counter(
        tuple(row[key] for key in keys) for row in reading
    )
    assert {row["part"] for row in kept} == storage_spread().by_device.keys()


def test_intervals_hold_as_many_cells_as_they_say() -> None:
    """Of methods and models that no interval has seen, each weighing the same: 80 %, give or take one in ten."""
    found = storage_coverage(storage_spread().by_device)
    assert len(found) >= 9
    assert 0.7 <= sum(one["inside"] / one["rows"] for one in found) / len(found) <= 0.9
    assert 0.7 <= sum(one["inside"] for one in found) / sum(one["rows"] for one in found) <= 0.9

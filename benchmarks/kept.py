"""The last figures of each benchmark, kept as JSON, and how new ones compare with them."""

import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.row import Row

FOLDER = Path(__file__).parent / "figures"


def machine() -> dict[str, Any]:
    """What figures depend on besides the code."""
    names = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def save(name: str, rows: Sequence[Row], remark: str, folder: Path = FOLDER) -> Path:
    """Keep the rows of a benchmark instead of its last ones."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    kept = {
        "machine": machine(),
        "load_average": round(os.getloadavg()[0], 1),
        "remark": remark,
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(kept, indent=1) + "\n")
    return path


def load(name: str, folder: Path = FOLDER) -> dict[str, Any] | None:
    """What was kept of a benchmark; None where nothing was."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def worse_by(row: Row, last: float) -> float:
    """How much worse a figure is than the last one, as a share: 1.0 is twice the time or half the rate."""
    now, then = (row.value, last) if row.better == "lower" else (last, row.value)
    if now == then:
        return 0.0
    return now / then - 1.0 if then else float("inf")


def warnings(rows: Iterable[Row], kept: dict[str, Any] | None, tolerance: float) -> Iterator[str]:
    """A line for each figure that is worse than its last one by more than the tolerance, or that is gone."""
    last = {} if kept is None else {row["name"]: row for row in kept["rows"]}
    for row in rows:
        then = last.pop(row.name, None)
        if then is not None and then["unit"] == row.unit:
            worse = worse_by(row, then["value"])
            if worse > tolerance:
                yield f"{row.name}: {row.value:.4g} {row.unit}, was {then['value']:.4g}: {worse:.0%} worse"
    yield from (f"{name}: has a figure in {FOLDER.name}/, and none now" for name in last)

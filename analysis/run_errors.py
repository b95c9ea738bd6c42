"""How far whole runs on a profile are off: by the fidelity study that lies beside a calibrated one, or by cells of a
paper that a fit of the profile left out."""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kvferry.analysis.reproduction.left_out import LEAST_DEVICES, Spread
from kvferry.analysis.reproduction.measured_rates import RATES
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError

STUDY = "fidelity.json"
PAPERS = RATES.parents[1]
# Of a study's metrics, the figures of a run that they speak of.
_SPOKEN_OF: Mapping[str, tuple[str, ...]] = {
    "ttft_s": ("ttft_s", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s"),
    "load_s": ("load_s",),
    "tpot_s": ("tpot_s", "tpot_p50_s", "tpot_p95_s", "tpot_p99_s", "block_s"),
    "throughput_tokens_per_s": ("throughput_tokens_per_s", "seconds_per_token"),
}
# Of a single part, an error says nothing of how parts differ.
_LEAST_PARTS = 2
# What the cells of papers speak of, which are rates of batches that decode.
_OF_CELLS = ("throughput_tokens_per_s", "seconds_per_token", "decode_tokens_per_s", "tpot_s", "block_s")


def run_errors(device: DeviceSpec, headline: str) -> dict[str, Spread] | None:
    """The errors of runs on this profile that are about the same metric, by the figure that they speak of; None where
    there are none, or too few. Raises InputError for a study that is none."""
    measured = device.processors[device.main].measured
    if measured is not None:
        return _of_study(Path(measured).parent / STUDY, device.name, headline)
    # Another engine is not the software that the paper's profile was fitted to.
    of_paper = headline == "throughput_tokens_per_s" and device.engine is None
    parts = _cells().get(device.name, {}) if of_paper else {}
    if len(parts) < _LEAST_PARTS:
        return None
    about = f"{sum(map(len, parts.values()))} printed cells of {len(parts)} methods or models, each left out of the fit"
    return dict.fromkeys(_OF_CELLS, Spread(parts, about))


@lru_cache(maxsize=1)
def _cells() -> dict[str, dict[str, list[float]]]:
    """By device and part of a paper's cells the errors where a fit left that part out."""
    found: dict[str, dict[str, list[float]]] = {}
    for path in sorted(PAPERS.glob("*/left_out.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if "part" in row:
                    found.setdefault(row["device"], {}).setdefault(row["part"], []).append(float(row["log_error"]))
    return found


def _of_study(path: Path, device: str, headline: str) -> dict[str, Spread] | None:
    if not path.is_file():
        return None
    report = _read(path)
    rows = [row for row in report["rows"] if row.get("headline") == headline]
    if report.get("provenance", {}).get("device", {}).get("name") != device:
        return None
    found: dict[str, Spread] = {}
    for metric, figures in _SPOKEN_OF.items():
        errors = dict(_errors(rows, metric))
        if len(errors) >= LEAST_DEVICES:
            about = f"{len(errors)} scenarios of the fidelity study {report['study']}"
            found |= dict.fromkeys(figures, Spread({name: [error] for name, error in errors.items()}, about))
    return found or None


def _errors(rows: list[dict[str, Any]], metric: str) -> Iterator[tuple[str, float]]:
    for row in rows:
        one = row["metrics"].get(metric)
        if one and one["simulated"] > 0 and one["measured"] > 0:
            yield row["name"], math.log(one["measured"] / one["simulated"])


def _read(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text())
        rows = report["rows"]
        if "study" in report and all({"name", "headline", "metrics"} <= row.keys() for row in rows):
            return dict(report)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise InputError(f"{path}: is no report of kvferry fidelity; write it again, or remove it") from None

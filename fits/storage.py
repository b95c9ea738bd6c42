"""Keep how far printed cells that storage bounds are off, with their method or model left out of the fit.

python fits/storage.py      # writes analysis/papers/devices/storage.csv

Errors are those that fits/kvswap.py and fits/dynakv.py kept (each without a method's or a model's cells); here each of
these cells is run as its profile is, and with storage that is a little slower, for the share of a step that storage
takes.
"""

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import dynakv
import kvswap

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.reproduction.storage_errors import COLUMNS, STORAGE_ERRORS
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.sim.slowed import with_slowed_storage
from kvferry.specs.scenario import Scenario

SLOWER = 1.1


def scenarios() -> Iterator[tuple[str, str, Scenario, float]]:
    """Yields part, case, scenario and error of each cell that reads storage."""
    cells = {(cell.method, f"{cell.disk} {cell.context} b{cell.batch}"): cell for cell in kvswap.cells()}
    for row in _rows(kvswap.PRINTED.joinpath("left_out.csv")):
        cell = cells[row["part"], row["case"]]
        if cell.disk != "None":
            yield row["part"], row["case"], kvswap.scenario_of(cell), float(row["log_error"])
    for row in _rows(dynakv.PRINTED.with_name("left_out.csv")):
        settings = [f"model={dynakv.MODELS[row['part']]}", f"workload.output={row['case']}"]
        yield row["part"], row["case"], load_scenario("dynakv/latency", settings), float(row["log_error"])


def share(scenario: Scenario) -> float:
    """The share of a token's time that storage takes: by how much it is longer on slower storage."""
    both = [metrics_for(one, run_scenario(one))["tpot_s"] for one in (scenario, with_slowed_storage(scenario, SLOWER))]
    return math.log(both[1] / both[0]) / math.log(SLOWER)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    with STORAGE_ERRORS.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for part, case, scenario, log_error in scenarios():
            assert scenario.device.storage is not None
            found = f"{share(scenario):.3f}", f"{log_error:.4f}"
            rows.writerow((scenario.device.storage.name, scenario.device.name, part, case, *found))


if __name__ == "__main__":
    main()

"""Fit the OnePlus 12's profile on the ten cells of DynaKV's Tab. 6, and cross-validate.

python fits/dynakv.py grid tmp/grid.csv      # simulate every cell with every combination of numbers, LEVELS
python fits/dynakv.py fit tmp/grid.csv       # between them: the numbers that fit best, and every cell
python fits/dynakv.py leave-out tmp/grid.csv # the same without some lengths or a model, errors on those left out
python fits/dynakv.py slopes tmp/slopes.csv  # simulate every cell as the profile is, and with each number a step away
python fits/dynakv.py each-out tmp/slopes.csv # the fit without each cell and each model, by these slopes; by model it
                                             # is kept in analysis/papers/dynakv/left_out.csv

Free are numbers of the hardware, see LEVELS, and none of a system or workload. Clusters change alike whatever the
hardware, so that a cell's latency is a smooth function of few numbers: its logarithm is interpolated, by parabolas in
their logarithms.
"""

import argparse
import csv
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from joblib import Parallel, delayed
from rounds import write_left_out

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

Numbers = tuple[float, ...]
PRINTED = Path(__file__).resolve().parents[1] / "analysis/papers/dynakv/latency.csv"
MODELS = {"Qwen2.5-1.5B": "qwen2.5-1.5b", "Llama3.2-3B": "llama-3.2-3b"}
# Keys of the scenario, and the values between which is interpolated.
LEVELS: dict[str, tuple[float, ...]] = {
    "device.processors.cpu.efficiency.gemv": (0.22, 0.3, 0.42),
    "device.storage.queue.host_s": (1e-6, 5e-6, 25e-6),
    "device.storage.queue.host_bytes_per_s": (100e6, 140e6, 240e6),
}
UNITS = {"device.storage.queue.host_s": "s", "device.storage.queue.host_bytes_per_s": "B/s"}
# What they are in the profile, and one step away: a tenth of the runs of the grid.
PROFILE: Numbers = (0.32, 5e-6, 140e6)
STEPS: Numbers = (0.4, 10e-6, 180e6)
# Points of the search along each number, and half of a printed digit, in s.
FINENESS = 61
HALF_DIGIT_S = 0.05e-3


@dataclass(frozen=True)
class Cell:
    model: str
    length: int
    printed_s: float


def cells() -> list[Cell]:
    with PRINTED.open() as file:
        return [
            Cell(row["model"], int(row["decode_length"]), float(row["latency_ms"]) / 1e3)
            for row in csv.DictReader(file)
        ]


def simulated_s(cell: Cell, numbers: Numbers, settings: Sequence[str]) -> float:
    given = [f"model={MODELS[cell.model]}", f"workload.output={cell.length}", *settings]
    given += [f"{key}={value:.6g} {UNITS.get(key, '')}" for key, value in zip(LEVELS, numbers, strict=True)]
    scenario = load_scenario("dynakv/latency", given)
    return metrics_for(scenario, run_scenario(scenario))["tpot_s"]


def parabolas(levels: Sequence[float], at: np.ndarray) -> np.ndarray:
    """Weights [at, levels] of what is known at the levels, in the logarithm (Lagrange)."""
    known, wanted = np.log(levels), np.log(at)
    weights = np.ones((len(wanted), len(known)))
    for one, other in itertools.permutations(range(len(known)), 2):
        weights[:, one] *= (wanted - known[other]) / (known[one] - known[other])
    return weights


def surfaces(known_s: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Seconds of every cell, known at [cells, *levels], at all points of the search [cells, points], and what these are
    made of, number by number."""
    points = [np.geomspace(min(levels), max(levels), FINENESS) for levels in LEVELS.values()]
    found = np.log(known_s)
    for axis, (levels, at) in enumerate(zip(LEVELS.values(), points, strict=True), start=1):
        found = np.moveaxis(np.tensordot(found, parabolas(levels, at), (axis, 1)), -1, axis)
    return np.exp(found).reshape(len(found), -1), points


def errors(printed_s: np.ndarray, ours_s: np.ndarray) -> np.ndarray:
    """Distance to the interval that the printed digits allow, over its nearer end; cells come first."""
    printed_s = printed_s.reshape(-1, *(1,) * (ours_s.ndim - 1))
    low, high = printed_s - HALF_DIGIT_S, printed_s + HALF_DIGIT_S
    return np.where(ours_s < low, ours_s / low - 1, np.where(ours_s > high, ours_s / high - 1, 0.0))


def best(printed_s: np.ndarray, at_s: np.ndarray) -> int:
    """The point [cells, points] where the summed sizes of the errors are least: cells which nothing here explains pull
    little."""
    return int(abs(errors(printed_s, at_s)).sum(axis=0).argmin())


def numbers_at(points: Sequence[np.ndarray], place: int) -> list[float]:
    indices = np.unravel_index(place, [len(values) for values in points])
    return [float(values[n]) for values, n in zip(points, indices, strict=True)]


def tell(what: str, found: np.ndarray) -> None:
    sizes = abs(found)
    print(f"{what}: median {np.median(sizes):.1%}, p90 {np.quantile(sizes, 0.9):.1%}, most {sizes.max():.1%}")


def fit(everything: Sequence[Cell], known_s: np.ndarray) -> None:
    printed_s = np.array([cell.printed_s for cell in everything])
    at_s, points = surfaces(known_s)
    place = best(printed_s, at_s)
    for key, values, value in zip(LEVELS, points, numbers_at(points, place), strict=True):
        edge = " (at an end of the search)" if value in (values[0], values[-1]) else ""
        print(f"{key} {value:.4g}{edge}")
    ours_s = at_s[:, place]
    found = errors(printed_s, ours_s)
    for cell, seconds, error in zip(everything, ours_s, found, strict=True):
        print(f"{cell.model:14s} {cell.length:6d} {1e3 * cell.printed_s:8.1f} {1e3 * seconds:8.1f} {error:+.1%}")
    tell("all", found)


def leave_out(everything: Sequence[Cell], known_s: np.ndarray) -> None:
    printed_s = np.array([cell.printed_s for cell in everything])
    at_s, points = surfaces(known_s)
    for what, left_out in LEFT_OUT.items():
        out = np.array([left_out(cell) for cell in everything])
        place = best(printed_s[~out], at_s[~out])
        numbers = ", ".join(f"{value:.3g}" for value in numbers_at(points, place))
        found = errors(printed_s, at_s[:, place])
        tell(f"without {what} ({numbers}), there", found[out])
        tell("  elsewhere", found[~out])


def of_length(length: int) -> Callable[[Cell], bool]:
    return lambda cell: cell.length == length


def of_model(model: str) -> Callable[[Cell], bool]:
    return lambda cell: cell.model == model


LEFT_OUT: dict[str, Callable[[Cell], bool]] = {
    **{f"{k}K": of_length(1024 * k) for k in (1, 2, 4, 8, 16)},
    **{model: of_model(model) for model in MODELS},
    "up to 4K": lambda cell: cell.length <= 4096,
    "beyond 4K": lambda cell: cell.length > 4096,
}


def write_grid(path: Path, settings: Sequence[str], workers: int) -> None:
    combinations = list(itertools.product(*LEVELS.values()))
    asked = [(cell, numbers) for cell in cells() for numbers in combinations]
    found = Parallel(n_jobs=workers)(delayed(simulated_s)(cell, numbers, settings) for cell, numbers in asked)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["model", "length", *LEVELS, "seconds"])
        for (cell, numbers), seconds in zip(asked, found, strict=True):
            rows.writerow([cell.model, cell.length, *numbers, seconds])


def read_grid(path: Path) -> np.ndarray:
    """Seconds [cells, *levels]."""
    with path.open() as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
    return np.array(seconds).reshape(len(cells()), *(len(levels) for levels in LEVELS.values()))


def write_slopes(path: Path, settings: Sequence[str], workers: int) -> None:
    """Keeps the seconds of each cell as they are found."""
    points = [PROFILE, *((*PROFILE[:n], step, *PROFILE[n + 1 :]) for n, step in enumerate(STEPS))]
    asked = [(cell, numbers) for cell in sorted(cells(), key=lambda cell: cell.length) for numbers in points]
    found = Parallel(n_jobs=workers, return_as="generator")(
        delayed(simulated_s)(cell, numbers, settings) for cell, numbers in asked
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", buffering=1) as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["model", "length", *LEVELS, "seconds"])
        for (cell, numbers), seconds in zip(asked, found, strict=True):
            rows.writerow([cell.model, cell.length, *numbers, seconds])


def each_out(everything: Sequence[Cell], path: Path) -> None:
    """Fits without each cell, and without each model, by slopes: the logarithm of a cell's seconds is taken for linear
    in those of the numbers, of which none moves further than to a half or the double."""
    with path.open() as file:
        seconds = {
            (row["model"], int(row["length"]), *(float(row[key]) for key in LEVELS)): float(row["seconds"])
            for row in csv.DictReader(file)
        }
    everything = [cell for cell in everything if any((cell.model, cell.length) == known[:2] for known in seconds)]
    steps = np.log(np.array(STEPS) / np.array(PROFILE))
    moved = [(*PROFILE[:n], step, *PROFILE[n + 1 :]) for n, step in enumerate(STEPS)]
    log_s = np.log([seconds[cell.model, cell.length, *PROFILE] for cell in everything])
    slopes = np.array([np.log([seconds[cell.model, cell.length, *one] for one in moved]) for cell in everything])
    slopes = (slopes - log_s[:, None]) / steps
    printed_s = np.array([cell.printed_s for cell in everything])
    axes = [np.linspace(-np.log(2), np.log(2), 41)] * len(steps)
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")])
    at_s = np.exp(log_s[:, None] + slopes @ points)
    kept: list[tuple[str, str, float]] = []
    single = {f"{cell.model} {cell.length}": (lambda one, cell=cell: one == cell) for cell in everything}
    for what, left_out in {"nothing": lambda one: False, **single, **{m: of_model(m) for m in MODELS}}.items():
        out = np.array([left_out(cell) for cell in everything])
        place = best(printed_s[~out], at_s[~out])
        numbers = ", ".join(f"{value:.3g}" for value in np.array(PROFILE) * np.exp(points[:, place]))
        found = errors(printed_s, at_s[:, place])
        there = ", ".join(f"{error:+.1%}" for error in found[out])
        tell(f"without {what} ({numbers}), there {there or 'nothing'}; elsewhere", found[~out])
        if what in MODELS:
            pairs = zip(everything, found, strict=True)
            kept += [(what, str(cell.length), -np.log1p(error)) for cell, error in pairs if cell.model == what]
    write_left_out(PRINTED.with_name("left_out.csv"), load_scenario("dynakv/latency").device.name, kept)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("grid", "fit", "leave-out", "slopes", "each-out"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="settings", help="of the scenario, as kvferry's")
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    if chosen.what == "grid":
        write_grid(chosen.file, chosen.settings, chosen.workers)
    elif chosen.what == "slopes":
        write_slopes(chosen.file, chosen.settings, chosen.workers)
    elif chosen.what == "each-out":
        each_out(cells(), chosen.file)
    else:
        (fit if chosen.what == "fit" else leave_out)(cells(), read_grid(chosen.file))


if __name__ == "__main__":
    main()

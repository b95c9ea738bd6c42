"""Errors of rates on devices that were left out of the fit of their engine, and what they say of a device without
measurements."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import ValidationError

from kvferry.analysis.reproduction.measured_rates import RATES, Measured
from kvferry.specs.base import Spec
from kvferry.specs.errors import InputError

LEFT_OUT = RATES.with_name("left_out.csv")
# The share of figures that an interval is to hold.
LEVEL = 0.8
# With fewer devices, even the largest error covers less than that share of a further device's rates: the interval is
# then as wide as the largest error, and says so.
LEAST_DEVICES = 4

# What a rate is bound by; prefill and the power of decoding stand by themselves.
By = Literal["reading", "arithmetic", "fixed costs", "prefill", "power"]
Task = Literal["decoding", "prefill", "power"]


class LeftOutRate(Spec):
    """A measured rate beside ours, by numbers of the engine that were fitted without the device. ``bound_by``: by the
    numbers that all rows gave, ``predicted_by``: by those without the device. ``also_without``: a second device that
    was left out; where that changes nothing, there is no such row. ``log_error``: logarithm of the measured time over
    ours; None: without both, no row was left to fit on."""

    metric: Measured | Literal["power"]
    case: str
    device: str
    engine: str
    kind: Literal["gpu", "cpu", "npu"]
    bound_by: By
    predicted_by: By
    also_without: str = ""
    log_error: float | None

    @property
    def row(self) -> tuple[str, str]:
        return self.metric, self.case


COLUMNS = tuple(LeftOutRate.model_fields)


def read_left_out(path: Path = LEFT_OUT) -> tuple[LeftOutRate, ...]:
    """All rows of a file, which ``fits/left_out.py`` writes. Raises InputError, with file and line, for one that is
    none."""
    found = []
    with path.open(newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                found.append(LeftOutRate.model_validate({**row, "log_error": row["log_error"] or None}))
            except (ValidationError, KeyError) as error:
                raise InputError(f"{path.name}:{line}: no rate of a device that was left out: {error}") from None
    return tuple(found)


@lru_cache(maxsize=1)
def left_out() -> tuple[LeftOutRate, ...]:
    return read_left_out()


@dataclass(frozen=True)
class Spread:
    """Sizes of logarithmic errors, by what they were measured on; each device weighs the same, whatever number of rows
    it has. ``about``: which rows these are."""

    by_device: Mapping[str, Sequence[float]]
    about: str

    @property
    def rows(self) -> int:
        return sum(map(len, self.by_device.values()))

    @property
    def level(self) -> float:
        """What an interval holds: ``LEVEL``, or what the largest error of too few devices does, n of n + 1."""
        devices = len(self.by_device)
        return LEVEL if devices >= LEAST_DEVICES else devices / (devices + 1)

    @property
    def told(self) -> dict[str, Any]:
        """For results, what it is made from, and what its interval holds where that is less than usual."""
        less = {} if self.level == LEVEL else {"level": self.level}
        return {"of": self.about, "devices": len(self.by_device), "rows": self.rows, "factor": self.factor, **less}

    @property
    def factor(self) -> float:
        """From the middle of an interval to its ends."""
        return float(np.exp(self.half_width()))

    def half_width(self, level: float = LEVEL) -> float:
        """The size below which an error of a further device lies with this chance: of n devices with a row each, the
        k-th size has the chance k / (n + 1)."""
        sizes = np.concatenate([np.abs(errors) for errors in self.by_device.values()])
        weights = np.concatenate([np.full(len(errors), 1 / len(errors)) for errors in self.by_device.values()])
        order, devices = np.argsort(sizes, kind="stable"), len(self.by_device)
        sizes, weights = sizes[order], weights[order]
        chances = (np.cumsum(weights) - weights / 2 + 0.5) / (devices + 1)
        if devices < LEAST_DEVICES:
            chances = np.minimum(chances, self.level)
        # No error at all has no chance.
        return float(np.interp(level, [0.0, *chances], [0.0, *sizes]))


def spread_of(rates: Iterable[tuple[LeftOutRate, float]], engine: str, kind: str, bound_by: By) -> Spread | None:
    """Returns the errors that speak of an engine on a kind of processor, where a step is bound by this: its own, those
    of any engine on the kind, those on any kind, or all of its task: the first of them that are of enough devices; the
    last ones where none are. None: there are none at all. `rates`: rows of one left-out device each, with their
    errors."""
    task = task_of(bound_by)
    of_task = [(rate, error) for rate, error in rates if task_of(rate.bound_by) == task]
    what = f"decoding bound by {bound_by}" if task == "decoding" else task
    choices: list[tuple[str, Callable[[LeftOutRate], bool]]] = [
        (f"{what}, {engine} on a {kind}", lambda r: (r.engine, r.kind, r.bound_by) == (engine, kind, bound_by)),
        (f"{what}, any engine on a {kind}", lambda r: (r.kind, r.bound_by) == (kind, bound_by)),
        (f"{what}, any engine", lambda r: r.bound_by == bound_by),
        ("power while decoding" if task == "power" else f"{task}, any engine", lambda r: True),
    ]
    found = None
    for about, fits in choices:
        by_device: dict[str, list[float]] = {}
        for rate, error in of_task:
            if fits(rate):
                by_device.setdefault(rate.device, []).append(error)
        found = Spread(by_device, about) if by_device else None
        if len(by_device) >= LEAST_DEVICES:
            break
    return found


def task_of(bound_by: By) -> Task:
    """Returns of what a rate is whose errors speak of each other."""
    return bound_by if bound_by in ("prefill", "power") else "decoding"


def known_spread(engine: str, kind: str, bound_by: By) -> Spread | None:
    """What all devices that were left out say of one that has no rows."""
    return spread_of(_without(left_out(), ""), engine, kind, bound_by)


def _without(rates: Iterable[LeftOutRate], device: str) -> list[tuple[LeftOutRate, float]]:
    """The rows of other devices, with their errors by numbers that were fitted without this one as well."""
    found: dict[tuple[str, str], LeftOutRate] = {}
    for rate in rates:
        if rate.device != device and rate.also_without in ("", device):
            # A row without both stands behind the one without its own device.
            found[rate.row] = rate
    return [(rate, rate.log_error) for rate in found.values() if rate.log_error is not None]


def coverage(rates: Sequence[LeftOutRate]) -> list[dict[str, Any]]:
    """For each device and task: rows, how many of them lie in intervals that are made without it, how many have none,
    and the median of the factor from the middle of an interval to its end."""
    found = []
    for device, task in dict.fromkeys((rate.device, task_of(rate.bound_by)) for rate in rates):
        others, inside, factors, rows = _without(rates, device), 0, [], 0
        for rate in rates:
            of_this = (rate.device, task_of(rate.bound_by)) == (device, task)
            if not of_this or rate.also_without or rate.log_error is None:
                continue
            rows += 1
            spread = spread_of(others, rate.engine, rate.kind, rate.predicted_by)
            if spread is not None:
                inside += abs(rate.log_error) <= spread.half_width()
                factors.append(spread.factor)
        found.append(
            {
                "device": device,
                "of": task,
                "rows": rows,
                "inside": int(inside),
                "without_interval": rows - len(factors),
                "median_factor": float(np.median(factors)) if factors else None,
            }
        )
    return found


# The headings of ``left_out_rows``.
HEADINGS = ("left out of the fit", "of", "rates", "in the interval", "without one", "factor to its ends")


def left_out_rows(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """Yields what ``coverage`` found, as text: a row per device."""
    for one in found:
        counts = (str(one[key]) for key in ("rows", "inside", "without_interval"))
        yield one["device"], one["of"], *counts, f"{one['median_factor']:.2f}" if one["median_factor"] else "-"


def held(found: Sequence[Mapping[str, Any]]) -> str:
    """For users, what share of the rates lies in intervals, in all and by what they are of; and what of papers' cells
    that storage bounds does, where there are any."""
    counts = {task: _counts([one for one in found if one["of"] == task]) for task in (*get_args(Task), "storage")}
    cells, of_cells, _ = counts.pop("storage")
    inside, told, without = (sum(numbers) for numbers in zip(*counts.values(), strict=True))
    lacking = f"; {without} have none" if without else ""
    parts = ", ".join(f"{task} {n} of {of}" for task, (n, of, _) in counts.items() if of)
    share = f"{inside} of {told} rates ({inside / told:.0%})"
    bound = f"; {cells} of {of_cells} cells bound by storage in intervals made without it" if of_cells else ""
    return f"{share} lie in intervals made without their device ({parts}){lacking}{bound}"


def _counts(found: Sequence[Mapping[str, Any]]) -> tuple[int, int, int]:
    """How many rates lie in intervals, have one, and have none."""
    inside, rows, without = (sum(one[key] for one in found) for key in ("inside", "rows", "without_interval"))
    return inside, rows - without, without

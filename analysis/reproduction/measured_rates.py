"""Rates that people measured on devices of their own: each row of a file is a case of an experiment, and its cell."""

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from kvferry.specs.base import Spec
from kvferry.specs.errors import InputError
from kvferry.specs.findings import rule_of
from kvferry.specs.units import Count

RATES = Path(__file__).resolve().parents[1] / "papers" / "devices" / "rates.csv"
Measured = Literal["decode", "prefill", "first_token"]
POWER = RATES.with_name("power.csv")
Row = TypeVar("Row", bound=Spec)


class MeasuredRate(Spec):
    """One row. `context_tokens`: of the prompt, or in the mean of those decoded; `value`: tokens/s as it was published,
    of a first token seconds; `fitted`: what was fitted to it."""

    device: str
    engine: str
    model: str
    weights: str
    metric: Measured
    context_tokens: Count = Field(ge=1)
    value: str = Field(pattern=r"^\d+(\.\d+)?$")
    fitted: str = ""
    source: str

    @property
    def per_s(self) -> float:
        return float(self.value)

    @property
    def case(self) -> str:
        return f"{self.device} {self.engine} {self.model} {self.weights} {self.context_tokens}"

    def settings(self) -> dict[str, Any]:
        """What the row says, as settings of the scenario ``decode``."""
        return {
            "device": self.device,
            "engine": self.engine,
            "model": self.model,
            "precision": {"weights": self.weights},
            "workload.context": self.context_tokens,
            "workload.output": 8 if self.metric == "decode" else 1,
        }

    def overrides(self) -> list[str]:
        """The same, as ``load_scenario`` takes them."""
        return [f"{key}={json.dumps(value)}" for key, value in self.settings().items()]

    def cell(self, experiment: str, case: str, system: str) -> dict[str, Any]:
        """The row as a printed cell: tokens/s, or seconds to the first token."""
        metric, printed = "throughput_tokens_per_s", self.value
        if self.metric != "decode":
            metric = "ttft_s"
            printed = self.value if self.metric == "first_token" else f"{self.context_tokens / self.per_s:.4f}"
        key = {"experiment": experiment, "case": case, "system": system}
        return {**key, "metric": metric, "printed": printed, "fitted": self.fitted}


class MeasuredPower(Spec):
    """What was drawn while one request was decoded. ``of``: what drew it; ``note``: where and how."""

    device: str
    engine: str
    model: str
    weights: str
    context_tokens: Count = Field(ge=1)
    of: Literal["device", "processor"]
    watts: float = Field(gt=0)
    note: str = ""
    source: str

    @property
    def case(self) -> str:
        return f"{self.device} {self.engine} {self.model} {self.weights}"

    def overrides(self, decoded: int) -> list[str]:
        """What the row says, as ``load_scenario`` takes it for the scenario ``decode``."""
        settings = {"device": self.device, "engine": self.engine, "model": self.model}
        settings |= {"precision.weights": self.weights, "workload.context": str(self.context_tokens)}
        return [f"{key}={value}" for key, value in {**settings, "workload.output": str(decoded)}.items()]


def measured_powers(path: Path = POWER) -> tuple[MeasuredPower, ...]:
    """All rows of a file of powers. Raises InputError, with file and line, for one that is none."""
    return _read(path, MeasuredPower)


def measured_rates(path: Path = RATES) -> tuple[MeasuredRate, ...]:
    """All rows of a file. Raises InputError, with file and line, for one that is none."""
    return _read(path, MeasuredRate)


def _read(path: Path, kind: type[Row]) -> tuple[Row, ...]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for line, row in enumerate(rows, start=2):
        try:
            found.append(kind.model_validate(row))
        except ValidationError as error:
            first = error.errors()[0]
            where, came = ".".join(map(str, first["loc"])), f"{first['input']!r:.60}"
            raise InputError(f"{path.name}:{line}: {where}: {rule_of(first)}; what came is {came}") from None
    return tuple(found)


def named_by_case(rates: Iterable[MeasuredRate]) -> dict[str, MeasuredRate]:
    """The rows by name; a rate that was measured several times has a number behind it."""
    named: dict[str, MeasuredRate] = {}
    for rate in rates:
        case, n = rate.case, 1
        while case in named:
            case, n = f"{rate.case} ({n + 1})", n + 1
        named[case] = rate
    return named

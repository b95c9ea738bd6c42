"""The keys of a search's file; its values are checked by the scenario that they go into."""

import math
import operator
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from kvferry.analysis.condition import number_or_text
from kvferry.analysis.figures import FIGURES
from kvferry.analysis.study_spec import Axes, Base, Seeds
from kvferry.scenarios.number_range import MOST_POINTS
from kvferry.specs.amount import amount_of
from kvferry.specs.base import BadKey, Spec

_CONSTRAINT = re.compile(r"\s*([a-z][A-Za-z0-9_]*)\s*(<=|>=)\s*(.+?)\s*")
# What the end of a metric's name says of its unit.
_KIND_OF_ENDING = {"_bytes_per_s": "rate", "_bytes": "size", "_j": "energy", "_hz": "frequency", "_s": "time"}
# Settings that are paid for: how many machines, how much memory.
_COSTLY = re.compile(r"^machines\.\w+\.count$|\.memory(\.capacity)?$|^budget\.kv$")
_RATE_ENDING = re.compile(r"(?<!bytes)_per_s$")


class ObjectiveSpec(Spec):
    """Names a metric, and which way is better: for most metrics that is known. It may name a setting of the space
    instead, if that is a number: how many machines, how much memory."""

    metric: str
    better: Literal["low", "high"] | None = None

    @property
    def lower(self) -> bool:
        """Whether less of it is better. Raises BadKey for a metric whose better side is not known."""
        known = FIGURES[self.metric].better if self.metric in FIGURES else None
        better = self.better or known or ("low" if _COSTLY.search(self.metric) else None)
        if better is None:
            either = f"write {{metric: {self.metric}, better: low}}, or high"
            raise BadKey("better", f"is missing: neither is better as such; {either}")
        return better == "low"


@dataclass(frozen=True)
class Constraint:
    """A bound on a metric. `text` as the file has it."""

    text: str
    metric: str
    at_most: bool
    bound: float

    def excess(self, value: float) -> float:
        """How far a value is beyond the bound, as a share of it: above 0 where it is."""
        sign = operator.sub(value, self.bound) if self.at_most else operator.sub(self.bound, value)
        return sign / abs(self.bound) if self.bound else sign


def constraint_of(text: str) -> Constraint:
    """The constraint of a text such as "ttft_s <= 4 s" or "memory_peak_bytes <= 6 GiB"; a plain number is in the
    metric's own unit. Raises ValueError."""
    match = _CONSTRAINT.fullmatch(text)
    amount = amount_of(number_or_text(match[3])) if match else None
    if match is None or amount is None or not math.isfinite(amount.number):
        raise ValueError(f"{text!r:.100} is no constraint; write it like 'ttft_s <= 4 s'")
    wanted = kind_of(match[1])
    if amount.unit and amount.kind != wanted:
        unit = f"a {wanted}" if wanted else "a plain number"
        raise ValueError(f"{match[1]} is {unit}, and {match[3]!r:.40} a {amount.kind}")
    return Constraint(text, match[1], match[2] == "<=", float(amount.number))


def kind_of(column: str) -> str | None:
    """Returns the kind of unit that a metric or a column of settings is in, by its name; None: a plain number."""
    if _RATE_ENDING.search(column):  # tokens_per_s, say
        return None
    return next((kind for ending, kind in _KIND_OF_ENDING.items() if column.endswith(ending)), None)


_NAMED_ALONE = BeforeValidator(lambda value: {"metric": value} if isinstance(value, str) else value)


class SearchSpec(Spec):
    """The shape of a search."""

    # None: the file's.
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+ -]{0,99}$")
    base: Base
    # By key a list of values to choose from, or a range.
    space: Annotated[Axes, Field(min_length=1)]
    objectives: Annotated[tuple[Annotated[ObjectiveSpec, _NAMED_ALONE], ...], Field(min_length=1, max_length=4)]
    # Bounds on metrics; those on settings stand under `where`.
    constraints: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    # How many are tried. Each is run with every seed, and judged by its medians.
    points: int = Field(default=100, ge=1, le=MOST_POINTS)
    seeds: Seeds | None = None
    # This many are chosen before the first of them is run: as many workers can be busy. Which ones are chosen depends
    # on it, and never on the number of workers.
    at_once: int = Field(default=8, ge=1, le=1000)
    sampler: Literal["tpe", "nsga2", "random"] = "tpe"
    # Of the sampler's own chance.
    seed: int = Field(default=0, ge=0, lt=2**32)
    # A folder below the current one; None: runs/NAME.
    output: str | None = Field(default=None, min_length=1)

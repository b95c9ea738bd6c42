"""The values between two ends: evenly or on a logarithmic scale, this many of them, a step apart, or at a share."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pydantic import Field, ValidationError

from kvferry.scenarios.faults import complaints_of
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.amount import WHOLE, Amount, amount_of
from kvferry.specs.base import Spec
from kvferry.specs.node import Node
from kvferry.specs.units import KINDS

# A point takes some tenths of a second: this limit catches a mistyped axis before it becomes a year of computing.
MOST_POINTS = 50_000
# Enough for every setting, and few enough that every computer comes to the same digits.
_DIGITS = 12


class RangeSpec(Spec):
    """The keys of a range in a study's file."""

    first: Any = Field(alias="from")
    last: Any = Field(alias="to")
    step: Any = None
    points: int | None = Field(default=None, ge=2, le=MOST_POINTS)
    log: bool = False


class RangeFault(ValueError):
    """Raised for a range that is none; `complaints` have keys below the range's own."""

    def __init__(self, *complaints: Complaint) -> None:
        super().__init__("; ".join(complaint.what for complaint in complaints))
        self.complaints = complaints


@dataclass(frozen=True)
class NumberRange:
    """Numbers from `first` to `last`, both included, in `unit` as the file writes it.

    Two whole numbers make a range of whole numbers; for others one end is written as in 1.0.
    """

    first: Fraction
    last: Fraction
    unit: str
    whole: bool
    log: bool
    step: Fraction | None = None
    points: int | None = None

    @classmethod
    def of(cls, node: Node) -> "NumberRange":
        """The range of a mapping from, to, log, and points or step. Raises RangeFault."""
        try:
            spec = RangeSpec.model_validate(node.plain())
        except ValidationError as error:
            raise RangeFault(*complaints_of(error, RangeSpec)) from None
        given = {"from": spec.first, "to": spec.last} | ({} if spec.step is None else {"step": spec.step})
        amounts: dict[str, Amount] = {}
        for key, value in given.items():
            amount = amount_of(value)
            if amount is None:
                raise RangeFault(Complaint((key,), f"{value!r:.60} is no number; write it like 4, 32Ki or '4 ms'"))
            if amounts and not amount.is_like(amounts["from"]):
                what = f"{value!r:.60} is a {amount.kind}, and {spec.first!r:.60} a {amounts['from'].kind}"
                raise RangeFault(Complaint((key,), what))
            amounts[key] = amount
        numbers, unit = _in_one_unit(amounts)
        whole = all(amount.kind == WHOLE for amount in amounts.values())
        if numbers["from"] >= numbers["to"]:
            raise RangeFault(Complaint(("to",), f"{spec.last!r:.60} is not above {spec.first!r:.60}"))
        if spec.log and numbers["from"] <= 0:
            raise RangeFault(Complaint(("from",), f"{spec.first!r:.60} is not above 0, as a logarithmic scale needs"))
        if spec.step is not None:
            if spec.log or spec.points is not None:
                raise RangeFault(Complaint(("step",), "goes neither with points nor with log; keep one of them"))
            if numbers["step"] <= 0:
                raise RangeFault(Complaint(("step",), f"{spec.step!r:.60} is not above 0"))
        return cls(numbers["from"], numbers["to"], unit, whole, spec.log, numbers.get("step"), spec.points)

    def values(self) -> list[Any]:
        """All its values, as a file would write them, without repetitions. Raises RangeFault if it does not say how
        many, or has too many."""
        if self.step is not None:
            n = int((self.last - self.first) / self.step) + 1
            if n > MOST_POINTS:
                raise RangeFault(Complaint(("step",), f"makes {n:,} values, at most {MOST_POINTS:,} will do"))
            return [self._written(self.first + k * self.step) for k in range(n)]
        if self.points is None:
            raise RangeFault(Complaint(("points",), "is missing, or step: how many values, or how far apart"))
        shares = (Fraction(k, self.points - 1) for k in range(self.points))
        return list(dict.fromkeys(self._written(self._between(share)) for share in shares))

    def at(self, share: float) -> Any:
        """The value at a share from 0 to below 1 of the range: of whole numbers, each has an equal part of it."""
        if not self.whole:
            return self._written(self._between(Fraction(share)))
        wider = NumberRange(self.first, self.last + 1, "", False, self.log)
        return min(math.floor(wider._between(Fraction(share))), int(self.last))

    @property
    def size(self) -> int | None:
        """Returns how many whole numbers it has; None: numbers between them count, too."""
        return int(self.last) - int(self.first) + 1 if self.whole else None

    def shares(self) -> list[float]:
        """Returns a share for ``at`` for each of its whole numbers, of which there are not too many."""
        assert self.size is not None and self.size <= MOST_POINTS
        if not self.log:
            return [(k + 0.5) / self.size for k in range(self.size)]
        low, high = math.log(self.first), math.log(self.last + 1)
        return [(math.log(int(self.first) + k + 0.5) - low) / (high - low) for k in range(self.size)]

    def _between(self, share: Fraction) -> Fraction:
        if not self.log or share in (0, 1):
            return self.first + share * (self.last - self.first)
        low, high = math.log(self.first), math.log(self.last)
        # A logarithm's rounding leads out of the range near its ends.
        return min(max(Fraction(math.exp(low + float(share) * (high - low))), self.first), self.last)

    def _written(self, number: Fraction) -> Any:
        if self.whole:
            return round(number)
        digits = f"{float(number):.{_DIGITS}g}"
        return f"{digits} {self.unit}" if self.unit else float(digits)


def _in_one_unit(amounts: dict[str, Amount]) -> tuple[dict[str, Fraction], str]:
    """The numbers as they are written where all have the same unit, in SI units otherwise; and the unit."""
    units = {amount.unit for amount in amounts.values()}
    if len(units) == 1:
        return {key: Fraction(amount.written) for key, amount in amounts.items()}, units.pop()
    kind = amounts["from"].kind
    return {key: Fraction(amount.number) for key, amount in amounts.items()}, KINDS[kind].unit

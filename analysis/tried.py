"""A point that a search tried."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvferry.analysis.repeats import Range
from kvferry.scenarios.idle import Key
from kvferry.specs.scenario import Scenario


@dataclass
class Tried:
    """A point that was tried: what was chosen, the scenarios that it makes by key, and what came of them.

    `figures` are medians over the seeds of the metrics that objectives and constraints name, `intervals` those of the
    ends of their intervals, where points have these; `why` says what keeps the point from being a solution. `idle`:
    policies that were chosen or set and that its `system` does not have; `heard`: the other ones.
    """

    number: int
    settings: dict[str, Any]
    scenarios: dict[str, Scenario] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, Range] = field(default_factory=dict)
    why: str | None = None
    is_valid: bool = True
    system: str = ""
    idle: Mapping[Key, str] = field(default_factory=dict)
    heard: Collection[Key] = ()

    @property
    def what(self) -> tuple[Any, ...]:
        """Returns what tells it from other points: its scenarios, as two descriptions may bear one name; where it makes
        none, settings that have an effect."""
        return tuple(self.scenarios) or (self.system, *sorted((key, repr(one)) for key, one in self.settings.items()))

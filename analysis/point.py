"""One point of a sweep: as plain data on its way to where it runs, and as a row on its way back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from kvferry.analysis.code_version import code_version
from kvferry.analysis.dataset import MEASURED
from kvferry.analysis.interval_columns import IntervalsOf, columns_of
from kvferry.analysis.journal import Row
from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.settings import settings_of
from kvferry.analysis.variants import VARIANT
from kvferry.pipelines.plugins import Plugin, take_up
from kvferry.pipelines.record import Run
from kvferry.scenarios.loader import dump_scenario, dumped_scenario, scenario_hash
from kvferry.specs.errors import KvferryError
from kvferry.specs.scenario import Scenario

_MOST_WORDS = 1000


@dataclass(frozen=True, slots=True)
class Point:
    """A scenario as it travels: the key of its row, and the resolved scenario as JSON. No code is in it. Points of one
    `kin`, one after the other, are run in one process: some of their work is the same, and is done there once."""

    key: str
    text: str
    # Of its variant in the study; "": it has none.
    label: str = ""
    # "": it has none.
    kin: str = ""

    @classmethod
    def of(cls, scenario: Scenario, key: str | None = None, label: str = "", kin: str = "") -> Point:
        text = json.dumps(dump_scenario(scenario), separators=(",", ":"), allow_nan=False)
        return cls(key or scenario_hash(scenario), text, label, kin)

    def scenario(self) -> Scenario:
        return dumped_scenario(json.loads(self.text))


@dataclass(frozen=True, slots=True)
class Work:
    """What is done with a point, the same wherever it is: run it, and make a row of the result.

    `run` is a function that every process can import. `version` is that of the code that asks for the work, which uses
    these `plugins`: another process is given them. `intervals_of` says how sure a
    point's figures are; None: nothing does.
    """

    run: Callable[[Scenario], Run]
    version: str
    plugins: tuple[Plugin, ...] = ()
    intervals_of: IntervalsOf | None = None

    def __call__(self, point: Point) -> Row:
        """A row with key, outcome, why, settings, metrics, version and wall times. Whatever goes wrong with a point is
        in its row; KeyboardInterrupt alone is raised, also where a run was interrupted."""
        began_s = perf_counter()
        scenario = point.scenario()
        try:
            take_up(self.plugins)
            result = self.run(scenario)
            if result.interrupted:
                raise KeyboardInterrupt  # a part of a run is no result
            metrics = metrics_for(scenario, result)
            if self.intervals_of is not None:
                metrics |= columns_of(self.intervals_of(scenario, result))
            found = {"outcome": result.outcome, "why": result.why or "; ".join(result.faults) or None, **metrics}
            found |= {MEASURED + key: value for key, value in result.measured.items() if isinstance(value, int | float)}
        except Exception as error:
            why = str(error) if isinstance(error, KvferryError) else f"{type(error).__name__}: {error}"
            found = {"outcome": "failed", "why": why}
        return self._row(point, scenario, found, perf_counter() - began_s)

    def elsewhere(self, point: Point) -> Row:
        """The same in a process that was started by others, perhaps on another computer: its KVFerry has to be the
        same one, and the files that the scenario names have to lie there too, with the same content.

        Raises KvferryError for another KVFerry, and for a plugin that cannot be used there."""
        take_up(self.plugins)
        if (here := code_version()) != self.version:
            raise KvferryError(f"a worker has KVFerry {here} and this process {self.version}; results would be mixed")
        try:
            found = scenario_hash(point.scenario())
        except (OSError, KvferryError) as error:
            return self.failed(point, f"the worker cannot read the scenario: {error}")
        if found != point.key:
            return self.failed(point, "a file that the scenario names has another content where the worker is")
        return self(point)

    def failed(self, point: Point, why: str, wall_s: float = 0.0) -> Row:
        return self._row(point, point.scenario(), {"outcome": "failed", "why": why}, wall_s)

    def _row(self, point: Point, scenario: Scenario, found: Mapping[str, Any], wall_s: float) -> Row:
        why = found["why"] and found["why"][:_MOST_WORDS]
        settings = settings_of(scenario)
        return {
            "key": point.key,
            **({VARIANT: point.label} if point.label else {}),
            **settings,
            **found,
            "why": why,
            "version": self.version,
            MEASURED + "wall_s": wall_s,
        }

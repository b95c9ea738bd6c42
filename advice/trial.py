"""A composition tried: the scenario that it makes, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvferry.advice.composition import Composition
from kvferry.advice.question import Limit, Question
from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# Turns follow each other without a pause: a device that waits for its user adds nothing to their energy.
TOGETHER: Mapping[str, str] = {"workload.think": "0 s", "workload.pause": "0 s"}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """``figures``: metrics of its run. ``why`` is empty where it is done."""

    composition: Composition
    scenario: Scenario | None
    outcome: str
    why: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.outcome == "done"

    def broken(self, limits: tuple[Limit, ...]) -> list[Limit]:
        """Returns the limits that it does not keep; one whose figure is not known is not kept."""
        return [
            one
            for one in limits
            if one.constraint.metric not in self.figures
            or one.constraint.excess(self.figures[one.constraint.metric]) > 0
        ]


def tried(question: Question, one: Composition, settings: Mapping[str, Any] | None = None) -> Trial:
    """Carries a composition out. Raises KeyboardInterrupt."""
    try:
        scenario = question.scenario(one, settings)
        run = run_scenario(scenario)
    except InputError as error:
        return Trial(composition=one, scenario=None, outcome="refused", why=str(error))
    if run.interrupted:
        raise KeyboardInterrupt
    figures = figures_of(scenario, run) if run.outcome == "done" else {}
    if figures and question.counts_energy:
        figures |= energy_of(question, one, settings)
    return Trial(composition=one, scenario=scenario, outcome=run.outcome, why=run.why, figures=figures)


def energy_of(question: Question, one: Composition, settings: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Returns the energy of an answer, where it is counted: that of turns which follow each other without a pause, so
    that a device which waits for its user adds nothing."""
    together = {} if one.helped is not None else TOGETHER
    scenario = question.scenario(one, {**(settings or {}), **together})
    run = run_scenario(scenario)
    if run.interrupted:
        raise KeyboardInterrupt
    found = metrics_for(scenario, run)
    return {"energy_j": found["energy_j"]} if run.outcome == "done" and "energy_j" in found else {}


def figures_of(scenario: Scenario, run: Run) -> dict[str, float]:
    """The metrics of a finished run but its energy, which has idle time in it."""
    found = dict(metrics_for(scenario, run))
    found.pop("energy_j", None)
    return found

"""A composition tried: the scenario that it makes, and what came of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

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


class Trials:
    """All trials of a question, each carried out once. `turns`: of the use that are run; None: all. `few`: trials over
    few turns, in which a device that is helped has the same run: its prompts do not depend on turns."""

    def __init__(
        self,
        question: Question,
        turns: int | None = None,
        done: Callable[[], None] = lambda: None,
        few: "Trials | None" = None,
    ) -> None:
        self.question, self._turns, self._done, self._few = question, turns, done, few
        self._found: dict[Composition, Trial] = {}

    def __contains__(self, one: Composition) -> bool:
        return one in self._found

    @property
    def all(self) -> list[Trial]:
        return list(self._found.values())

    def of(self, one: Composition) -> Trial:
        """The trial of a composition. Raises KeyboardInterrupt where Ctrl-C ended its run."""
        if one.helped is not None and self._few is not None and one in self._few:
            return self._found.setdefault(one, self._few.of(one))
        if one not in self._found:
            self._found[one] = tried(self.question, one, self.settings(one))
            self._done()
        return self._found[one]

    def settings(self, one: Composition) -> Mapping[str, Any]:
        """What is set besides the composition: its turns, where only few are run."""
        return {} if self._turns is None or one.helped is not None else {"workload.turns": self._turns}

    def rank(self, trial: Trial) -> tuple[Any, ...]:
        """Less is better: what is done and keeps the limits, then what gives up less, then what the use is judged
        by."""
        question = self.question
        kept = trial.is_done and not trial.broken(question.limits)
        loss = 0 if question.any_quality else trial.composition.given_up
        return not kept, loss, trial.figures.get(question.use.spec.best, np.inf)

    def ranked(self) -> list[Trial]:
        """Trials that are done and keep the limits, best first; of equal ones the earliest."""
        kept = [one for one in self.all if not self.rank(one)[0]]
        return sorted(kept, key=self.rank)


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

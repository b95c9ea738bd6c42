"""All trials of a question, best first."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from kvferry.advice import trial
from kvferry.advice.composition import Composition
from kvferry.advice.preference import in_order
from kvferry.advice.question import Question
from kvferry.advice.trial import Trial


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
            self._found[one] = trial.tried(self.question, one, self.settings(one))
            self._done()
        return self._found[one]

    def settings(self, one: Composition) -> Mapping[str, Any]:
        """What is set besides the composition: its turns, where only few are run."""
        return {} if self._turns is None or one.helped is not None else {"workload.turns": self._turns}

    def rank(self, one: Trial) -> tuple[Any, ...]:
        """Less is better: what is done and keeps the limits, then what gives up less, then what the use is judged
        by."""
        question = self.question
        loss = 0 if question.any_quality else one.composition.given_up
        return self.fails(one), loss, one.figures.get(question.use.spec.best, inf)

    def fails(self, one: Trial) -> bool:
        """Whether it is not done, or misses a limit."""
        return not one.is_done or bool(one.broken(self.question.limits))

    def ranked(self) -> list[Trial]:
        """Trials that are done and keep the limits, best first; equal ones as ``in_order`` has them."""
        return in_order(self.question, [one for one in self.all if not self.fails(one)])

    def missing_limits(self) -> list[Trial]:
        """Trials that are done and miss a limit, best first."""
        done = [one for one in self.all if one.is_done]
        return in_order(self.question, [one for one in done if self.fails(one)])

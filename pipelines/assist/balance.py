"""To which of a cloud's instances a prompt goes."""

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from kvferry.pipelines.assist.instance import Instance

# Notes of what instances have in hand, for each of them at most.
_NOTES = 8


class Balance:
    """Chooses the instance with the fewest tokens of prompts in hand, of the ones that are up, or of all where none
    is; of equal ones the first. Notes what each has in hand."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._instances = instances
        self._number = {instance: n for n, instance in enumerate(instances)}
        # By which they are chosen: tokens in hand, endless where one is not to be chosen.
        self._tokens: list[float] = [instance.prefilling for instance in instances]
        # Heap of tokens and number, in which what was true once stays: looking at hundreds of instances for each prompt
        # would take longer.
        self._noted: list[tuple[float, int]] = []
        self._note_all()

    def least(self) -> Instance:
        noted, tokens = self._noted, self._tokens
        while noted[0][0] != tokens[noted[0][1]]:
            heappop(noted)
        return self._instances[noted[0][1]]

    def add(self, instance: Instance, tokens: int) -> None:
        """An instance has this many tokens more in hand, or fewer."""
        instance.prefilling += tokens
        n = self._number[instance]
        if self._tokens[n] < math.inf:
            self._tokens[n] = instance.prefilling
            heappush(self._noted, (instance.prefilling, n))
            if len(self._noted) > _NOTES * len(self._tokens):
                self._note_all()

    def look(self) -> None:
        """Some have gone down or come up."""
        none = not any(instance.is_up for instance in self._instances)
        self._tokens = [one.prefilling if none or one.is_up else math.inf for one in self._instances]
        self._note_all()

    def _note_all(self) -> None:
        self._noted = [(tokens, n) for n, tokens in enumerate(self._tokens)]
        heapify(self._noted)

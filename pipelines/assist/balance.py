"""To which of a cloud's instances a prompt goes."""

import math
from collections.abc import Sequence

from kvferry.pipelines.assist.instance import Instance


class Balance:
    """Chooses the instance with the fewest tokens of prompts in hand, of the ones that are up, or of all where none
    is; of equal ones the first. Notes what each has in hand."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self._instances = instances
        self._number = {instance: n for n, instance in enumerate(instances)}
        # By which they are chosen: tokens in hand, endless where one is not to be chosen. Looking at hundreds of
        # instances for each prompt would take longer.
        self._tokens: list[float] = [instance.prefilling for instance in instances]

    def least(self) -> Instance:
        return self._instances[self._tokens.index(min(self._tokens))]

    def add(self, instance: Instance, tokens: int) -> None:
        """An instance has this many tokens more in hand, or fewer."""
        instance.prefilling += tokens
        n = self._number[instance]
        if self._tokens[n] < math.inf:
            self._tokens[n] = instance.prefilling

    def look(self) -> None:
        """Some have gone down or come up."""
        none = not any(instance.is_up for instance in self._instances)
        self._tokens = [one.prefilling if none or one.is_up else math.inf for one in self._instances]

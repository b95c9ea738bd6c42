"""The recall of selections in a modelled world, where its keys are known."""

from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.policies.decode.upkeep import Ahead, Recalls

# Steps at which keys are asked: what queries want most takes a look at every key.
_ASKED = 16


class SampledRecall:
    """Asks keys at some steps, evenly over ``steps``, how much of what their queries want most was chosen."""

    def __init__(self, plan: DecodePlan, steps: int) -> None:
        self._selector, self._every = plan.roles.selector, max(1, (steps - 1) // _ASKED)
        self._found: list[float] = []

    def at(self, tokens: int, stored_tokens: int, keys: Ahead | None) -> None:
        """Looks whether to ask, once the token of this number has been decoded; the first one comes from prefill."""
        if isinstance(keys, Recalls) and tokens > 1 and (tokens - 1) % self._every == 0:
            found = keys.recall(self._selector.wanted_tokens(stored_tokens))
            if found is not None:
                self._found.append(found[0])

    @property
    def mean(self) -> float | None:
        """Returns the mean over the steps; None: nothing is known of any."""
        return sum(self._found) / len(self._found) if self._found else None

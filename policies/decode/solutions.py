"""Solutions of a tuning: looked up at run time, written as JSON and read back."""

from collections.abc import Iterable
from typing import Literal

from pydantic import ConfigDict, Field, ValidationError

from kvferry.policies.decode.tuner import Solution
from kvferry.policies.decode.tuning_limits import MOST_PAIRS, TuningLimits
from kvferry.specs.base import Spec
from kvferry.specs.errors import InputError
from kvferry.specs.tier import Tier

# Faults of a file that are shown at most.
_MOST_FAULTS = 3


class _Document(Spec):
    model_config = ConfigDict(strict=True)

    format: Literal["kvferry-tuned"] = "kvferry-tuned"
    version: Literal[2] = 2
    # The tier that blocks are brought from.
    tier: Tier = "storage"
    limits: TuningLimits
    solutions: tuple[Solution, ...] = Field(min_length=1, max_length=MOST_PAIRS)


class Solutions:
    """Holds what a tuning found: ``solved`` has a solution for each pair of batch and context. ``default``: what the
    system does on its own with the largest of both, where it is within the limits; a file does not keep it."""

    def __init__(
        self,
        limits: TuningLimits,
        solved: Iterable[Solution],
        tier: Tier = "storage",
        default: Solution | None = None,
    ) -> None:
        """`tier`: where the KV lies that the parameters were tuned for."""
        self.limits, self.tier, self.default = limits, tier, default
        self.solved = {(solution.batch, solution.context): solution for solution in solved}

    def nearest(self, batch: int, context: int, output: int = 0) -> Solution:
        """Returns the exact pair, or the nearest (A.4). Raises InputError past what was tuned for: the budget would not
        hold.

        Never one for a shorter context: compressed keys, those of more output included, would outgrow the budget."""
        limits = self.limits
        needed = context + max(0, output - limits.output)
        longer = [pair for pair in self.solved if pair[1] >= needed]
        if batch > limits.most_batch or not longer:
            most = max(solved_context for _, solved_context in self.solved)
            raise InputError(
                f"a batch of {batch} with {context:,} tokens and {output:,} decoded each is more than was tuned for:"
                f" at most {limits.most_batch} with {most:,} and {limits.output:,}; tune again"
            )
        pair = min(
            longer,
            key=lambda pair: (
                abs(pair[0] - batch) / limits.most_batch + abs(pair[1] - needed) / limits.most_context,
                pair,
            ),
        )
        return self.solved[pair]

    def to_json(self) -> str:
        document = _Document(tier=self.tier, limits=self.limits, solutions=tuple(self.solved.values()))
        return document.model_dump_json(indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str) -> "Solutions":
        """Raises InputError when the text is not what ``to_json`` writes."""
        try:
            document = _Document.model_validate_json(text)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            lines = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}".lstrip(": ") for fault in faults]
            more = [f"and {len(lines) - _MOST_FAULTS} more"] if len(lines) > _MOST_FAULTS else []
            why = "; ".join(lines[:_MOST_FAULTS] + more)
            raise InputError(f"{source}: not what kvferry tune writes: {why}; tune again") from None
        return cls(document.limits, document.solutions, document.tier)

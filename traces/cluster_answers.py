"""Answers about clusters of keys, recorded from a run's ops in one world and given in another."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvferry.machine.answers import Answer
from kvferry.machine.ops import Assign, Cluster, Op, OutputHead, Select, Split
from kvferry.specs.errors import InputError

# Ops that clusters of keys answer, and the one that says what became of new keys.
OfClusters = Select | Cluster | Assign | Split | OutputHead
# Answers them; an OutputHead with nothing.
Clusters = Callable[[Op], Answer | None]
# An op's label, its step and its layer; the step is -1 while prompts are taken in.
Place = tuple[str, int, int]


def place_of(op: Select | Cluster | Assign | Split) -> Place:
    return op.label, op.step, op.layer


@dataclass(frozen=True, eq=False)
class RecordedClusters:
    """``answers`` by op, step and layer, as a real run found them: a Clusters."""

    answers: Mapping[Place, Answer]

    def __call__(self, op: Op) -> Answer | None:
        """Raises InputError for what was not recorded."""
        if not isinstance(op, Select | Cluster | Assign | Split):
            return None
        found = self.answers.get(place_of(op))
        if found is None:
            what = f"{op.label} of step {op.step}, layer {op.layer}"
            raise InputError(f"the recorded answers of clusters are of another run: they have nothing for {what}")
        return found

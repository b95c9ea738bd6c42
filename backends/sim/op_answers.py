"""Answers to ops that choose, in the modelled world: the processor alone says how long they take."""

from collections.abc import Callable
from dataclasses import dataclass

from kvferry.machine.answers import Answer, Selection
from kvferry.machine.ops import DecodeAttention, Op, Selecting
from kvferry.specs.errors import InputError
from kvferry.traces.cluster_answers import Clusters, OfClusters


@dataclass(frozen=True)
class OpAnswers:
    """``selections`` answers Select and Retrieve ops from a recorded or generated stream, or by keys, ``clusters`` ops
    on clusters of keys, and ``attended`` is called with each attention op."""

    selections: Callable[[Selecting], Selection] | None = None
    clusters: Clusters | None = None
    attended: Callable[[DecodeAttention], None] | None = None

    def of(self, op: Op) -> Answer | None:
        """Returns the answer; None: it has none. Raises InputError where there is nothing to answer from."""
        if self.clusters is not None and isinstance(op, OfClusters):
            return self.clusters(op)
        if op.answer is None:
            if self.attended is not None and isinstance(op, DecodeAttention):
                self.attended(op)
            return None
        if not isinstance(op, Selecting) or self.selections is None:
            what = f"a stream of {op.answer.stream}, recorded or generated"
            raise InputError(f"a {op.label} op needs {what}; this run has none")
        return self.selections(op)


# Of a machine on which nothing chooses.
NO_ANSWERS = OpAnswers()

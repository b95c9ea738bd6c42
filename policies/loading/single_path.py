"""The two loaders that use one path only; every hybrid lies between them."""

from kvferry.policies.loading.loader import WIDE, Compute, LoadFacts, Stream
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress


class StreamOnly:
    """Fetch everything, in the order in which attention will read it: layer by layer, token by token.

    One transfer carries one token chunk of one layer. Nothing is computed.
    """

    window = WIDE

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        columns = range(problem.columns_per_chunk)
        self._batches = (
            tuple(problem.unit(t, l, c) for c in columns)
            for l in range(problem.layers)
            for t in range(problem.token_chunks)
        )

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        return None

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        batch = next(self._batches, None)
        return None if batch is None else Stream(batch)


class LocalPrefill:
    """Compute everything: token chunk by token chunk, each through all layers. Nothing is streamed."""

    window = WIDE

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        columns = range(problem.columns_per_chunk)
        self._batches = (
            tuple(problem.unit(t, l, c) for c in columns)
            for t in range(problem.token_chunks)
            for l in range(problem.layers)
        )

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        batch = next(self._batches, None)
        return None if batch is None else Compute(batch)

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        return None

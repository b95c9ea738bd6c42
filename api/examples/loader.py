"""A loader of one's own: it decides, whenever the processor or the link has room, which part of a context comes next.

    kvferry run quickstart --plugin example_policy.py --system example-policy

A unit is the KV of one token chunk in one layer; with coupling per_head, of one head. The device can compute it, or
fetch it. kvferry.policies.loading.loader says what a loader may know, kvferry.policies.loading has the loaders
that come with KVFerry.
"""

from collections import deque

from kvferry.policies.loading.loader import WIDE, Compute, LoadFacts, Stream
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress


class ExamplePolicy:
    """Computes from the first token on and streams from the last, until both meet."""

    # How many bytes are kept on the link: a loader that never changes its mind loses nothing by a wide window.
    window = WIDE

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        """Called once, with estimated costs: problem.compute_s and problem.stream_bytes, by [chunk, layer, head]."""
        chunks, layers = range(problem.token_chunks), range(problem.layers)
        self._first = deque(self._units(problem, t, l) for t in chunks for l in layers)
        self._last = deque(self._units(problem, t, l) for t in reversed(chunks) for l in layers)

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        """None: nothing until a unit arrives. A unit can be computed once the layers below it are, and earlier tokens'
        KV is there."""
        units = self._next(self._first, progress)
        if units is None or not progress.computable(units[0]):
            return None
        self._first.popleft()
        return Compute(units)

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        """Anything that is absent can be streamed. facts.seen_bytes_per_s is the rate of the last window."""
        units = self._next(self._last, progress)
        if units is None:
            return None
        self._last.popleft()
        return Stream(units)

    @staticmethod
    def _next(waiting: deque[tuple[int, ...]], progress: LoadProgress) -> tuple[int, ...] | None:
        while waiting and not all(progress.absent(unit) for unit in waiting[0]):
            waiting.popleft()
        return waiting[0] if waiting else None

    @staticmethod
    def _units(problem: LoadProblem, t: int, l: int) -> tuple[int, ...]:
        return tuple(problem.unit(t, l, c) for c in range(problem.columns_per_chunk))


# What this file has, by kind and name. A loader becomes a system of that name, over SparKV's encoding.
KVFERRY = {"loader": {"example-policy": ExamplePolicy}}

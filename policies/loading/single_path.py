"""The two loaders that use one path only; every hybrid lies between them."""

import math
from typing import Literal

from kvferry.policies.loading.loader import WIDE, Compute, LinkWindow, LoadFacts, Stream
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress


class CacheGen:
    """Streams token chunk by token chunk, one transfer per layer, and chooses a quality level for each chunk:
    the best one at which everything left arrives within `objective_s` of the start, else the lowest. With "quality" for
    an objective it is the best one, however long that takes, so that systems can be compared at equal quality.

    The rate is the last observed goodput, and before that the planned rate. Left out: CacheGen's fallback of sending
    text and computing its KV, which would make it a hybrid.
    """

    # Wide enough for a rate that jumps; a level is chosen when its chunk is handed over, so no wider.
    window = LinkWindow(times=4, at_least_planned=True)

    def __init__(self, objective_s: float | Literal["quality"] = 2.0) -> None:
        self.objective_s = math.inf if objective_s == "quality" else objective_s
        if not self.objective_s > 0:
            raise ValueError(f"objective_s is {objective_s}; it must be above 0")

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        self._problem = problem
        self._deadline_s = facts.now_s + self.objective_s
        sizes = problem.stream_bytes.sum(axis=(1, 2)).tolist()
        # Bytes at level 0 from each token chunk to the end.
        self._left_bytes = [sum(sizes[t:]) for t in range(problem.token_chunks)]
        self._next = 0
        self._level = 0

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        return None

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        problem = self._problem
        if self._next == problem.units:
            return None
        t, layer, _ = problem.place(self._next)
        if layer == 0:
            self._level = self._best_level(self._left_bytes[t], facts)
        units = range(self._next, self._next + problem.columns_per_chunk)
        self._next = units.stop
        return Stream(tuple(units), self._level)

    def _best_level(self, left_bytes: float, facts: LoadFacts) -> int:
        if self.objective_s == math.inf:
            return 0
        rate = facts.goodput_bytes_per_s
        can_come = (facts.planned_bytes_per_s if rate is None else rate) * (self._deadline_s - facts.now_s)
        scales = self._problem.level_scale
        fits = (level for level, scale in enumerate(scales) if left_bytes * scale <= can_come)
        return next(fits, len(scales) - 1)


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

"""Strong Hybrid (SparKV's reference [16], "bidirectional convergence"): early token chunks are computed while
later ones are streamed.

The static variants split the context once, between two token chunks; the two-pointer variants let both paths work
towards each other until they meet.
"""

from collections.abc import Callable
from typing import Literal

import numpy as np

from kvferry.policies.loading.loader import WIDE, Compute, LinkWindow, LoadFacts, Stream
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress

Variant = Literal["uniform", "true-costs", "two-pointer", "whole-chunk"]


def uniform_split(problem: LoadProblem, bytes_per_s: float) -> int:
    """How many token chunks to compute, if every chunk costs what the mean chunk costs on that path."""
    compute_s = float(problem.compute_s.sum())
    stream_s = float(problem.stream_bytes.sum()) / bytes_per_s
    # start + n C = (T - n) S with C and S per chunk, in whole chunks.
    share = (stream_s - problem.start_s) / (compute_s + stream_s) if compute_s + stream_s else 0.0
    return round(problem.token_chunks * max(0.0, share))


def true_split(problem: LoadProblem, bytes_per_s: float) -> int:
    """How many token chunks to compute so that the slower path ends soonest, by each chunk's estimated costs."""
    computed_s = np.append(0.0, problem.start_s + problem.compute_s.sum(axis=(1, 2)).cumsum())
    streamed_bytes = np.append(0.0, problem.stream_bytes.sum(axis=(1, 2)).cumsum())
    ends_s = np.maximum(computed_s, (streamed_bytes[-1] - streamed_bytes) / bytes_per_s)
    return int(ends_s.argmin())


SPLITS: dict[str, Callable[[LoadProblem, float], int]] = {"uniform": uniform_split, "true-costs": true_split}


class Hybrid:
    """Computes from the first token chunk on, each through all layers; streams from the last layer of the last
    token chunk backwards.

    `variant` says where the paths part: "uniform" (the paper's, by mean rates alone) and "true-costs" split
    before the start; "two-pointer" lets them meet unit by unit, "whole-chunk" by token chunks that one path
    takes as a whole. `split` is the number of chunks computed, None for the dynamic variants.
    """

    def __init__(self, variant: Variant = "uniform") -> None:
        if variant not in (*SPLITS, "two-pointer", "whole-chunk"):
            raise ValueError(f"variant {variant!r} is none of uniform, true-costs, two-pointer, whole-chunk")
        self.variant = variant
        self.split: int | None = None
        # What a dynamic variant hands over early, the other path cannot take any more.
        self.window = WIDE if variant in SPLITS else LinkWindow()

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        self._layer = problem.columns_per_chunk
        self._block = self._layer * (problem.layers if self.variant == "whole-chunk" else 1)
        # Units that neither path has taken lie between these two, in whole blocks.
        self._front, self._back = 0, problem.units
        self._front_end, self._back_end = problem.units, 0
        if self.variant in SPLITS:
            self.split = SPLITS[self.variant](problem, facts.planned_exchange)
            self._front_end = self._back_end = problem.unit(self.split, 0, 0)
        # Everything from here on was streamed.
        self._streamed = problem.units

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        first = self._front
        if first == min(self._back, self._front_end):
            return None
        self._front = first + self._block
        return Compute(tuple(range(first, self._front)))

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        if self._streamed == self._back:
            if self._back == max(self._front, self._back_end):
                return None
            self._back -= self._block
        last = self._streamed
        self._streamed -= self._layer
        return Stream(tuple(range(self._streamed, last)))

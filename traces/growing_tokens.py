"""Critical tokens of contexts that grow while decoding: what a modelled machine answers Retrieve ops with.

As in traces/critical_tokens.py, but among all tokens there are, those made while decoding included, and for one choice
that serves all layers.
"""

import math

import numpy as np

from kvferry.machine.answers import Selection
from kvferry.machine.ops import Selecting
from kvferry.traces.chance import Source, generator
from kvferry.traces.critical_tokens import SmoothFields

# Rows share this many processes: each has the statistics asked for, and rows of one process choose alike, which is of
# no use to a system, as rows share nothing.
_PROCESSES = 4


class GrowingTokens:
    """A seeded process over steps: the KV blocks of `block_tokens` with the highest latent scores.

    Every block has one, normally distributed from the beginning, and can be chosen once it is there. Scores of blocks n
    tokens apart have a correlation of exp(-n / `reach`). Of a score's variance the share `lasting` stays as it is, the
    rest is forgotten within some `persistence` steps: its correlation with itself n steps later is exp(-n /
    persistence). So the larger the share of blocks that is chosen, the more of it neighbouring steps have in common.

    `blocks`: as many as there will ever be. ValueError for statistics that cannot be.
    """

    def __init__(
        self,
        *,
        sequences: int,
        heads: int,
        blocks: int,
        block_tokens: int = 1,
        reach: float,
        persistence: float,
        lasting: float,
        seed: int,
    ) -> None:
        if not 0 <= lasting <= 1:
            raise ValueError(f"lasting must lie in 0..1, got {lasting}")
        if min(reach, persistence) <= 0:
            raise ValueError(f"reach and persistence must be positive, got {reach} and {persistence}")
        self.step, self.blocks = 0, blocks
        rows = sequences * heads
        processes = min(rows, _PROCESSES)
        # Which process each row follows: as many rows each.
        order = generator(Source.GROWING_PLACES, seed).permutation(rows)
        self._process = (order % processes).reshape(sequences, heads)
        self._fields = SmoothFields(processes, blocks, math.exp(-block_tokens / reach))
        self._rng = generator(Source.GROWING_STEPS, seed)
        self._kept = math.exp(-1 / persistence)
        self._passing_share = math.sqrt(1 - lasting)
        self._lasting = np.float32(math.sqrt(lasting)) * self._fields.drawn(self._rng)
        self._passing = np.float32(self._passing_share) * self._fields.drawn(self._rng)
        self._chosen: tuple[int, int, int] | None = None
        self._selection = Selection(np.empty(0, np.int32))

    def __call__(self, op: Selecting) -> Selection:
        """Returns the selection of an op's step, among its `groups` first blocks, ascending. Raises ValueError for a
        step that is over."""
        asked = op.step, op.groups, op.k
        if asked != self._chosen:
            self._go_to(op.step)
            ids, scores = (of_process[self._process] for of_process in self._best(op.groups, op.k))
            self._chosen, self._selection = asked, Selection(ids, scores=scores)
        return self._selection

    def _go_to(self, step: int) -> None:
        if step < self.step:
            raise ValueError(f"step {step} is over; the stream stands at {self.step}")
        if step > self.step:
            # This many steps at once.
            kept = self._kept ** (step - self.step)
            self._passing *= np.float32(kept)
            self._passing += np.float32(self._passing_share * math.sqrt(1 - kept**2)) * self._fields.drawn(self._rng)
            self.step = step

    def _best(self, blocks: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """int32[processes, k], and their scores."""
        scores = self._lasting[:, :blocks] + self._passing[:, :blocks]
        if k >= blocks:
            return np.broadcast_to(np.arange(blocks, dtype=np.int32), scores.shape), scores
        best = np.argpartition(scores, blocks - k, axis=1)[:, blocks - k :].astype(np.int32)
        best.sort(axis=1)
        return best, np.take_along_axis(scores, best, 1)

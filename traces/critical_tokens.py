"""Critical tokens while decoding: what a modelled machine answers Select ops with, token by token or in groups.

Each sequence, layer and head selects as many groups in every step; neighbouring steps share most of theirs, some are
wanted far more often than others, and what is wanted lies together (KVSwap 3.4.2, and streams recorded from the bundled
models). Left out: tokens made while decoding (systems keep the last ones in memory), and drift of what is wanted for
good.
"""

import math
from pathlib import Path

import numpy as np

from kvferry.machine.answers import Selection
from kvferry.machine.ops import Selecting
from kvferry.specs.errors import InputError
from kvferry.traces.chance import Source, generator
from kvferry.traces.selections import SelectionStream

# Rows follow one process at steps of their own, up to this many apart.
_LAGS = 256


class CriticalTokens:
    """A seeded process over steps: the groups of `group_tokens` of `context` that hold `selected` tokens.

    Every group has a latent score, normally distributed, and those with the highest scores are selected. Scores of
    groups n tokens apart have a correlation of exp(-n / `reach`). Of a score's variance the share `lasting` stays as it
    is, the rest is forgotten within some `persistence` steps: its correlation with itself n steps later is
    exp(-n / persistence). So the larger the share of the context that is selected, the more of it neighbouring steps
    have in common.

    All rows (of layers, sequences and heads) follow one such process, each at a step of its own, up to 256 steps apart:
    each has the statistics asked for, and what they have in common is of no use to a system, as rows share nothing.

    ValueError when there are not enough to select.
    """

    def __init__(
        self,
        *,
        layers: int,
        sequences: int,
        heads: int = 1,
        context: int,
        selected: int,
        group_tokens: int = 1,
        reach: float,
        persistence: float,
        lasting: float,
        seed: int,
    ) -> None:
        if selected % group_tokens:
            raise ValueError(f"{selected} tokens are no whole number of groups of {group_tokens}")
        if not 1 <= selected <= context:
            raise ValueError(f"{selected} of {context} tokens cannot be selected")
        if selected // group_tokens > context // group_tokens:
            raise ValueError(f"{context} tokens have no {selected // group_tokens} groups of {group_tokens}")
        if not 0 <= lasting <= 1:
            raise ValueError(f"lasting must lie in 0..1, got {lasting}")
        if min(reach, persistence) <= 0:
            raise ValueError(f"reach and persistence must be positive, got {reach} and {persistence}")
        self.context_groups, self.groups = context // group_tokens, selected // group_tokens
        self.step = -1
        self._shape = layers, sequences, heads, self.groups
        self._fields = SmoothFields(1, self.context_groups, math.exp(-group_tokens / reach))
        self._kept = math.exp(-1 / persistence)
        rows = layers * sequences * heads
        # As far apart as can be.
        lags = np.arange(rows) * max(1, _LAGS // rows) % _LAGS
        self._lags = generator(Source.CRITICAL_PLACES, seed).permutation(lags)
        self._rng = generator(Source.CRITICAL_STEPS, seed)
        self._lasting = np.float32(math.sqrt(lasting)) * self._field()
        # What changes with the steps, as large as its part of a score.
        self._passing = np.float32(math.sqrt(1 - lasting)) * self._field()
        self._change = np.float32(math.sqrt((1 - lasting) * (1 - self._kept**2)))
        # The selections of the last steps, in a ring.
        self._ring = np.empty((int(lags.max()) + 1, self.groups), np.int32)
        self._ring_scores = np.empty(self._ring.shape, np.float32)
        for step in range(1 - len(self._ring), 0):
            self._ring[step], self._ring_scores[step] = self._next()
        self._selected = np.empty(0, np.int32)

    def __call__(self, op: Selecting) -> Selection:
        """The groups of an op's step and layer, with their latent scores. Steps may only go forward. An op that selects
        more than there were in the context gets the newest besides, with the scores of the least."""
        chosen = self.at(op.step)[op.layer]
        places = self._places(op.step).reshape(self._shape[:3])[op.layer]
        scores = self._ring_scores[places]
        more = op.k - self.groups
        if more <= 0:
            return Selection(chosen, scores=scores)
        newest = np.arange(op.groups - more, op.groups, dtype=np.int32)
        least = np.repeat(scores.min(axis=2, keepdims=True), more, axis=2)
        ids = np.concatenate([chosen, np.broadcast_to(newest, least.shape)], axis=2)
        return Selection(ids, scores=np.concatenate([scores, least], axis=2))

    def at(self, step: int) -> np.ndarray:
        """int32[layers, sequences, heads, groups]: a step's. Steps may only go forward."""
        if step != self.step:
            self.advance(step)
        return self._selected

    def advance(self, step: int) -> None:
        if step < self.step:
            raise ValueError(f"step {step} is over; the stream stands at {self.step}")
        while self.step < step:
            self.step += 1
            at = self.step % len(self._ring)
            self._ring[at], self._ring_scores[at] = self._next()
        self._selected = self._ring[self._places(step)].reshape(self._shape)

    def selected(self) -> np.ndarray:
        """int32[layers, sequences, heads, groups], ascending along groups."""
        return self._selected

    def _places(self, step: int) -> np.ndarray:
        """Returns the place of each row's step in the ring."""
        places: np.ndarray = (step - self._lags) % len(self._ring)
        return places

    def _next(self) -> tuple[np.ndarray, np.ndarray]:
        """The groups with the highest scores, a step later, and their scores."""
        self._passing *= np.float32(self._kept)
        self._passing += self._change * self._field()
        rest = self.context_groups - self.groups
        scores = self._lasting + self._passing
        best = np.argpartition(scores, rest)[rest:] if rest else np.arange(self.groups)
        best.sort()
        return best, scores[best]

    def _field(self) -> np.ndarray:
        """float32[groups of the context]"""
        field: np.ndarray = self._fields.drawn(self._rng)[0]
        return field


class RecordedSelections:
    """Answers Select ops from a recorded stream, which starts again at its end; sequences are steps apart.

    Raises InputError when the stream was recorded with other dimensions than the op's.
    """

    def __init__(self, stream: SelectionStream, sequences: int) -> None:
        self._stream = stream
        self._apart = max(1, len(stream.ids) // sequences) * np.arange(sequences)

    @classmethod
    def load(cls, path: Path, sequences: int) -> "RecordedSelections":
        return cls(SelectionStream.load(path), sequences)

    def __call__(self, op: Selecting) -> Selection:
        steps, layers, heads, k = self._stream.ids.shape
        # Recorded streams may know groups that were written while decoding, besides those of the context.
        if (op.heads, op.k) != (heads, k) or op.groups > self._stream.groups or op.layer >= layers:
            recorded = f"{layers} layers, {heads} heads, {k} of {self._stream.groups} groups"
            raise InputError(
                f"workload.selections: recorded with {recorded}; layer {op.layer} of this run wants {op.k} of"
                f" {op.groups} groups for {op.heads} heads"
            )
        at, scores = (op.step + self._apart) % steps, self._stream.scores
        return Selection(self._stream.ids[at, op.layer], scores=None if scores is None else scores[at, op.layer])


# Correlations below this are left out.
_LEAST_CORRELATION = 1e-3


class SmoothFields:
    """Draws float32[rows, n], standard normal, where numbers m apart have a correlation of alike**m, around the ends
    too."""

    def __init__(self, rows: int, n: int, alike: float) -> None:
        self._shape = rows, n
        # y[n] = x[n] + a * y[n - 1], in doubled strides.
        self._strides: list[tuple[int, np.float32]] = []
        stride, weight, variance = 1, alike, 1.0
        while stride < n and weight > _LEAST_CORRELATION:
            self._strides.append((stride, np.float32(weight)))
            variance *= 1 + weight**2
            stride, weight = 2 * stride, weight**2
        self._scale = np.float32(math.sqrt(variance))

    def drawn(self, rng: np.random.Generator) -> np.ndarray:
        field = rng.standard_normal(self._shape, np.float32)
        for stride, weight in self._strides:
            before, scaled, field = field, weight * field, np.empty_like(field)
            np.add(before[:, stride:], scaled[:, :-stride], out=field[:, stride:])
            np.add(before[:, :stride], scaled[:, -stride:], out=field[:, :stride])
        field /= self._scale
        return field

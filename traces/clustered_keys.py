"""The clusters of a modelled machine's keys."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvferry.policies.decode.cluster_table import ClusterTable
from kvferry.policies.decode.means import Told, kmeans
from kvferry.policies.decode.splits import ClusterSplit, SplitParts
from kvferry.system.array_memo import ArrayMemo
from kvferry.traces.key_membership import KeyMembership
from kvferry.traces.key_process import KINDS, KeyProcess
from kvferry.traces.key_recording import KeyRecording
from kvferry.traces.key_scores import TokenScores, best_entries, scored

# Labels of prompts, of as many layers as are told apart: systems that are compared, and runtimes that one of them may
# run on, begin with the same.
_OF_PROMPTS = ArrayMemo(KINDS)


class KeyParts(NamedTuple):
    """What of ClusteredKeys goes on with the tokens: of the clusters, and of the token under way."""

    members: KeyMembership
    token: TokenScores
    skipped: int
    step: int


class ClusteredKeys:
    """The clusters of a run's rows, as policies decide about them, token by token.

    Rows are of a few kinds of layers, ``members`` says which cluster each of their keys is in, ``table`` has what is
    known of the clusters; a layer of the same kind as another has the same rows.
    """

    def __init__(
        self,
        process: KeyProcess | KeyRecording,
        *,
        layers: int,
        sequences: int,
        heads: int,
        context: int,
        output: int,
        most: int,
        seed: int,
    ) -> None:
        self.kinds = process.kinds(layers)
        self.rows = sequences * heads
        self.heads, self.context = heads, context
        self.keys, self.queries = process.drawn(context + output, self.kinds, sequences, heads, seed)
        self.table = ClusterTable(len(self.keys), most, process.width)
        self.members = KeyMembership(self.keys, self.table)
        self.told: Told = lambda done, of: None
        # Tokens that were skipped, and the step of the one under way.
        self._skipped, self._step = 0, -1
        self._look()

    @property
    def entry(self) -> int:
        """Returns the place of the token under way among all tokens."""
        return self.context + self._skipped + self._step

    @property
    def parts(self) -> KeyParts:
        return KeyParts(self.members, self.token, self._skipped, self._step)

    def resume(self, parts: KeyParts) -> None:
        """Goes on from where others of the same keys have come to, which are given up for it."""
        self.members, self.token, self._skipped, self._step = parts
        self.table = self.members.table

    def go_to(self, step: int) -> None:
        if step != self._step:
            self._step = step
            self._look()

    def _look(self) -> None:
        self.token = TokenScores(self.table, self.keys[:, self.entry], self.queries[:, self.entry])

    def of_kind(self, kind: int) -> slice:
        """The rows of a kind of layers."""
        return slice(kind * self.rows, (kind + 1) * self.rows)

    def cluster(
        self, rows: slice, tokens: int, clusters: int, first: int, told: Told = lambda done, of: None
    ) -> np.ndarray:
        """Make clusters of the newest tokens of rows: the cluster of each token, counted from `first`."""
        part = slice(self.entry + 1 - tokens, self.entry + 1)
        keys = self.keys[rows, part]

        def made() -> np.ndarray:
            return kmeans(keys, clusters, told=told)

        of_prompts = part.start == 0 and part.stop == self.context
        found = _OF_PROMPTS.of(keys, clusters, make=made) if of_prompts else made()
        self.members.fill(rows, part, found, first)
        return found

    # --- ahead of time ----------------------------------------------------------------------------------------------

    def watch(self, told: Told) -> None:
        self.told = told

    def go_on(self) -> None:
        self._skipped += 1
        self._look()

    def nearest(self) -> tuple[np.ndarray, np.ndarray]:
        return self.token.nearest

    def retrieved(self, layers: np.ndarray, rows: np.ndarray, clusters: np.ndarray, tokens: float) -> np.ndarray:
        if not len(rows):
            return np.empty(0, bool)
        at = layers * self.rows + rows
        scores = self.token.scores[at]
        better = scores > scores[np.arange(len(at)), clusters][:, None]
        before = (better * self.members.held(at, scores.shape[1])).sum(1)
        return np.asarray(before < tokens)

    def split(self, splits: Sequence[tuple[int, ClusterSplit]]) -> SplitParts:
        if not splits:
            return SplitParts(np.empty((0, 2), np.int64), np.empty((0, 2)))
        return self.members.split([(layer * self.rows + split.row, split) for layer, split in splits], self.entry)

    def join(self, layers: np.ndarray, rows: np.ndarray, clusters: np.ndarray, *, waiting: bool) -> None:
        if len(rows):
            self.members.join(self.entry, layers * self.rows + rows, clusters, waiting=waiting)

    def group(self, tokens: int, clusters: int, first: int) -> tuple[np.ndarray, np.ndarray]:
        labels = self.cluster(slice(None), tokens, clusters, first)
        return self.table.counts[:, first : first + clusters].copy(), labels

    def best(self, tokens: float) -> np.ndarray:
        """bool[rows, clusters]: of the clusters as they are now, the ones that the query under way wants most, until
        they hold this many tokens."""
        scores = scored(self.table, slice(None), self.queries[:, self.entry])
        order = np.argsort(-scores, axis=1, kind="stable")
        held = np.take_along_axis(self.members.held(slice(None), scores.shape[1]), order, 1)
        found = np.zeros(scores.shape, bool)
        np.put_along_axis(found, order, (np.cumsum(held, axis=1) - held < tokens) & (held > 0), 1)
        return found

    def joined(self) -> np.ndarray:
        """int32[rows]: the cluster that the key under way is in; -1: none yet."""
        return np.where(self.members.waits[:, self.entry], -1, self.members.labels[:, self.entry])

    def recall(self, tokens: float) -> tuple[float, float]:
        """Returns two means over rows: how much of the `tokens` entries that the query under way wants most is in
        memory or in the clusters taken until they hold `tokens`; and the share of all entries that these clusters
        hold."""
        end, found = self.entry, self.best(tokens)
        wanted = best_entries(self.keys[:, :end], self.queries[:, end], max(1, round(tokens)))
        rows = np.arange(len(found))[:, None]
        labels = self.members.labels[rows, wanted]
        had = found[rows, np.maximum(labels, 0)] | (labels < 0) | self.members.waits[rows, wanted]
        held = (found * self.members.held(slice(None), found.shape[1])).sum(1)
        return float(had.mean()), float(held.mean() / end)

"""Algorithm 1 of DynaKV: clusters take new keys, and are split once they are in memory anyway."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from kvferry.layouts.cluster_layout import PlacedClusters
from kvferry.layouts.pieces import Pieces
from kvferry.policies.decode.retrieved_together import RetrievedTogether
from kvferry.policies.decode.splits import Clustered, ClusterSplit, SplitParts
from kvferry.policies.decode.waiting_keys import WaitingKeys

# Layers, rows and blocks, place by place.
At = tuple[np.ndarray, np.ndarray, np.ndarray]
# Says which of some blocks (layers, rows, blocks) were retrieved in this step.
Retrieved = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
# Splits by layer.
Splits = list[tuple[int, ClusterSplit]]
# A step's keys: the ones that join their block, the ones that wait for its split; and splits.
Decided = tuple[At, At, Splits]


class ClusterSplitting:
    """Algorithm 1 and what it remembers of clusters in `places`.

    ``variances`` float64[layers, rows, blocks]: of a cluster that nothing waits for, the variance of its keys.
    ``splits``, ``delayed`` (splits of what had been waiting) and ``moves`` (reads for want of room) count what happened
    since keys were skipped. ``unasked``: tokens of clusters that were read though no query wanted them, among skipped
    keys too, in rows that are decided about. `together`, if given, learns of each split.
    """

    def __init__(
        self,
        places: PlacedClusters,
        threshold: float,
        buffer_tokens: int,
        most_tokens: int | None,
        together: RetrievedTogether | None,
    ) -> None:
        self._places, self._multiple, self._most_waiting = places, threshold, max(buffer_tokens, 1)
        self._most_tokens = math.inf if most_tokens is None else most_tokens
        self._together = together
        self.variances = np.zeros(places.shape)
        self.thresholds = np.full(places.shape[:2], np.inf)
        self.waiting = WaitingKeys(places.shape)
        self.splits = self.delayed = self.moves = self.unasked = 0

    def filled(self, layer: int, found: Clustered) -> None:
        """Takes in the context's clusters of a layer."""
        self.variances[layer, :, : found.variances.shape[1]] = found.variances
        if math.isfinite(self._multiple):
            self.thresholds[layer] = self._multiple * found.variances.mean(1)
        for row, block in np.argwhere(found.tokens > self._most_tokens).tolist():
            self.waiting.flags(layer, row)[block] = 0

    def repeat(self, layers: Sequence[int], first: int) -> None:
        """These layers are as the `first` is."""
        self.variances[np.array(layers, np.int64)] = self.variances[first]
        self.waiting.repeat(layers, first)

    def decide(
        self, layers: np.ndarray, rows: np.ndarray, ids: np.ndarray, squared: np.ndarray, retrieved: Retrieved
    ) -> Decided:
        """One new key in each of these rows, all different: it is nearest to cluster `ids`, `squared` away from it."""
        place = layers, rows, ids
        over = self._over(place, squared)
        to_split, waits = self._retrieved(place, over, retrieved)
        reads = self._for_want_of_buffer(place, to_split)
        joins, splits = ~over, Splits()
        for n, blocks in to_split.items():
            layer, row, own = (int(of[n]) for of in place)
            free = int(self._places.room - self._places.counts(layer, row))
            for number, block in enumerate(blocks):
                # A key is split with its cluster; it need not have waited.
                with_key = block == own
                if with_key and waits[n]:
                    self.waiting.add((layer, row, own), -1)
                    waits[n] = False
                joins[n] &= not with_key
                new = self._places.room - free + number if number < free else None
                splits.append((layer, self._split(layer, row, block, new, with_key, (layer, row, block) in reads)))
        # A cluster without room for a key moves with it, so that all of it has to be there; not where what is behind it
        # moves instead, which differs between layers that are alike.
        lacks = np.flatnonzero(joins & ~(self._places.like.moves | self._places.fits(*place)))
        self.moves += len(lacks)
        if len(lacks):
            for n in lacks[~retrieved(*(of[lacks] for of in place))].tolist():
                joins[n] = False
                layer, row, own = (int(of[n]) for of in place)
                splits.append((layer, self._split(layer, row, own, None, True, True)))
                reads.append((layer, row, own))
        self.unasked += sum(int(self._places.tokens_of(*of)) for of in reads)
        return those(place, joins), those(place, waits), _beside(self._places, splits, retrieved)

    def _over(self, place: At, squared: np.ndarray) -> np.ndarray:
        """Returns bool: with which keys their clusters are beyond the threshold, and can be split."""
        n = self._places.tokens_of(*place)
        # UPDATEVAR: the mean squared distance to the mean, of one key more.
        self.variances[place] = after = n / (n + 1) * (self.variances[place] + squared / (n + 1))
        over = (after > self.thresholds[place[:2]]) | (n + self.waiting.counts[place] + 1 > self._most_tokens)
        if over.any():
            over &= self._places.counts(*place[:2]) < self._places.room
        return np.asarray(over)

    def _retrieved(self, place: At, over: np.ndarray, retrieved: Retrieved) -> tuple[dict[int, list[int]], np.ndarray]:
        """Returns what is split because it was retrieved, by position: clusters over the threshold now, or flagged
        before; and bool: which new keys wait, as their cluster was not retrieved."""
        layers, rows, ids = place
        waits, to_split = np.zeros(len(rows), bool), dict[int, list[int]]()
        beyond = np.flatnonzero(over).tolist()
        asked = [(n, int(ids[n])) for n in beyond]
        now = {*asked}
        asked += [one for one in self.waiting.flagged(layers, rows) if one not in now]
        if asked:
            at, blocks = (np.array(of) for of in zip(*asked, strict=True))
            here = retrieved(layers[at], rows[at], blocks)
            for n, block in zip(at[here].tolist(), blocks[here].tolist(), strict=True):
                to_split.setdefault(n, []).append(block)
            for n, is_here in zip(beyond, here[: len(beyond)].tolist(), strict=True):
                if not is_here:
                    waits[n] = True
                    self.waiting.add((int(layers[n]), int(rows[n]), int(ids[n])), 1)
        return to_split, waits

    def _for_want_of_buffer(self, place: At, to_split: dict[int, list[int]]) -> list[tuple[int, int, int]]:
        """Splits, where too many keys wait, the cluster that most wait for, too; returns what has to be read for it."""
        layers, rows, _ = place
        reads, most = [], self._most_waiting
        for n in self.waiting.full_rows(layers, rows, most):
            layer, row = int(layers[n]), int(rows[n])
            split = to_split.get(n, [])
            left = {block: keys for block, keys in self.waiting.flags(layer, row).items() if block not in split}
            if sum(left.values()) >= most:
                fullest = max(left, key=lambda block: left[block])
                to_split.setdefault(n, []).append(fullest)
                reads.append((layer, row, fullest))
        return reads

    def _split(self, layer: int, row: int, block: int, new: int | None, joins: bool, read: bool) -> ClusterSplit:
        keys = int(self._places.tokens_of(layer, row, block)) + int(self.waiting.counts[layer, row, block])
        return ClusterSplit(row, block, new, joins, keys + joins, read=read)

    def carry_out(self, splits: Splits, parts: SplitParts) -> list[Pieces]:
        """Enters splits in these layers, and what came of each; returns what becomes of the file, in this order."""
        changes: list[Pieces] = []
        each = zip(splits, parts.tokens.tolist(), parts.variances, strict=True)
        for n, ((layer, split), (stay, leave), variances) in enumerate(each):
            place = layer, split.row, split.block
            waited = int(self.waiting.counts[place])
            if waited:
                self.delayed += 1
                self.waiting.add(place, -waited)
            flags = self.waiting.flags(layer, split.row)
            flags.pop(split.block, None)
            self.variances[place] = variances[0]
            if split.new is None:
                changes.append(self._places.append(*place, tokens=stay - int(self._places.tokens_of(*place))))
                continue
            flags |= {
                of: 0 for of, n_tokens in ((split.block, stay), (split.new, leave)) if n_tokens > self._most_tokens
            }
            leaves = parts.leaves[n] if parts.leaves else None
            new, change = self._places.split(*place, stay, leave, leaves, split.beside)
            assert new == split.new, (new, split)
            self.variances[layer, split.row, new] = variances[1]
            if self._together is not None:
                self._together.split(layer, split.row, split.block, new)
            self.splits += 1
            changes.append(change)
        return changes


def _beside(places: PlacedClusters, splits: Splits, retrieved: Retrieved) -> Splits:
    """Returns the splits with the blocks that may pair with each new part and are wanted with it."""
    asked = [
        (n, layer, split.row, other)
        for n, (layer, split) in enumerate(splits)
        if split.new is not None
        for other in places.alone(layer, split.row)
    ]
    if not asked:
        return splits
    at, layers, rows, blocks = np.array(asked).T
    here = retrieved(layers, rows, blocks)
    near = [frozenset(blocks[here & (at == n)].tolist()) for n in range(len(splits))]
    return [(layer, replace(split, beside=of)) for (layer, split), of in zip(splits, near, strict=True)]


def those(place: At, flags: np.ndarray) -> At:
    """Returns the places that are flagged."""
    layers, rows, blocks = place
    return layers[flags], rows[flags], blocks[flags]

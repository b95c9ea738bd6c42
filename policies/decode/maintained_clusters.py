"""Clusters that new keys join, over a run: which keys they take, and when they are split (DynaKV Algorithm 1)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from kvferry.layouts.cluster_layout import PlacedClusters
from kvferry.layouts.layout import Places
from kvferry.layouts.pieces import Pieces
from kvferry.policies.decode.kept_clusters import BestAhead, KeptClusters, KeysAhead, Maintenance, OfStep
from kvferry.policies.decode.retrieved_together import RetrievedTogether
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.splits import Clustered, ClusterSplit, Joined, SplitParts
from kvferry.policies.decode.upkeep import Learned, Update
from kvferry.specs.errors import InputError

# Layers, rows and blocks, place by place.
At = tuple[np.ndarray, np.ndarray, np.ndarray]
# Says which of some blocks (layers, rows, blocks) were retrieved in this step.
Retrieved = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
# Splits by layer.
Splits = list[tuple[int, ClusterSplit]]
# Layer, row and both blocks of clusters that are to lie beside each other.
Pairs = list[tuple[int, int, int, int]]
# A step's keys: the ones that join their block, the ones that wait for its split; and splits.
Decided = tuple[At, At, Splits]


class MaintainedClusters(KeptClusters):
    """A run's clusters: every token of every row is in one of them, or waits in memory for one.

    ``variances`` float64[layers, rows, blocks] are Algorithm 1's: of a cluster that nothing waits for, the variance of
    its keys. ``waiting`` int64[layers, rows, blocks] counts the keys that wait. ``splits``, ``delayed`` (splits of what
    had been waiting) and ``moves`` (reads for want of room) count what happened since keys were skipped. ``unasked``:
    tokens of clusters that were read though no query wanted them, among skipped keys too, in rows that are decided
    about.
    """

    def __init__(
        self,
        places: PlacedClusters,
        *,
        threshold: float,
        buffer_tokens: int,
        most_tokens: int | None,
        paired_by: int = 0,
    ) -> None:
        super().__init__(places)
        self._multiple, self._buffer_tokens = threshold, buffer_tokens
        self._most_tokens = math.inf if most_tokens is None else most_tokens
        shape = places.shape
        self.variances = np.zeros(shape)
        self.waiting = np.zeros(shape, np.int64)
        self._waiting_in_row = np.zeros(shape[:2], np.int64)
        # By layer and row, how many keys wait for each cluster that is flagged: none for one that is too large as it
        # was made.
        self._flagged: dict[tuple[int, int], dict[int, int]] = {}
        self.thresholds = np.full(shape[:2], np.inf)
        self.splits = self.delayed = self.moves = self.unasked = 0
        self._decided: dict[int, Decided] = {}
        # Pairs are made by this (None: they stay), and by layer in this step.
        self._together = RetrievedTogether(shape, paired_by) if paired_by else None
        nowhere = np.empty(0, np.int64)
        if paired_by and places.partners(nowhere, nowhere) is None:
            raise InputError("policies.paired_by: pairs of clusters take `layout: dual-head`; 0 pairs none")
        self._pairs: dict[int, Pairs] = {}
        # Layers that a step did not decide about by themselves, and the one that they are like.
        self._alike: dict[int, int] = {}
        self._parts: dict[int, SplitParts] = {}

    def tokens_of(self, layer: int, blocks: BlockRows) -> np.ndarray:
        """Counts keys that wait for a block with it: they are in memory."""
        return self._n(layer, blocks.spread(np.arange(blocks.rows)), blocks.ids)

    def _n(self, layers: Places, rows: Places, blocks: Places) -> np.ndarray:
        """Returns the keys of clusters, with the waiting ones."""
        return self.places.tokens_of(layers, rows, blocks) + self.waiting[layers, rows, blocks]

    def filled(self, layer: int, found: Clustered) -> None:
        super().filled(layer, found)
        self.variances[layer, :, : found.variances.shape[1]] = found.variances
        if math.isfinite(self._multiple):
            self.thresholds[layer] = self._multiple * found.variances.mean(1)
        for row, block in np.argwhere(found.tokens > self._most_tokens).tolist():
            self._flags(layer, row)[block] = 0

    def maintain(self, layer: int, ids: np.ndarray | None, squared: np.ndarray | None, found: Lookup) -> Maintenance:
        return self.maintain_each([OfStep(layer, ids, squared, found)])[0]

    def maintain_each(self, steps: Sequence[OfStep]) -> Sequence[Maintenance]:
        wanted = {step.layer: step.found.wanted for step in steps}
        by_row: dict[tuple[int, int], frozenset[int]] = {}

        def retrieved(layers: np.ndarray, rows: np.ndarray, blocks: np.ndarray) -> np.ndarray:
            """Rows are few, and asked for a few blocks each."""
            places = list(zip(layers.tolist(), rows.tolist(), strict=True))
            for layer, row in set(places) - by_row.keys():
                by_row[layer, row] = frozenset(wanted[layer].row(row).tolist())
            return np.array([block in by_row[at] for at, block in zip(places, blocks.tolist(), strict=True)], bool)

        n_rows = self.places.shape[1]
        layers, rows = np.repeat(list(wanted), n_rows), np.tile(np.arange(n_rows), len(steps))
        ids, squared = (np.concatenate(of) for of in zip(*((step.ids, step.squared) for step in steps), strict=True))
        joins, waits, splits = self.decide(layers, rows, ids, squared, retrieved)
        for layer in wanted:
            own = [(of, split) for of, split in splits if of == layer]
            self._decided[layer] = _those(joins, joins[0] == layer), _those(waits, waits[0] == layer), own
        if self._together is not None:
            here = np.zeros((len(rows), self.places.room), bool)
            for n, blocks in enumerate(wanted.values()):
                here[n * n_rows : (n + 1) * n_rows][blocks.places] = True
            pairs = self._paired(self._together, layers, rows, here, splits)
            self._pairs |= {layer: [pair for pair in pairs if pair[0] == layer] for layer in wanted}
        return [tuple(split for _, split in self._decided[layer][2]) for layer in wanted]

    def maintain_like(self, layers: Sequence[int], first: int) -> None:
        at = np.array(layers, np.int64)
        for of_layers in (self.variances, self.waiting, self._waiting_in_row):
            of_layers[at] = of_layers[first]
        for row in range(self.places.shape[1]):
            flags = self._flags(first, row)
            for layer in layers:
                self._flagged[layer, row] = dict(flags)
        for layer in layers:
            self._alike[layer] = first

    def maintained(self, layer: int, found: SplitParts | Clustered) -> None:
        assert isinstance(found, SplitParts)
        self._parts[layer] = found

    def append(self, learned: Learned) -> Update:
        layers = range(self.places.shape[0])
        changes, decided = list[Pieces](), [self._decided[self._alike.get(layer, layer)] for layer in layers]
        for layer, (_, _, splits) in enumerate(decided):
            if splits:
                changes += self.carry_out([(layer, split) for _, split in splits], self._parts.pop(layer))
        pairs = [self._pairs.get(self._alike.get(layer, layer), []) for layer in layers]
        changes += [self.places.pair(layer, *pair) for layer, of_layer in enumerate(pairs) for _, *pair in of_layer]
        joins = [(layer, rows, blocks) for layer, ((_, rows, blocks), _, _) in enumerate(decided) if len(rows)]
        if joins and not self.places.like.moves:
            # All layers at once: none gets in another one's way.
            at, of_rows, of_blocks = zip(*joins, strict=True)
            each = np.repeat(at, [len(rows) for rows in of_rows])
            changes.append(self.places.grow(each, np.concatenate(of_rows), np.concatenate(of_blocks)))
        else:
            changes += [self.places.grow(np.full_like(rows, layer), rows, blocks) for layer, rows, blocks in joins]
        joined, made, changed = list[list[Joined]](), list[list[tuple[int, int]]](), list[BlockRows]()
        for layer, ((_, rows, blocks), (_, late_rows, late), splits) in enumerate(decided):
            if (first := self._alike.get(layer)) is not None:
                joined.append(joined[first])
                made.append(made[first])
                changed.append(changed[first])
                continue
            places = list(zip(rows.tolist(), blocks.tolist(), strict=True))
            waits = [Joined(row, block, True) for row, block in zip(late_rows.tolist(), late.tolist(), strict=True)]
            joined.append([*(Joined(row, block) for row, block in places), *waits])
            made.append([part for _, split in splits for part in split.parts])
            again = [(row, block) for _, row, *both in pairs[layer] for block in both]
            changed.append(BlockRows.of({*places, *again}, self.places.shape[1]))
        self._alike.clear()
        self._decided.clear()
        self._pairs.clear()
        return Update(changed=changed, joined=joined, made=made, changes=Pieces.in_turns(changes))

    def skip(self, tokens: int, stored: int, keys: KeysAhead, wanted: Callable[[int], float]) -> None:
        layers, rows, _ = self.places.shape
        of_kinds = np.repeat(np.arange(keys.kinds), rows), np.tile(np.arange(rows), keys.kinds)
        # By kind, the layers that are like it.
        alike = [np.arange(kind, layers, keys.kinds) for kind in range(keys.kinds)]
        for token in range(tokens):
            keys.go_on()
            retrieved = partial(keys.retrieved, tokens=wanted(stored + token))
            joins, waits, splits = self.decide(*of_kinds, *keys.nearest(), retrieved)
            parts = keys.split(splits)
            keys.join(*joins, waiting=False)
            keys.join(*waits, waiting=True)
            # The same in all layers of each kind.
            times = [len(alike[of]) for of, _ in splits]
            leaves = [leave for leave, n in zip(parts.leaves, times, strict=True) for _ in range(n)]
            tokens_of, variances = (np.repeat(of, times, axis=0) for of in (parts.tokens, parts.variances))
            everywhere = [(int(layer), split) for of, split in splits for layer in alike[of]]
            self.carry_out(everywhere, SplitParts(tokens_of, variances, leaves))
            if self._together is not None:
                assert isinstance(keys, BestAhead)
                best = keys.best(wanted(stored + token))
                here = np.pad(best, ((0, 0), (0, self.places.room - best.shape[1])))
                for kind, *pair in self._paired(self._together, *of_kinds, here, splits):
                    for layer in alike[kind]:
                        self.places.pair(int(layer), *pair)
            if len(joins[0]):
                each = [len(alike[of]) for of in joins[0]]
                of_layers = np.concatenate([alike[of] for of in joins[0]])
                self.places.grow(of_layers, np.repeat(joins[1], each), np.repeat(joins[2], each))
        kinds = np.arange(layers) % keys.kinds
        self.variances, self.waiting = self.variances[kinds], self.waiting[kinds]
        self._waiting_in_row = self._waiting_in_row[kinds]
        if self._together is not None:
            self._together.bits = self._together.bits[kinds]
        for layer, row in np.ndindex(layers, rows):
            self._flagged[layer, row] = dict(self._flags(int(kinds[layer]), row))
        self.splits = self.delayed = self.moves = 0

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

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
            free = int(self.places.room - self.places.counts(layer, row))
            for number, block in enumerate(blocks):
                # A key is split with its cluster; it need not have waited.
                with_key = block == own
                if with_key and waits[n]:
                    self._wait((layer, row, own), -1)
                    waits[n] = False
                joins[n] &= not with_key
                new = self.places.room - free + number if number < free else None
                splits.append((layer, self._split(layer, row, block, new, with_key, (layer, row, block) in reads)))
        # A cluster without room for a key moves with it, so that all of it has to be there; not where what is behind it
        # moves instead, which differs between layers that are alike.
        lacks = np.flatnonzero(joins & ~(self.places.like.moves | self.places.fits(*place)))
        self.moves += len(lacks)
        if len(lacks):
            for n in lacks[~retrieved(*(of[lacks] for of in place))].tolist():
                joins[n] = False
                layer, row, own = (int(of[n]) for of in place)
                splits.append((layer, self._split(layer, row, own, None, True, True)))
                reads.append((layer, row, own))
        self.unasked += sum(int(self.places.tokens_of(*of)) for of in reads)
        return _those(place, joins), _those(place, waits), self._beside(splits, retrieved)

    def _paired(
        self, together: RetrievedTogether, layers: np.ndarray, rows: np.ndarray, here: np.ndarray, splits: Splits
    ) -> Pairs:
        """Returns pairs that clusters are to make which are `here`, in memory, bool[n, blocks], and are not split in
        this step."""
        together.see(layers, rows, here)
        partner = self.places.partners(layers, rows)
        assert partner is not None
        whole, at = here.copy(), layers * self.places.shape[1] + rows
        for layer, split in splits:
            whole[at == layer * self.places.shape[1] + split.row, split.block] = False
        found = together.pairs(layers, rows, whole, partner)
        return [(int(layers[n]), int(rows[n]), one, other) for n, one, other in found]

    def _beside(self, splits: Splits, retrieved: Retrieved) -> Splits:
        """Returns the splits with the blocks that may pair with each new part and are wanted with it."""
        asked = [
            (n, layer, split.row, other)
            for n, (layer, split) in enumerate(splits)
            if split.new is not None
            for other in self.places.alone(layer, split.row)
        ]
        if not asked:
            return splits
        at, layers, rows, blocks = np.array(asked).T
        here = retrieved(layers, rows, blocks)
        near = [frozenset(blocks[here & (at == n)].tolist()) for n in range(len(splits))]
        return [(layer, replace(split, beside=of)) for (layer, split), of in zip(splits, near, strict=True)]

    def _over(self, place: At, squared: np.ndarray) -> np.ndarray:
        """Returns bool: with which keys their clusters are beyond the threshold, and can be split."""
        n = self.places.tokens_of(*place)
        # UPDATEVAR: the mean squared distance to the mean, of one key more.
        self.variances[place] = after = n / (n + 1) * (self.variances[place] + squared / (n + 1))
        over = (after > self.thresholds[place[:2]]) | (n + self.waiting[place] + 1 > self._most_tokens)
        if over.any():
            over &= self.places.counts(*place[:2]) < self.places.room
        return np.asarray(over)

    def _retrieved(self, place: At, over: np.ndarray, retrieved: Retrieved) -> tuple[dict[int, list[int]], np.ndarray]:
        """Returns what is split because it was retrieved, by position: clusters over the threshold now, or flagged
        before; and bool: which new keys wait, as their cluster was not retrieved."""
        layers, rows, ids = place
        waits, to_split = np.zeros(len(rows), bool), dict[int, list[int]]()
        beyond = np.flatnonzero(over).tolist()
        asked = [(n, int(ids[n])) for n in beyond]
        for n, flags in enumerate(map(self._flags, layers.tolist(), rows.tolist())):
            asked += [(n, block) for block in flags if not (over[n] and block == ids[n])]
        if asked:
            at, blocks = (np.array(of) for of in zip(*asked, strict=True))
            here = retrieved(layers[at], rows[at], blocks)
            for n, block in zip(at[here].tolist(), blocks[here].tolist(), strict=True):
                to_split.setdefault(n, []).append(block)
            for n, is_here in zip(beyond, here[: len(beyond)].tolist(), strict=True):
                if not is_here:
                    waits[n] = True
                    self._wait((int(layers[n]), int(rows[n]), int(ids[n])), 1)
        return to_split, waits

    def _for_want_of_buffer(self, place: At, to_split: dict[int, list[int]]) -> list[tuple[int, int, int]]:
        """Splits, where too many keys wait, the cluster that most wait for, too; returns what has to be read for it."""
        layers, rows, _ = place
        reads, most = [], max(self._buffer_tokens, 1)
        for n in np.flatnonzero(self._waiting_in_row[layers, rows] >= most).tolist():
            layer, row = int(layers[n]), int(rows[n])
            split = to_split.get(n, [])
            left = {block: keys for block, keys in self._flagged[layer, row].items() if block not in split}
            if sum(left.values()) >= most:
                fullest = max(left, key=lambda block: left[block])
                to_split.setdefault(n, []).append(fullest)
                reads.append((layer, row, fullest))
        return reads

    def _wait(self, place: tuple[int, int, int], keys: int) -> None:
        """Notes that `keys` more wait in a place."""
        layer, row, block = place
        self.waiting[place] += keys
        self._waiting_in_row[layer, row] += keys
        flags = self._flags(layer, row)
        flags[block] = flags.get(block, 0) + keys
        if not flags[block]:
            del flags[block]

    def _flags(self, layer: int, row: int) -> dict[int, int]:
        return self._flagged.setdefault((layer, row), {})

    def _split(self, layer: int, row: int, block: int, new: int | None, joins: bool, read: bool) -> ClusterSplit:
        return ClusterSplit(row, block, new, joins, int(self._n(layer, row, block)) + joins, read=read)

    def carry_out(self, splits: Splits, parts: SplitParts) -> list[Pieces]:
        """Enters splits in these layers, and what came of each; returns what becomes of the file, in this order."""
        changes: list[Pieces] = []
        each = zip(splits, parts.tokens.tolist(), parts.variances, strict=True)
        for n, ((layer, split), (stay, leave), variances) in enumerate(each):
            place = layer, split.row, split.block
            waited = int(self.waiting[place])
            if waited:
                self.delayed += 1
                self._wait(place, -waited)
            flags = self._flags(layer, split.row)
            flags.pop(split.block, None)
            self.variances[place] = variances[0]
            if split.new is None:
                changes.append(self.places.append(*place, tokens=stay - int(self.places.tokens_of(*place))))
                continue
            flags |= {
                of: 0 for of, n_tokens in ((split.block, stay), (split.new, leave)) if n_tokens > self._most_tokens
            }
            leaves = parts.leaves[n] if parts.leaves else None
            new, change = self.places.split(*place, stay, leave, leaves, split.beside)
            assert new == split.new, (new, split)
            self.variances[layer, split.row, new] = variances[1]
            if self._together is not None:
                self._together.split(layer, split.row, split.block, new)
            self.splits += 1
            changes.append(change)
        return changes


def _those(place: At, flags: np.ndarray) -> At:
    layers, rows, blocks = place
    return layers[flags], rows[flags], blocks[flags]

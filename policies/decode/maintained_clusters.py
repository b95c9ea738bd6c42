"""Clusters that new keys join, over a run: which keys they take, and when they are split (DynaKV Algorithm 1)."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from kvferry.layouts.cluster_layout import PlacedClusters
from kvferry.layouts.pieces import Pieces
from kvferry.policies.decode.cluster_splitting import ClusterSplitting, Decided, those
from kvferry.policies.decode.kept_clusters import BestAhead, KeptClusters, KeysAhead, Maintenance, OfStep
from kvferry.policies.decode.retrieved_together import Pairs, RetrievedTogether
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.splits import Clustered, Joined, SplitParts
from kvferry.policies.decode.upkeep import Learned, Update
from kvferry.specs.errors import InputError


class MaintainedClusters(KeptClusters):
    """A run's clusters: every token of every row is in one of them, or waits in memory for one.

    `splitting` decides which keys join, which wait and which clusters are split. With `paired_by` clusters in memory
    are paired anew by what that many last tokens retrieved.
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
        self._decided: dict[int, Decided] = {}
        # Pairs are made by this (None: they stay), and by layer in this step.
        self._together = RetrievedTogether(places.shape, paired_by) if paired_by else None
        nowhere = np.empty(0, np.int64)
        if paired_by and places.partners(nowhere, nowhere) is None:
            raise InputError("policies.paired_by: pairs of clusters take `layout: dual-head`; 0 pairs none")
        self._pairs: dict[int, Pairs] = {}
        # Layers that a step did not decide about by themselves, and the one that they are like.
        self._alike: dict[int, int] = {}
        self._parts: dict[int, SplitParts] = {}
        self.splitting = ClusterSplitting(places, threshold, buffer_tokens, most_tokens, self._together)

    def tokens_of(self, layer: int, blocks: BlockRows) -> np.ndarray:
        """Counts keys that wait for a block with it: they are in memory."""
        rows = blocks.spread(np.arange(blocks.rows))
        return super().tokens_of(layer, blocks) + self.splitting.waiting.counts[layer, rows, blocks.ids]

    def filled(self, layer: int, found: Clustered) -> None:
        super().filled(layer, found)
        self.splitting.filled(layer, found)

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
        joins, waits, splits = self.splitting.decide(layers, rows, ids, squared, retrieved)
        for layer in wanted:
            own = [(of, split) for of, split in splits if of == layer]
            self._decided[layer] = those(joins, joins[0] == layer), those(waits, waits[0] == layer), own
        if self._together is not None:
            here = np.zeros((len(rows), self.places.room), bool)
            for n, blocks in enumerate(wanted.values()):
                here[n * n_rows : (n + 1) * n_rows][blocks.places] = True
            pairs = self._together.paired(self.places, layers, rows, here, splits)
            self._pairs |= {layer: [pair for pair in pairs if pair[0] == layer] for layer in wanted}
        return [tuple(split for _, split in self._decided[layer][2]) for layer in wanted]

    def maintain_like(self, layers: Sequence[int], first: int) -> None:
        self.splitting.repeat(layers, first)
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
                changes += self.splitting.carry_out([(layer, split) for _, split in splits], self._parts.pop(layer))
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
        with self.places.ahead(keys.kinds):
            self._go_on(tokens, stored, keys, wanted)
        for kind in range(keys.kinds):
            like = list(range(kind, self.places.shape[0], keys.kinds))
            self.splitting.repeat(like[1:], kind)
            if self._together is not None:
                self._together.bits[like] = self._together.bits[kind]
        self.splitting.splits = self.splitting.delayed = self.splitting.moves = 0

    def _go_on(self, tokens: int, stored: int, keys: KeysAhead, wanted: Callable[[int], float]) -> None:
        """Skips tokens in the first layer of each kind."""
        rows = self.places.shape[1]
        of_kinds = np.repeat(np.arange(keys.kinds), rows), np.tile(np.arange(rows), keys.kinds)
        for token in range(tokens):
            keys.go_on()
            retrieved = partial(keys.retrieved, tokens=wanted(stored + token))
            joins, waits, splits = self.splitting.decide(*of_kinds, *keys.nearest(), retrieved)
            parts = keys.split(splits)
            keys.join(*joins, waiting=False)
            keys.join(*waits, waiting=True)
            self.splitting.carry_out(splits, parts)
            if self._together is not None:
                assert isinstance(keys, BestAhead)
                best = keys.best(wanted(stored + token))
                here = np.pad(best, ((0, 0), (0, self.places.room - best.shape[1])))
                for pair in self._together.paired(self.places, *of_kinds, here, splits):
                    self.places.pair(*pair)
            if len(joins[0]):
                self.places.grow(*joins)

"""Clusters that new keys join, over a run: which keys they take, and when they are cut (DynaKV Algorithm 1)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kvferry.layouts.cluster_layout import PlacedClusters
from kvferry.layouts.layout import Places
from kvferry.layouts.pieces import Change
from kvferry.policies.decode.cuts import Clustered, Cut, Divided, Joined
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.tending import KeptClusters, KeysAhead, Tending
from kvferry.policies.decode.upkeep import Learned, Update

# Layers, rows and blocks, place by place.
At = tuple[np.ndarray, np.ndarray, np.ndarray]
# Says which of some blocks (layers, rows, blocks) were retrieved in this step.
Retrieved = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(eq=False)
class Decision:
    """Says what becomes of a step's keys, in some rows: places are (layer, row, block). ``joins`` and ``waits``: keys
    that join their block, and keys that wait for its cut. ``cuts`` by layer. ``reads``: what was not retrieved and is
    changed as a whole all the same."""

    joins: At
    waits: At
    cuts: list[tuple[int, Cut]]
    reads: list[tuple[int, int, int]]

    def of(self, layer: int) -> "Decision":
        """Returns the same in another layer, of one layer's."""
        joins, waits = ((np.full_like(of[0], layer), *of[1:]) for of in (self.joins, self.waits))
        reads = [(layer, row, block) for _, row, block in self.reads]
        return Decision(joins, waits, [(layer, cut) for _, cut in self.cuts], reads)


class TendedClusters(KeptClusters):
    """A run's clusters: every token of every row is in one of them, or waits in memory for one.

    ``variances`` float64[layers, rows, blocks] are Algorithm 1's: of a cluster that nothing waits for, the variance of
    its keys. ``waiting`` int64[layers, rows, blocks] counts the keys that wait. ``splits``, ``delayed`` (splits of what
    had been waiting), ``forced`` (of them, those for want of buffer), ``moves`` (reads for want of room) and ``uncut``
    (keys that joined a cluster beyond the threshold, as the row has room for no more clusters) count what happened
    since keys were skipped. ``unasked``: tokens of clusters that were read though no query wanted them, among skipped
    keys too, in rows that are decided about.
    """

    def __init__(
        self, places: PlacedClusters, *, threshold: float, buffer_tokens: int, most_tokens: int | None
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
        self.splits = self.delayed = self.forced = self.moves = self.uncut = 0
        self.unasked = 0
        self._decided: dict[int, Decision] = {}
        # Layers that a step did not decide about by themselves, and the one that they are like.
        self._alike: dict[int, int] = {}
        self._outcomes: dict[int, Divided] = {}

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

    def tend(self, layer: int, ids: np.ndarray | None, squared: np.ndarray | None, found: Lookup) -> Tending | None:
        assert ids is not None and squared is not None
        by_row: dict[int, frozenset[int]] = {}

        def retrieved(_: np.ndarray, rows: np.ndarray, blocks: np.ndarray) -> np.ndarray:
            """Rows are few, and asked for a few blocks each."""
            pairs = list(zip(rows.tolist(), blocks.tolist(), strict=True))
            for row in {row for row, _ in pairs} - by_row.keys():
                by_row[row] = frozenset(found.wanted.row(row).tolist())
            return np.array([block in by_row[row] for row, block in pairs], bool)

        rows = np.arange(len(ids))
        self._decided[layer] = decision = self.decide(np.full(len(ids), layer), rows, ids, squared, retrieved)
        if not decision.cuts:
            return None
        cuts = tuple(cut for _, cut in decision.cuts)
        read = BlockRows.of([(row, block) for _, row, block in decision.reads], len(ids)) if decision.reads else None
        return Tending(cuts, read)

    def tended_like(self, layer: int, first: int) -> None:
        for of_layers in (self.variances, self.waiting, self._waiting_in_row):
            of_layers[layer] = of_layers[first]
        for row in range(self.places.shape[1]):
            self._flagged[layer, row] = dict(self._flags(first, row))
        self._decided[layer] = self._decided[first].of(layer)
        self._alike[layer] = first

    def outcome(self, layer: int, found: Divided | Clustered) -> None:
        assert isinstance(found, Divided)
        self._outcomes[layer] = found

    def append(self, learned: Learned) -> Update:
        changes, decisions = list[Change](), [self._decided.pop(layer) for layer in range(self.places.shape[0])]
        for layer, decision in enumerate(decisions):
            if decision.cuts:
                changes += self.carry_out(decision.cuts, self._outcomes.pop(layer))
        joins = [decision.joins for decision in decisions if len(decision.joins[0])]
        if joins and not self.places.like.moves:
            # All layers at once: none gets in another one's way.
            joins = [tuple(np.concatenate(of) for of in zip(*joins, strict=True))]  # type: ignore[list-item]
        changes += [self.places.grow(*of_layers) for of_layers in joins]
        joined, changed = list[Sequence[Joined | Cut]](), list[BlockRows]()
        for layer, decision in enumerate(decisions):
            if (first := self._alike.get(layer)) is not None:
                joined.append(joined[first])
                changed.append(changed[first])
                continue
            cuts = [cut for _, cut in decision.cuts]
            (_, rows, blocks), (_, late_rows, late) = decision.joins, decision.waits
            plain = [Joined(row, block) for row, block in zip(rows.tolist(), blocks.tolist(), strict=True)]
            waits = [Joined(row, block, True) for row, block in zip(late_rows.tolist(), late.tolist(), strict=True)]
            joined.append([*cuts, *plain, *waits])
            of_cuts = [(cut.row, block) for cut in cuts for block in (cut.block, cut.new) if block is not None]
            changed.append(BlockRows.of([*of_cuts, *((one.row, one.block) for one in plain)], self.places.shape[1]))
        self._alike.clear()
        return Update(changed=changed, joined=joined, changes=Change.in_order(changes))

    def skip(self, tokens: int, stored: int, keys: KeysAhead, wanted: Callable[[int], float]) -> None:
        layers, rows, _ = self.places.shape
        of_kinds = np.repeat(np.arange(keys.kinds), rows), np.tile(np.arange(rows), keys.kinds)
        # By kind, the layers that are like it.
        alike = [np.arange(kind, layers, keys.kinds) for kind in range(keys.kinds)]
        for token in range(tokens):
            keys.go_on()
            retrieved = partial(keys.retrieved, tokens=wanted(stored + token))
            decision = self.decide(*of_kinds, *keys.nearest(), retrieved)
            divided = keys.cut(decision.cuts)
            keys.join(*decision.joins, waiting=False)
            keys.join(*decision.waits, waiting=True)
            cuts, joins = _everywhere(decision, alike)
            times = [len(alike[of]) for of, _ in decision.cuts]
            leaves = [leave for leave, n in zip(divided.leaves, times, strict=True) for _ in range(n)]
            tokens_of, variances = (np.repeat(of, times, axis=0) for of in (divided.tokens, divided.variances))
            self.carry_out(cuts, Divided(tokens_of, variances, leaves))
            if len(joins[0]):
                self.places.grow(*joins)
        kinds = np.arange(layers) % keys.kinds
        self.variances, self.waiting = self.variances[kinds], self.waiting[kinds]
        self._waiting_in_row = self._waiting_in_row[kinds]
        for layer, row in np.ndindex(layers, rows):
            self._flagged[layer, row] = dict(self._flags(int(kinds[layer]), row))
        self.splits = self.delayed = self.forced = self.moves = self.uncut = 0

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

    def decide(
        self, layers: np.ndarray, rows: np.ndarray, ids: np.ndarray, squared: np.ndarray, retrieved: Retrieved
    ) -> Decision:
        """One new key in each of these rows, all different: it is nearest to cluster `ids`, `squared` away from it."""
        place = layers, rows, ids
        over = self._over(place, squared)
        to_cut, waits = self._retrieved(place, over, retrieved)
        reads = self._for_want_of_buffer(place, to_cut)
        joins, cuts = ~over, list[tuple[int, Cut]]()
        for n, blocks in to_cut.items():
            layer, row, own = (int(of[n]) for of in place)
            free = int(self.places.room - self.places.counts(layer, row))
            for number, block in enumerate(blocks):
                # A key is cut with its cluster; it need not have waited.
                with_key = block == own
                if with_key and waits[n]:
                    self._wait((layer, row, own), -1)
                    waits[n] = False
                joins[n] &= not with_key
                new = self.places.room - free + number if number < free else None
                cuts.append((layer, self._cut(layer, row, block, new, with_key)))
        # A key that joins a cluster without room moves with it, so that all of it has to be there.
        lacks = np.flatnonzero(joins)[~self.places.fits(*(of[joins] for of in place))]
        self.moves += len(lacks)
        if len(lacks):
            for n in lacks[~retrieved(*(of[lacks] for of in place))].tolist():
                joins[n] = False
                layer, row, own = (int(of[n]) for of in place)
                cuts.append((layer, self._cut(layer, row, own, None, True)))
                reads.append((layer, row, own))
        self.unasked += sum(int(self.places.tokens_of(*of)) for of in reads)
        return Decision(_those(place, joins), _those(place, waits), self._beside(cuts, retrieved), reads)

    def _beside(self, cuts: list[tuple[int, Cut]], retrieved: Retrieved) -> list[tuple[int, Cut]]:
        """Returns the cuts with the blocks that may pair with each new part and are wanted with it."""
        asked = [
            (n, layer, cut.row, other)
            for n, (layer, cut) in enumerate(cuts)
            if cut.new is not None
            for other in self.places.alone(layer, cut.row)
        ]
        if not asked:
            return cuts
        at, layers, rows, blocks = np.array(asked).T
        here = retrieved(layers, rows, blocks)
        near = [frozenset(blocks[here & (at == n)].tolist()) for n in range(len(cuts))]
        return [(layer, replace(cut, beside=of)) for (layer, cut), of in zip(cuts, near, strict=True)]

    def _over(self, place: At, squared: np.ndarray) -> np.ndarray:
        """Returns bool: with which keys their clusters are beyond the threshold, and can be cut."""
        n = self.places.tokens_of(*place)
        # UPDATEVAR: the mean squared distance to the mean, of one key more.
        self.variances[place] = after = n / (n + 1) * (self.variances[place] + squared / (n + 1))
        over = (after > self.thresholds[place[:2]]) | (n + self.waiting[place] + 1 > self._most_tokens)
        if over.any():
            full = over & (self.places.counts(*place[:2]) >= self.places.room)
            self.uncut += int(full.sum())
            over &= ~full
        return np.asarray(over)

    def _retrieved(self, place: At, over: np.ndarray, retrieved: Retrieved) -> tuple[dict[int, list[int]], np.ndarray]:
        """Returns what is cut because it was retrieved, by position: clusters over the threshold now, or flagged
        before; and bool: which new keys wait, as their cluster was not retrieved."""
        layers, rows, ids = place
        waits, to_cut = np.zeros(len(rows), bool), dict[int, list[int]]()
        beyond = np.flatnonzero(over).tolist()
        asked = [(n, int(ids[n])) for n in beyond]
        for n, flags in enumerate(map(self._flags, layers.tolist(), rows.tolist())):
            asked += [(n, block) for block in flags if not (over[n] and block == ids[n])]
        if asked:
            at, blocks = (np.array(of) for of in zip(*asked, strict=True))
            here = retrieved(layers[at], rows[at], blocks)
            for n, block in zip(at[here].tolist(), blocks[here].tolist(), strict=True):
                to_cut.setdefault(n, []).append(block)
            for n, is_here in zip(beyond, here[: len(beyond)].tolist(), strict=True):
                if not is_here:
                    waits[n] = True
                    self._wait((int(layers[n]), int(rows[n]), int(ids[n])), 1)
        return to_cut, waits

    def _for_want_of_buffer(self, place: At, to_cut: dict[int, list[int]]) -> list[tuple[int, int, int]]:
        """Cuts, where too many keys wait, the cluster that most wait for, too; returns what has to be read for it."""
        layers, rows, _ = place
        reads, most = [], max(self._buffer_tokens, 1)
        for n in np.flatnonzero(self._waiting_in_row[layers, rows] >= most).tolist():
            layer, row = int(layers[n]), int(rows[n])
            cut = to_cut.get(n, [])
            left = {block: keys for block, keys in self._flagged[layer, row].items() if block not in cut}
            if sum(left.values()) >= most:
                fullest = max(left, key=lambda block: left[block])
                to_cut.setdefault(n, []).append(fullest)
                reads.append((layer, row, fullest))
                self.forced += 1
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

    def _cut(self, layer: int, row: int, block: int, new: int | None, joins: bool) -> Cut:
        place = layer, row, block
        return Cut(row, block, new, joins, int(self._n(*place)) + joins)

    def carry_out(self, cuts: Sequence[tuple[int, Cut]], divided: Divided) -> list[Change]:
        """Enters cuts in these layers, and what came of each; returns what becomes of the file, in this order."""
        changes: list[Change] = []
        parts = zip(cuts, divided.tokens.tolist(), divided.variances, strict=True)
        for n, ((layer, cut), (stay, leave), of_parts) in enumerate(parts):
            place = layer, cut.row, cut.block
            waited = int(self.waiting[place])
            if waited:
                self.delayed += 1
                self._wait(place, -waited)
            flags = self._flags(layer, cut.row)
            flags.pop(cut.block, None)
            self.variances[place] = of_parts[0]
            if cut.new is not None:
                flags |= {
                    of: 0 for of, n_tokens in ((cut.block, stay), (cut.new, leave)) if n_tokens > self._most_tokens
                }
            if cut.new is None:
                changes.append(self.places.append(*place, tokens=stay - int(self.places.tokens_of(*place))))
                continue
            leaves = divided.leaves[n] if divided.leaves else None
            new, change = self.places.split(*place, stay, leave, leaves, cut.beside)
            assert new == cut.new, (new, cut)
            self.variances[layer, cut.row, new] = of_parts[1]
            self.splits += 1
            changes.append(change)
        return changes


def _those(place: At, flags: np.ndarray) -> At:
    layers, rows, blocks = place
    return layers[flags], rows[flags], blocks[flags]


def _everywhere(decision: Decision, alike: Sequence[np.ndarray]) -> tuple[list[tuple[int, Cut]], At]:
    """Cuts and joins that were decided for one layer of each kind, for all layers that are like it."""
    layers, rows, blocks = decision.joins
    each = [len(alike[layer]) for layer in layers]
    everywhere = np.concatenate([alike[layer] for layer in layers]) if each else layers
    cuts = [(int(layer), cut) for of, cut in decision.cuts for layer in alike[of]]
    return cuts, (everywhere, np.repeat(rows, each), np.repeat(blocks, each))

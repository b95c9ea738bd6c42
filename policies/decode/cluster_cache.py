"""A cache of clusters, which differ in size: what of them stays in memory (DynaKV 6.2)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from kvferry.policies.decode.read_ahead import ReadAhead
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.slot_table import Resident

# The order in which clusters leave. ``fifo``: as they came; ``lru``: not wanted for longest; ``lfu``: wanted most
# rarely since they came. ``cluster-aligned``: the large ones, where clusters wanted lately count for more, as in
# GreedyDual-Size (Cao and Irani, USITS 1997) with equal costs: a read is a command, whatever its length.
Replacement = Literal["fifo", "lru", "lfu", "cluster-aligned"]
# A cluster that was updated is wanted soon if at all (DynaKV, Tab. 2).
RECENT_STEPS = 16
# Greatest for what is worth most; the last one counts first.
_VALUES: dict[Replacement, tuple[str, ...]] = {
    "fifo": ("_came",),
    "lru": ("_wanted",),
    "lfu": ("_wanted", "_times"),
    "cluster-aligned": ("_wanted", "_worth"),
}


class ClusterCache(Resident):
    """One layer's cache: every row keeps clusters of up to ``capacity_tokens`` together, from one look-up to the next.

    What a step wants is in memory until the next one; then clusters leave, as `replacement` says, until the rest fits.
    With ``cluster-aligned`` those stay before all others that were updated in the last steps, as far as
    ``reserved_share`` of the cache has room for them.

    Clusters that change stay: what is new of them is in memory at that time. A slot is the number of its block.
    """

    def __init__(
        self,
        rows: int,
        blocks: int,
        capacity_tokens: int,
        replacement: Replacement = "lru",
        reserved_share: float = 0.0,
        block_tokens: int = 1,
    ) -> None:
        self.rows, self.blocks, self.capacity_tokens = rows, blocks, capacity_tokens
        self._replacement, self._block_tokens = replacement, block_tokens
        self._reserved = reserved_share * capacity_tokens
        n = rows * blocks
        # Flat [rows * blocks]: what is there, tokens, and by the count of look-ups when each came, was wanted last and
        # was updated last; how often it was wanted, and what it is worth by its size.
        self._held = np.zeros(n, bool)
        # Kept elsewhere, and not there at the next look-up.
        self._away = np.zeros(n, bool)
        self._size = np.zeros(n, np.int64)
        self._came, self._wanted = np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._updated = np.full(n, -RECENT_STEPS - 1, np.int64)
        self._times = np.zeros(n, np.int64)
        self._worth = np.zeros(n)
        # By row, the worth of what left last: what is worth less has not been wanted since.
        self._least = np.zeros(rows)
        self._now = 0
        self._settled = True
        self._dropped: list[np.ndarray] = []

    def look_up(self, wanted: BlockRows, tokens: np.ndarray | None = None) -> Lookup:
        """Finds the wanted blocks, of `tokens` each (like the ids; None: as many as blocks have)."""
        self._settle()
        self._now += 1
        flat = (wanted.ids + wanted.spread(np.arange(self.rows) * self.blocks)).ravel()
        missing = ~self._held[flat] | self._away[flat]
        self._away[:] = False
        self._size[flat] = self._block_tokens if tokens is None else tokens.ravel()
        self._came[flat[missing]] = self._now
        self._enter(flat)
        return Lookup(wanted, missing.reshape(wanted.ids.shape), wanted.ids, self._left())

    def _left(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns what has left since it was asked last."""
        dropped, self._dropped = np.concatenate([np.empty(0, np.int64), *self._dropped]), []
        return self._places(dropped)

    def renew(self, changed: BlockRows, tokens: np.ndarray | None = None, made: Sequence[tuple[int, int]] = ()) -> None:
        """Notes blocks that have changed to `tokens` each; those `made`, (row, block), are in memory as a whole."""
        flat = (changed.ids + changed.spread(np.arange(self.rows) * self.blocks)).ravel()
        self._size[flat] = self._block_tokens if tokens is None else tokens.ravel()
        self._updated[flat] = self._now
        if made:
            new = np.array([row * self.blocks + block for row, block in made])
            self._came[new[~self._held[new]]] = self._now
            self._enter(new)
        self._settled = False

    def forget(self, blocks: BlockRows) -> None:
        """Give up copies that are out of date, or never came."""
        flat = (blocks.ids + blocks.spread(np.arange(self.rows) * self.blocks)).ravel()
        self._drop(flat[self._held[flat]])

    def held(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows and ids of what is in the cache when the next step begins, row by row."""
        self._settle()
        return self._places(np.flatnonzero(self._held))

    def ahead(
        self, limit: ReadAhead | None, token_bytes: int, changing: BlockRows | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Takes what the last look-up wanted, what was wanted most often since it came first. What is kept beyond that,
        for being small say, is seldom wanted, and a read of it takes as long."""
        self._settle()
        self._away[:] = False
        if changing is not None:
            self._away[(changing.ids + changing.spread(np.arange(self.rows) * self.blocks)).ravel()] = True
        flat = np.flatnonzero(self._held & ~self._away)
        if limit is not None:
            likely = flat[self._wanted[flat] == self._now]
            self._away[flat] = True
            flat = np.sort(self._in_time(likely, limit, token_bytes))
            self._away[flat] = False
        return self._places(flat)

    def _in_time(self, likely: np.ndarray, limit: ReadAhead, token_bytes: int) -> np.ndarray:
        """Returns what of this there is time for, what was wanted most often first."""
        likely = likely[np.lexsort((likely, -self._times[likely]))]
        return likely[limit.fits(self._size[likely] * token_bytes)]

    def check(self) -> None:
        """AssertionError when more is kept than there is room for, or something without a size."""
        self._settle()
        held = np.flatnonzero(self._held)
        assert (np.bincount(held // self.blocks, self._size[held]) <= self.capacity_tokens).all()
        assert (self._size[held] > 0).all()

    def _enter(self, flat: np.ndarray) -> None:
        self._wanted[flat] = self._now
        self._times[flat] += 1
        self._worth[flat] = self._least[flat // self.blocks] + 1 / self._size[flat]
        self._held[flat] = True
        self._settled = False

    def _settle(self) -> None:
        """Drops what has no room."""
        if self._settled:
            return
        self._settled = True
        flat = np.flatnonzero(self._held)
        rows, sizes = flat // self.blocks, self._size[flat]
        over = np.bincount(rows, sizes, self.rows) > self.capacity_tokens
        if not over.any():
            return
        crowded = over[rows]
        flat, rows, sizes = flat[crowded], rows[crowded], sizes[crowded]
        values = [-getattr(self, name)[flat] for name in _VALUES[self._replacement]]
        order = np.lexsort((flat, *values, -self._protected(flat, rows, sizes).astype(np.int64), rows))
        fits = _within(rows[order], sizes[order]) <= self.capacity_tokens
        leaving = flat[order][~fits]
        np.maximum.at(self._least, leaving // self.blocks, self._worth[leaving])
        self._drop(leaving)

    def _protected(self, flat: np.ndarray, rows: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """bool: updated lately, and within the room that is reserved for that."""
        lately = np.zeros(len(flat), bool)
        if self._replacement != "cluster-aligned" or not self._reserved:
            return lately
        at = np.flatnonzero(self._now - self._updated[flat] < RECENT_STEPS)
        order = at[np.lexsort((flat[at], -self._updated[flat[at]], rows[at]))]
        lately[order] = _within(rows[order], sizes[order]) <= self._reserved
        return lately

    def _drop(self, flat: np.ndarray) -> None:
        self._held[flat] = False
        self._times[flat] = 0
        if len(flat):
            self._dropped.append(flat)

    def _places(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return flat // self.blocks, flat % self.blocks


def _within(rows: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns running sums of sizes, from zero in each row; rows ascend."""
    sums = np.cumsum(sizes)
    begins = np.ones(len(rows), bool)
    begins[1:] = rows[1:] != rows[:-1]
    before = (sums - sizes)[begins]
    return np.asarray(sums - before[begins.cumsum() - 1])

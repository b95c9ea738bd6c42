"""The area of a layer's cached clusters in the storage file while other layers compute (DynaKV 6.1)."""

import numpy as np

from kvferry.layouts.cluster_layout import up
from kvferry.layouts.pieces import Pieces, Ranges, Reads


class SwapArea:
    """A stretch of the file, from the storage block at ``offset`` on, with a slot for each of ``slots`` entries of a
    layer, whichever of its ``rows`` and ``blocks`` they are of. Slots from the first to the last one in use are read as
    one; what comes takes the free slots that lie first, so that this is short.

    While its layer computes, all of the area is in memory: storage blocks with a changed slot are written as a
    whole then, without being read. Entries that come to a block after that stay in memory until the layer's next turn.
    """

    def __init__(
        self, *, layer: int, offset: int, slots: int, rows: int, blocks: int, token_bytes: int, alignment_bytes: int
    ) -> None:
        self._layer, self._offset, self.blocks = layer, offset, blocks
        self._token_bytes, self._alignment_bytes = token_bytes, alignment_bytes
        # By slot, the block (row by row) that its entry is of, and which entry of that block; what is free is of a
        # block behind all.
        self._nowhere = rows * blocks
        self._owner = np.full(slots, self._nowhere)
        self._nth = np.zeros(slots, np.int64)
        # Entries of each block that lie here.
        self._entries = np.zeros(rows * blocks + 1, np.int64)
        self._end = 0

    @staticmethod
    def n_bytes(slots: int, token_bytes: int, alignment_bytes: int) -> int:
        """Returns what an area takes of the file."""
        return int(up(slots * token_bytes, alignment_bytes))

    @property
    def entries(self) -> np.ndarray:
        """int64[rows, blocks]: how many entries of each block lie here; they are its first ones."""
        return self._entries[:-1].reshape(-1, self.blocks).copy()

    def give_up(self, rows: np.ndarray, blocks: np.ndarray) -> None:
        """These blocks have other entries now, or none."""
        self._entries[rows * self.blocks + blocks] = 0

    def keep(self, rows: np.ndarray, blocks: np.ndarray, tokens: np.ndarray) -> tuple[Ranges, Pieces]:
        """Keep the first `tokens` entries of these blocks, and nothing else: ranges of whole storage blocks that have
        to be written, and the entries that lie in them."""
        flat = rows * self.blocks + blocks
        before = self._entries[flat]
        self._entries[:] = 0
        # A block never loses an entry without being given up.
        self._entries[flat] = before
        free = np.flatnonzero(self._entries[self._owner] == 0)
        self._owner[free] = self._nowhere
        more = tokens - before
        came = int(more.sum())
        slots = free[:came]
        assert len(slots) == came, f"{came} entries more have no room in {len(free)} free slots"
        self._owner[slots] = np.repeat(flat, more)
        self._nth[slots] = np.arange(came) - np.repeat(np.cumsum(more) - more - before, more)
        self._entries[flat] = tokens
        used = self._owner < self._nowhere
        self._end = len(used) - int(used[::-1].argmax()) if used.any() else 0
        return self._storage_blocks(slots)

    def reads(self) -> Reads | None:
        """All that lies here, as one command; None: nothing does."""
        if not self._end:
            return None
        length = up(self._end * self._token_bytes, self._alignment_bytes)
        owner, nth = self._owner[: self._end].copy(), self._nth[: self._end].copy()
        # What has been given up since it was written lies here still.
        owner[self._entries[owner] == 0] = self._nowhere
        # Each block's entries in their order.
        slots = lambda: np.lexsort((nth, owner))  # noqa: E731
        return Reads(
            np.array([self._offset]),
            np.array([length]),
            pieces=lambda: self._pieces(at := slots(), owner[at], nth[at]),  # type: ignore[no-untyped-call]
        )

    def check(self) -> None:
        """AssertionError when an entry has two slots, or none."""
        used = np.flatnonzero(self._entries[self._owner] > 0)
        order = np.lexsort((self._nth[used], self._owner[used]))
        owner, nth = self._owner[used][order], self._nth[used][order]
        first = np.searchsorted(owner, owner)
        assert (nth == np.arange(len(used)) - first).all()
        assert (np.bincount(owner, minlength=len(self._entries)) == self._entries).all()

    def _storage_blocks(self, slots: np.ndarray) -> tuple[Ranges, Pieces]:
        """Ranges of the storage blocks that these slots, which ascend, lie in, and the entries in them."""
        unit, block = self._token_bytes, self._alignment_bytes
        begins, ends = slots * unit & -block, up((slots + 1) * unit, block)
        first = np.flatnonzero(np.concatenate([[True], begins[1:] > ends[:-1]])) if len(slots) else slots
        begins, ends = begins[first], ends[np.append(first[1:], len(ends)) - 1] if len(slots) else ends
        low, high = begins // unit, np.minimum(up(ends, unit) // unit, len(self._owner))
        counts = high - low
        within = np.arange(int(counts.sum())) + np.repeat(low - np.cumsum(counts) + counts, counts)
        ranges = begins + self._offset, ends - begins
        return ranges, self._pieces(within, self._owner[within], self._nth[within])

    def _pieces(self, slots: np.ndarray, owner: np.ndarray, nth: np.ndarray) -> Pieces:
        """One for each entry that is there."""
        there = owner < self._nowhere
        slots, owner, nth = slots[there], owner[there], nth[there]
        rows, blocks = np.divmod(owner, self.blocks)
        return Pieces(
            np.full(len(slots), self._layer),
            rows,
            blocks,
            nth,
            np.ones(len(slots), np.int64),
            self._offset + slots * self._token_bytes,
            np.zeros(len(slots), bool),
            self._token_bytes,
        )

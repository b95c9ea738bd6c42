"""Clusters that the last tokens retrieved together, and which of them would save accesses as a pair."""

import numpy as np

from kvferry.layouts.cluster_layout import PlacedClusters
from kvferry.policies.decode.splits import ClusterSplit

# Layer, row and both blocks of clusters that are to lie beside each other.
Pairs = list[tuple[int, int, int, int]]
# A bit for each of the last tokens.
MOST_TOKENS = 64


class RetrievedTogether:
    """Knows of every block which of the last ``tokens`` steps, up to 64, retrieved it: uint64[layers, rows, blocks],
    the newest in the lowest bit."""

    def __init__(self, shape: tuple[int, int, int], tokens: int) -> None:
        self.bits = np.zeros(shape, np.uint64)
        self._kept = np.uint64(2**tokens - 1)

    def see(self, layers: np.ndarray, rows: np.ndarray, retrieved: np.ndarray) -> None:
        """A step has retrieved these blocks bool[n, blocks] of rows."""
        self.bits[layers, rows] = ((self.bits[layers, rows] << np.uint64(1)) | retrieved) & self._kept

    def split(self, layer: int, row: int, block: int, new: int) -> None:
        """A part that leaves a block was retrieved when that was."""
        self.bits[layer, row, new] = self.bits[layer, row, block]

    def paired(
        self,
        places: PlacedClusters,
        layers: np.ndarray,
        rows: np.ndarray,
        here: np.ndarray,
        splits: list[tuple[int, ClusterSplit]],
    ) -> Pairs:
        """Learns which clusters are `here`, in memory, bool[n, blocks], in this step; returns the pairs that those are
        to make which it does not split."""
        self.see(layers, rows, here)
        partner = places.partners(layers, rows)
        assert partner is not None
        whole, at = here.copy(), layers * places.shape[1] + rows
        for layer, split in splits:
            whole[at == layer * places.shape[1] + split.row, split.block] = False
        found = self.pairs(layers, rows, whole, partner)
        return [(int(layers[n]), int(rows[n]), one, other) for n, one, other in found]

    def pairs(
        self, layers: np.ndarray, rows: np.ndarray, retrieved: np.ndarray, partner: np.ndarray
    ) -> list[tuple[int, int, int]]:
        """Returns the pair that each row, all different, is to make of its `retrieved` blocks bool[n, blocks]: its
        place among the rows, and both blocks; none where none is worth it. `partner` int64[n, blocks]: -1 for none.

        A pair saves an access whenever a token retrieves both. One is worth it that would have saved the last tokens
        more accesses than the pairs that break up for it did, by more than the writes that it costs: of both blocks, or
        of one where the other is alone.
        """
        widest = int(retrieved.sum(axis=1).max(initial=0))
        if widest < 2:
            return []
        blocks = np.argsort(~retrieved, axis=1, kind="stable")[:, :widest]
        there, own = (np.take_along_axis(of, blocks, 1) for of in (retrieved, partner))
        of_rows = self.bits[layers, rows]
        bits = np.take_along_axis(of_rows, blocks, 1)
        paired = np.where(own >= 0, np.bitwise_count(bits & np.take_along_axis(of_rows, own, 1)), 0)
        both = np.bitwise_count(bits[:, :, None] & bits[:, None]).astype(np.int64)
        writes = np.where((own[:, :, None] < 0) | (own[:, None] < 0), 1, 2)
        may = there[:, :, None] & there[:, None] & (own[:, :, None] != blocks[:, None])
        may &= np.arange(widest)[:, None] < np.arange(widest)
        saved = np.where(may, both - paired[:, :, None] - paired[:, None] - writes, 0).reshape(len(blocks), -1)
        best = saved.argmax(axis=1)
        worth = np.flatnonzero(saved[np.arange(len(best)), best] > 0)
        first, second = np.divmod(best[worth], widest)
        return list(zip(worth.tolist(), blocks[worth, first].tolist(), blocks[worth, second].tolist(), strict=True))

"""Keys that wait in memory for the split of their cluster, and the clusters that are flagged for one."""

from collections.abc import Sequence

import numpy as np

# Layer, row and block.
Place = tuple[int, int, int]


class WaitingKeys:
    """``counts`` int64[layers, rows, blocks]: the keys that wait for each block."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.counts = np.zeros(shape, np.int64)
        self._in_row = np.zeros(shape[:2], np.int64)
        # By layer and row, how many keys wait for each cluster that is flagged: none for one that is too large as it
        # was made.
        self._flagged: dict[tuple[int, int], dict[int, int]] = {}

    def add(self, place: Place, keys: int) -> None:
        """Notes that `keys` more wait in a place."""
        layer, row, block = place
        self.counts[place] += keys
        self._in_row[layer, row] += keys
        flags = self.flags(layer, row)
        flags[block] = flags.get(block, 0) + keys
        if not flags[block]:
            del flags[block]

    def flags(self, layer: int, row: int) -> dict[int, int]:
        """Returns the flagged clusters of a row, each with the keys that wait for it."""
        return self._flagged.setdefault((layer, row), {})

    def flagged(self, layers: np.ndarray, rows: np.ndarray) -> list[tuple[int, int]]:
        """Returns the flagged clusters of these rows, each with the position of its row."""
        of, places = self._flagged.get, zip(layers.tolist(), rows.tolist(), strict=True)
        return [(n, block) for n, place in enumerate(places) if (flags := of(place)) for block in flags]

    def full_rows(self, layers: np.ndarray, rows: np.ndarray, most: int) -> list[int]:
        """Returns the positions of rows in which `most` keys wait, or more."""
        return np.flatnonzero(self._in_row[layers, rows] >= most).tolist()

    def repeat(self, layers: Sequence[int], first: int) -> None:
        """The same waits in these layers as in the `first`."""
        at = np.array(layers, np.int64)
        for of_layers in (self.counts, self._in_row):
            of_layers[at] = of_layers[first]
        for row in range(self.counts.shape[1]):
            for layer in layers:
                self._flagged[layer, row] = dict(self.flags(first, row))

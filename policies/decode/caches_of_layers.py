"""Caches of clusters of several layers as one: what settles in each of them settles in one call."""

from collections.abc import Sequence

import numpy as np

from kvferry.policies.decode.cluster_cache import ClusterCache
from kvferry.policies.decode.read_ahead import ReadAhead
from kvferry.policies.decode.rows import BlockRows, Lookup


class CachesOfLayers(ClusterCache):
    """The rows of several layers' caches, layer by layer. The caches go on by themselves: each keeps its part of the
    arrays. All of them are alike, and are looked up equally often."""

    def __init__(self, caches: Sequence[ClusterCache]) -> None:
        first = caches[0]
        sizes = len(caches) * first.rows, first.blocks, first.capacity_tokens
        super().__init__(*sizes, first._replacement, block_tokens=first._block_tokens)
        self._reserved, self._caches = first._reserved, caches
        for name in ("_held", "_away", "_size", "_came", "_wanted", "_updated", "_times", "_worth", "_least"):
            whole = np.concatenate([getattr(cache, name) for cache in caches])
            setattr(self, name, whole)
            for cache, part in zip(caches, np.split(whole, len(caches)), strict=True):
                setattr(cache, name, part)

    def look_up_each(self, wanted: Sequence[tuple[BlockRows, np.ndarray]]) -> list[Lookup]:
        """Finds for each layer its wanted blocks, with the tokens in each, in its own cache."""
        self._go_on()
        ends = np.cumsum([len(blocks.ids) for blocks, _ in wanted])
        of_rows = [blocks.spread(np.arange(blocks.rows)) for blocks, _ in wanted]
        each = self._caches[0].rows
        rows = np.concatenate([of + n * each for n, of in enumerate(of_rows)])
        ids = np.concatenate([blocks.ids for blocks, _ in wanted])
        starts = np.searchsorted(rows, np.arange(self.rows + 1))
        found = self.look_up(BlockRows(ids, starts), np.concatenate([tokens for _, tokens in wanted]))
        lookups = list[Lookup]()
        for cache, (blocks, _), missing in zip(self._caches, wanted, np.split(found.missing, ends[:-1]), strict=True):
            cache._now, cache._settled = self._now, False
            lookups.append(Lookup(blocks, missing, blocks.ids, cache._left()))
        return lookups

    def ahead_each(self, limit: ReadAhead | None, token_bytes: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns for each layer what its own cache takes ahead."""
        self._go_on()
        rows, ids = self.ahead(limit, token_bytes)
        each = self._caches[0].rows
        ends = np.searchsorted(rows, np.arange(0, self.rows + 1, each)).tolist()
        parts = [slice(*ends[n : n + 2]) for n in range(len(self._caches))]
        return [(rows[part] - n * each, ids[part]) for n, part in enumerate(parts)]

    def _go_on(self) -> None:
        """Notes what the caches did by themselves."""
        self._now, self._settled = self._caches[0]._now, all(cache._settled for cache in self._caches)

    def _settle(self) -> None:
        super()._settle()
        layers = len(self._caches)
        for flat in self._dropped:
            of = self._layers(flat)
            for n in range(layers):
                if len(left := flat[of == n]):
                    self._caches[n]._dropped.append(left - n * (len(self._held) // layers))
        self._dropped = []
        for cache in self._caches:
            cache._settled = True

    def _in_time(self, likely: np.ndarray, limit: ReadAhead, token_bytes: int) -> np.ndarray:
        likely = likely[np.lexsort((likely, -self._times[likely], self._layers(likely)))]
        n_bytes = self._size[likely] * token_bytes
        ends = np.searchsorted(self._layers(likely), np.arange(1, len(self._caches)))
        return likely[np.concatenate([limit.fits(of_layer) for of_layer in np.split(n_bytes, ends)])]

    def _layers(self, flat: np.ndarray) -> np.ndarray:
        """Returns the layer of each place, counted from the first."""
        return flat // (len(self._held) // len(self._caches))

"""Clusters at the end of tokens that are skipped: worked out once for runs that begin there with the same.

Phones, caches and prices have no part in it, so that many runs of a study skip the same.
"""

from collections.abc import Callable, Hashable
from copy import deepcopy
from typing import NamedTuple

import numpy as np

from kvferry.policies.decode.kept_clusters import KeptClusters
from kvferry.system.array_memo import content_of
from kvferry.system.content import Unclear, digest_of
from kvferry.system.memo import Memo
from kvferry.traces.clustered_keys import ClusteredKeys, KeyParts


class Reached(NamedTuple):
    """Clusters after skipped tokens, and what the keys know of them; `drawn`: the keys themselves, which are drawn
    before they are skipped and never change."""

    kept: KeptClusters
    parts: KeyParts
    drawn: np.ndarray

    def copied(self, drawn: np.ndarray) -> "Reached":
        """Returns the same over another run's keys, which hold the same."""
        return deepcopy(self, {id(self.drawn): drawn})


# The last two, of no more keys than this many numbers.
_REACHED = Memo[Reached](2)
_MOST_NUMBERS = 1 << 24


class SkipMemo:
    """The clusters of a run before it skips `tokens`, retrieving `wanted` of so many, and where that leads."""

    def __init__(
        self, kept: KeptClusters, keys: ClusteredKeys, tokens: int, stored: int, wanted: Callable[[int], float]
    ) -> None:
        self._keys = keys
        # Stands for all that it depends on; None: that cannot be told.
        self._begun: Hashable = None
        if keys.keys.size > _MOST_NUMBERS:
            return
        try:
            begun = digest_of((kept, keys.parts, wanted), keys.keys)
        except Unclear:
            return
        self._begun = begun, content_of(keys.keys), content_of(keys.queries), tokens, stored

    def reached(self) -> KeptClusters | None:
        """Returns where this leads, and lets the keys' clusters go on from there; None: it is not remembered."""
        known = None if self._begun is None else _REACHED.known(self._begun)
        if known is None:
            return None
        kept, parts, _ = known.copied(self._keys.keys)
        self._keys.resume(parts)
        return kept

    def reaches(self, kept: KeptClusters) -> None:
        """Remembers where it has led."""
        if self._begun is not None:
            drawn = self._keys.keys
            _REACHED.keep(self._begun, Reached(kept, self._keys.parts, drawn).copied(drawn))

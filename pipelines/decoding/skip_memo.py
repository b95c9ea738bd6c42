"""Clusters at the end of tokens that are skipped: worked out once for runs that begin there with the same.

Phones, caches and prices have no part in it, so that many runs of a study skip the same.
"""

import hashlib
import io
import pickle
from collections.abc import Callable, Hashable
from typing import Any

from kvferry.policies.decode.kept_clusters import KeptClusters
from kvferry.system.array_memo import content_of
from kvferry.system.memo import Memo
from kvferry.traces.clustered_keys import ClusteredKeys

# States of the last few, and the bytes that are kept of each at most.
_REACHED = Memo[bytes](2)
_MOST_BYTES = 1 << 27
# Plugins' code may be another one under the same name.
_OWN = ("kvferry", "numpy", "builtins", "collections", "functools")


class SkipMemo:
    """The clusters of a run before it skips `tokens`, retrieving `wanted` of so many, and where that leads."""

    def __init__(
        self, kept: KeptClusters, keys: ClusteredKeys, tokens: int, stored: int, wanted: Callable[[int], float]
    ) -> None:
        self._keys = keys
        begun = hashlib.sha256()
        whole = _written(_Into(begun.update), keys, (kept, keys.parts, wanted))
        # Stands for all that it depends on; None: that cannot be told.
        self._begun: Hashable = None
        if whole:
            self._begun = begun.digest(), content_of(keys.keys), content_of(keys.queries), tokens, stored

    def reached(self) -> KeptClusters | None:
        """Returns where this leads, and lets the keys' clusters go on from there; None: it is not remembered."""
        data = None if self._begun is None else _REACHED.known(self._begun)
        if data is None:
            return None
        kept, parts = _Reader(io.BytesIO(data), self._keys).load()
        self._keys.resume(parts)
        assert isinstance(kept, KeptClusters)
        return kept

    def reaches(self, kept: KeptClusters) -> None:
        """Remembers where it has led, unless that takes too much memory."""
        data = io.BytesIO()

        def write(part: Any) -> None:
            if data.tell() > _MOST_BYTES:
                raise pickle.PicklingError("too large")
            data.write(part)

        if self._begun is not None and _written(_Into(write), self._keys, (kept, self._keys.parts)):
            _REACHED.keep(self._begun, data.getvalue())


class _Into:
    """A file that hands on what is written to it."""

    def __init__(self, write: Callable[[Any], object]) -> None:
        self.write = write


def _written(file: _Into, keys: ClusteredKeys, state: Any) -> bool:
    """Returns whether all of a state could be written."""
    try:
        _Writer(file, keys).dump(state)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


class _Writer(pickle.Pickler):
    """Writes states but for the keys themselves, which are drawn before they are skipped, and never change."""

    def __init__(self, file: Any, keys: ClusteredKeys) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._drawn = keys.keys

    def persistent_id(self, one: Any) -> str | None:
        return "keys" if one is self._drawn else None

    def reducer_override(self, one: Any) -> Any:
        """PicklingError for a class or a function of others."""
        if isinstance(one, type) or callable(one):
            module = str(getattr(one, "__module__", None) or "builtins")
            if module.partition(".")[0] not in _OWN:
                raise pickle.PicklingError(f"{module} is not ours")
        return NotImplemented


class _Reader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, keys: ClusteredKeys) -> None:
        super().__init__(file)
        self._drawn = keys.keys

    def persistent_load(self, name: str) -> Any:
        return self._drawn

"""Parts of a store, read one after the other as if they were one file."""

from collections.abc import Sequence

from kvferry.cloud.store import DamagedStore, Store


class StoreReader:
    """Reads these (offset, length) of a store in order, from `skip` bytes on."""

    def __init__(self, store: Store, extents: Sequence[tuple[int, int]], skip: int) -> None:
        self._store = store
        self._extents = iter(_joined(extents))
        self._offset, self._left = 0, 0
        while skip >= self._left:
            skip -= self._left
            self._offset, self._left = next(self._extents)
        self._offset, self._left = self._offset + skip, self._left - skip

    def take(self, n_bytes: int) -> bytes:
        """The next bytes. Raises DamagedStore when the file has become shorter than its index says."""
        parts = []
        while n_bytes:
            if not self._left:
                self._offset, self._left = next(self._extents)
            part = self._store.bytes_at(self._offset, min(n_bytes, self._left))
            if not part:
                raise DamagedStore(f"{self._store.path}: was cut short while it was served")
            self._offset, self._left = self._offset + len(part), self._left - len(part)
            parts.append(part)
            n_bytes -= len(part)
        return b"".join(parts)


def _joined(extents: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in fewer pieces: those that lie next to each other in the file become one."""
    joined: list[tuple[int, int]] = []
    for offset, length in extents:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = joined[-1][0], joined[-1][1] + length
        else:
            joined.append((offset, length))
    return joined

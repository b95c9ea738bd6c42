"""Parts of a store, one after the other, as if they were one file."""

from collections.abc import Sequence

from kvferry.cloud.store import DamagedStore, Store


class StoreReader:
    """Reads through these (offset, length) of a store, from `skip` bytes on. Raises DamagedStore when they are not all
    there any more."""

    def __init__(self, store: Store, extents: Sequence[tuple[int, int]], skip: int) -> None:
        self._store = store
        self._extents = iter(_joined(extents))
        self._offset, self._left = 0, 0
        while skip >= self._left:
            skip -= self._left
            self._offset, self._left = next(self._extents)
        self._offset, self._left = self._offset + skip, self._left - skip

    def take(self, n_bytes: int) -> bytes:
        parts = []
        while n_bytes:
            most = min(n_bytes, self.in_a_row_bytes())
            part = self._store.bytes_at(self._offset, most)
            self._passed(len(part))
            parts.append(part)
            n_bytes -= len(part)
        return b"".join(parts)

    def in_a_row_bytes(self) -> int:
        """How many bytes lie in a row in the file from here."""
        if not self._left:
            self._offset, self._left = next(self._extents)
        return self._left

    def pass_to(self, connected: int, n_bytes: int) -> int:
        """Have the system copy what lies in a row to this socket, as much of it as fits in there now."""
        most = min(n_bytes, self.in_a_row_bytes())
        try:
            sent = self._store.pass_to(connected, self._offset, most)
        except BlockingIOError:
            return 0
        self._passed(sent)
        return sent

    def _passed(self, n_bytes: int) -> None:
        if not n_bytes:
            raise DamagedStore(f"{self._store.path}: was cut short while it was served")
        self._offset, self._left = self._offset + n_bytes, self._left - n_bytes


def _joined(extents: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in fewer pieces, where one begins as the other ends."""
    joined: list[tuple[int, int]] = []
    for offset, length in extents:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = joined[-1][0], joined[-1][1] + length
        else:
            joined.append((offset, length))
    return joined

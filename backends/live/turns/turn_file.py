"""The storage file of conversations: KV that is kept in places between turns, and that of the turn at work."""

from collections.abc import Sequence

import numpy as np

from kvferry.disk.direct_storage import Data, Storage
from kvferry.disk.kept_blocks import KeptBlocks
from kvferry.machine.ops import Extents
from kvferry.specs.errors import KvferryError


class TurnFile:
    """A ByteStore. Ranges that say their blocks are those of places in `kept`. Others are of the turn at work, whose
    file lies in pages there, or in a storage file `apart`."""

    def __init__(self, kept: KeptBlocks | None, page_bytes: int, apart: Storage | None = None) -> None:
        self._kept, self._page_bytes, self._apart = kept, page_bytes, apart
        self._pages = np.zeros(0, np.int64)

    def lay(self, pages: Sequence[int]) -> None:
        """From now on the places of the file's pages are these. What was asked for before is done."""
        self._pages = np.array(pages, np.int64)

    def read(self, extents: Extents) -> Data:
        if extents.blocks is None and self._apart is not None:
            return self._apart.read(extents)
        kept = self._in_use
        return kept.read(extents if extents.blocks is not None else self._in_places(extents))

    def write(self, extents: Extents, data: bytes | bytearray | memoryview) -> None:
        if extents.blocks is not None:
            self._in_use.write(extents, data)
        elif self._apart is not None:
            self._apart.write(extents, data)
        else:
            self._in_use.write_parts(self._in_places(extents), data)

    @property
    def _in_use(self) -> KeptBlocks:
        if self._kept is None:
            raise KvferryError("nothing of conversations lies on storage here")
        return self._kept

    def _in_places(self, extents: Extents) -> Extents:
        """Returns where ranges of the turn's file lie, each of which is in one page."""
        offsets, lengths = extents.arrays
        pages, inside = np.divmod(offsets, self._page_bytes)
        if len(pages) and (int(pages.max()) >= len(self._pages) or (inside + lengths > self._page_bytes).any()):
            raise KvferryError("a turn reads or writes outside the pages that it has")
        return Extents(self._pages[pages] * self._page_bytes + inside, lengths)

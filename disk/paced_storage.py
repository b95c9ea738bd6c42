"""A storage file on a fast disk that takes as long as another, measured device would."""

from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from kvferry.disk.direct_storage import Data, Storage
from kvferry.machine.ops import Extents
from kvferry.sim.storage import blocks_in_part, commands_of, map_miss_s
from kvferry.sim.storage_curve import StorageCurves
from kvferry.specs.storage import StorageSpec


class PacedStorage(Storage):
    """Reads and writes the real file, then waits until the device that the profile `like` describes would be done.

    The profile's curve model gives the seconds of a batch, including misses of the controller's map. A batch for which
    the real disk needs longer is not shortened: `late` counts those. One batch at a time, as a LiveMachine submits
    them. Other settings are Storage's.
    """

    def __init__(self, path: Path | str, *, like: StorageSpec, **settings: Any) -> None:
        super().__init__(path, **settings)
        self._like, self._map = like, like.map
        self._curves = StorageCurves(like)
        self._lowest, self._highest = self.size_bytes, 0
        self.batches = self.late = 0

    def read(self, extents: Extents) -> Data:
        began_s = perf_counter()
        data = super().read(extents)
        self._wait(began_s, extents, writes=False)
        return data

    def write(self, extents: Extents, data: bytes | bytearray | memoryview, *, parts_read: bool = False) -> None:
        """With `parts_read` what is to be read first has been read."""
        began_s = perf_counter()
        super().write(extents, data)
        parts = None if parts_read else self.read_first(extents)
        read_s = self._seconds(parts, writes=False) if parts else 0.0
        self._wait(began_s, extents, writes=True, more_s=read_s)

    def read_first(self, extents: Extents) -> Extents | None:
        """Returns the device's blocks, of another size than the file's, that are read before a write, as it covers them
        in part; None: there are none."""
        return blocks_in_part(extents, int(self._like.block_bytes))

    def device_bytes(self, extents: Extents) -> int:
        """Returns what the device reads for these extents: whole blocks of its own."""
        return int(commands_of(extents, self._like)[1].sum())

    def _wait(self, began_s: float, extents: Extents, writes: bool, more_s: float = 0.0) -> None:
        takes_s = more_s + self._seconds(extents, writes)
        if not takes_s:
            return
        left_s = began_s + takes_s - perf_counter()
        self.batches += 1
        self.late += left_s < 0
        if left_s > 0:
            sleep(left_s)

    def _seconds(self, extents: Extents, writes: bool) -> float:
        """What the device takes for a batch; 0 for one without commands."""
        offsets, lengths = commands_of(extents, self._like)
        if not len(offsets):
            return 0.0
        self._lowest = min(self._lowest, int(offsets[0]))
        self._highest = max(self._highest, int(offsets[-1] + lengths[-1]))
        miss_s = map_miss_s(self._map, self._highest - self._lowest) if self._map else 0.0
        return self._curves.batch_s(lengths, writes, miss_s)

"""Storage: batches of byte ranges, read and written in the order they were handed over."""

from collections.abc import Iterable

import numpy as np
import simpy

from kvferry.machine.ops import Extents
from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.machine.work_queue import TimedWork, WorkQueue
from kvferry.specs.storage import MapSpec, StorageSpec


class Batch(TimedWork):
    """What one read or write asks for, as the commands that reach the device."""

    offsets: np.ndarray
    lengths: np.ndarray
    writes: bool


class Storage(WorkQueue):
    """A storage device; what its commands cost is its models' business.

    Batches begin in the order they were handed over, reads and writes alike; one that waits for other tickets holds
    up what is behind it. Extents of a batch that lie against each other become one command where the host merges them.
    """

    def __init__(self, env: simpy.Environment, spec: StorageSpec, tell: Tell, servers: int = 1) -> None:
        super().__init__(env, "storage", tell, servers)
        self.spec = spec
        self._map = spec.map
        # What was asked for so far lies between these.
        self._lowest, self._highest = np.inf, -np.inf
        # By that, what a command waits for the mapping table.
        self._missing_s = 0.0
        # What was moved last, and its commands: a model is read again and again.
        self._last: tuple[Extents, tuple[np.ndarray, np.ndarray]] | None = None

    def read(self, extents: Extents, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        return self._move("Read", extents, after, request)

    def write(self, extents: Extents, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        """A block that is written in part is read first, as a real file past the page cache has to."""
        parts = blocks_in_part(extents, int(self.spec.block_bytes))
        if parts is None:
            return self._move("Write", extents, after, request)
        read = self._move("Read", parts, after, request)
        return self._move("Write", self.whole_blocks(extents), (read,), request)

    def whole_blocks(self, extents: Extents) -> Extents:
        """The storage blocks that extents lie in."""
        offsets, lengths = extents.arrays
        begins = offsets & -int(self.spec.block_bytes)
        ends = -(-(offsets + lengths) & -int(self.spec.block_bytes))
        return Extents(begins, ends - begins)

    def _move(self, label: str, extents: Extents, after: Iterable[Ticket], request: int | None) -> Ticket:
        if self._last is None or self._last[0] is not extents:
            self._last = extents, commands_of(extents, self.spec)
        offsets, lengths = self._last[1]
        batch = Batch(self.env, self, float(lengths.sum()), label, request, None)
        batch.offsets, batch.lengths = offsets, lengths
        batch.writes = label == "Write"
        return self.hand_over(batch, 0.0, after)

    def _next(self) -> TimedWork | None:
        lane = self._lanes[0]
        while lane and not lane[0].queued:
            lane.popleft()
        if lane and not lane[0].awaited and self._takes(lane[0]):
            return lane.popleft()
        return None

    def _map_miss_s(self, offsets: np.ndarray, lengths: np.ndarray) -> float:
        """What each of these commands, which ascend, waits for the mapping table, on average."""
        if self._map is None or not len(offsets):
            return 0.0
        return self._miss_within_s(self._map, int(offsets[0]), int(offsets[-1] + lengths[-1]))

    def _miss_within_s(self, table: MapSpec, begin: int, end: int) -> float:
        """The same of commands from one byte up to another."""
        if begin < self._lowest or end > self._highest:
            self._lowest, self._highest = min(self._lowest, begin), max(self._highest, end)
            self._missing_s = map_miss_s(table, self._highest - self._lowest)
        return self._missing_s


def blocks_in_part(extents: Extents, block_bytes: int) -> Extents | None:
    """The storage blocks at the edges of extents that these cover in part, each once; None: there is none."""
    offsets, lengths = extents.arrays
    ends = offsets + lengths
    if not ((offsets | ends) & (block_bytes - 1)).any():
        return None
    edges = np.concatenate([offsets, ends])
    blocks = np.unique(edges[edges & (block_bytes - 1) > 0] & -block_bytes)
    return Extents(blocks, np.full(len(blocks), block_bytes))


def map_miss_s(table: MapSpec, spread_bytes: float) -> float:
    """Mean seconds per command for entries that the controller does not hold."""
    return table.miss_s * max(0.0, 1.0 - table.covers_bytes / spread_bytes)


def commands_of(extents: Extents, spec: StorageSpec) -> tuple[np.ndarray, np.ndarray]:
    """Offsets, ascending, and lengths of the commands by which the host reads or writes these extents: of whole storage
    blocks. Extents that share one are one command where the host merges, whatever lies between them."""
    offsets, lengths = extents.arrays
    if not lengths.all():
        offsets, lengths = offsets[lengths > 0], lengths[lengths > 0]
    block = int(spec.block_bytes)
    begins = offsets & -block
    ends = (offsets + lengths + block - 1) & -block
    if not (begins[1:] <= ends[:-1]).any():
        # Most often: ascending, and apart.
        return begins, ends - begins
    if (begins[1:] < begins[:-1]).any():
        order = begins.argsort(kind="stable")
        begins, ends = begins[order], ends[order]
    if spec.merges and len(begins) > 1 and (begins[1:] < ends[:-1]).any():
        begins, ends = _apart(begins, ends)
    return merged(begins, ends - begins) if spec.merges else (begins, ends - begins)


def _apart(begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ranges in ascending order, the ones that share bytes as one."""
    reach = np.maximum.accumulate(ends)
    first = np.concatenate(([0], (begins[1:] >= reach[:-1]).nonzero()[0] + 1))
    return begins[first], np.append(reach[first[1:] - 1], reach[-1])


def merged(offsets: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offsets and lengths in ascending order, the ones that lie against each other as one; empty ones are gone.

    What overlaps is left as it is: every byte is moved as often as it was asked for.
    """
    if len(lengths) and not lengths.all():
        kept = lengths > 0
        offsets, lengths = offsets[kept], lengths[kept]
    if len(offsets) < 2:
        return offsets, lengths
    if (offsets[1:] < offsets[:-1]).any():
        order = offsets.argsort(kind="stable")
        offsets, lengths = offsets[order], lengths[order]
    apart = offsets[1:] != offsets[:-1] + lengths[:-1]
    if apart.all():
        return offsets, lengths
    first = np.concatenate(([0], apart.nonzero()[0] + 1))
    return offsets[first], np.add.reduceat(lengths, first)

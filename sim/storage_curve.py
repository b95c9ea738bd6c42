"""Storage by its measured bandwidth: one event per batch."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, cast

import numpy as np
import simpy

from kvferry.machine.ops import Extents
from kvferry.machine.span import Tell
from kvferry.machine.work_queue import TimedWork
from kvferry.sim.contention import Contention
from kvferry.sim.flash_curve import FlashCurve
from kvferry.sim.pace import Pace
from kvferry.sim.storage import Batch, Storage, blocks_in_part, commands_of, map_miss_s
from kvferry.specs.storage import CurveRow, StorageSpec


class Curve:
    """Seconds per command by size, with this many commands under way: bandwidth, interpolated in log-log.

    Between sizes and between depths, log bandwidth is linear in log size and log depth. Below the smallest size a
    command costs what it does there; above the largest, and beyond the depths, bandwidth stays.
    """

    def __init__(self, rows: Sequence[CurveRow]) -> None:
        self._depths = np.log([row.depth for row in rows])
        self._sizes = np.unique(np.concatenate([np.log(row.block_bytes) for row in rows]))
        # Log seconds per command at every size, one row per depth: piecewise linear as the bandwidth is.
        self._costs = np.stack([_log_costs(row, self._sizes) for row in rows])
        self._at_depth: dict[int, np.ndarray] = {}

    def command_s(self, lengths: np.ndarray, depth: int) -> np.ndarray:
        """Seconds per command of each length, in a steady stream of such commands."""
        if depth not in self._at_depth:
            by_size = self._costs.T
            self._at_depth[depth] = np.array([np.interp(np.log(depth), self._depths, costs) for costs in by_size])
        sizes, costs = self._sizes, self._at_depth[depth]
        log_lengths = np.log(lengths)
        # Beyond the largest size cost grows with size.
        return np.exp(np.interp(log_lengths, sizes, costs) + np.maximum(0.0, log_lengths - sizes[-1]))


class LatencyCurve:
    """The simplest curve: a command takes its latency and its bytes over the rate, at any depth."""

    def __init__(self, bytes_per_s: float, latency_s: float) -> None:
        self._bytes_per_s, self._latency_s = bytes_per_s, latency_s

    def command_s(self, lengths: np.ndarray, depth: int) -> np.ndarray:
        seconds: np.ndarray = self._latency_s + lengths / self._bytes_per_s
        return seconds


# Lengths are as many as there are kinds of commands, but for those of a file with blocks of all sizes.
_MOST_KNOWN = 10_000
# Clusters are of all sizes, and most of a few storage blocks.
_BLOCKS_KNOWN = 512
AnyCurve = Curve | LatencyCurve | FlashCurve
# Of a batch: its commands, the seconds of each where all are equal (else None), and of all where they are not (else 0).
Cost = tuple[int, float | None, float]


class StorageCurves:
    """How long batches take on an idle device, by the profile's curves."""

    def __init__(self, spec: StorageSpec) -> None:
        self._spec, self._depth = spec, spec.queue_depth
        # Seconds of one command by length, depth and direction: the same few come again and again.
        self._known: dict[tuple[int, int, bool], float] = {}
        # By depth and direction, of commands of one storage block, of two, and so on.
        self._by_blocks: dict[tuple[int, bool], np.ndarray] = {}

    @cached_property
    def read(self) -> "AnyCurve":
        return _curve(self._spec, writes=False)

    @cached_property
    def write(self) -> "AnyCurve":
        return _curve(self._spec, writes=True)

    def batch_s(self, lengths: np.ndarray, writes: bool = False, extra_s: float = 0.0) -> float:
        """Seconds for commands of these lengths, each delayed by `extra_s`.

        Up to the queue depth are under way at once; each takes its share of a steady stream of commands like it at that
        depth. Together they never move faster than the highest bandwidth of the curve.
        """
        n = len(lengths)
        if not n:
            return 0.0
        # Usually all lengths are equal, and one look-up is enough.
        if n == 1 or lengths.min() == lengths.max():
            return self.equal_s(n, int(lengths[0]), writes, extra_s)
        return float(self._commands_s(lengths, min(n, self._depth), writes).sum() + n * extra_s)

    def priced(self, lengths: np.ndarray, firsts: np.ndarray) -> list[Cost]:
        """Prices several batches of reads, each from one of the `firsts` of these commands up to the next."""
        ends = np.append(firsts[1:], len(lengths))
        most = np.maximum.reduceat(lengths, firsts)
        known = most.max() <= _BLOCKS_KNOWN * int(self._spec.block_bytes)
        each_s = self._commands_s(lengths, self._depth, False) if known else np.empty(0)
        found = list[Cost]()
        of = (firsts.tolist(), ends.tolist(), np.minimum.reduceat(lengths, firsts).tolist(), most.tolist())
        for first, end, least_bytes, most_bytes in zip(*of, strict=True):
            n = end - first
            if least_bytes == most_bytes:
                found.append((n, self._command_s(most_bytes, min(n, self._depth), False), 0.0))
            elif n < self._depth or not known:
                found.append((n, None, float(self._commands_s(lengths[first:end], min(n, self._depth), False).sum())))
            else:
                found.append((n, None, float(each_s[first:end].sum())))
        return found

    def equal_s(self, commands: int, each_bytes: int, writes: bool = False, extra_s: float = 0.0) -> float:
        """The same for this many commands of one length."""
        if not commands:
            return 0.0
        return commands * (self._command_s(each_bytes, min(commands, self._depth), writes) + extra_s)

    def _commands_s(self, lengths: np.ndarray, depth: int, writes: bool) -> np.ndarray:
        """Of commands of different lengths. Those of a few storage blocks are looked up."""
        curve, block = self.write if writes else self.read, int(self._spec.block_bytes)
        nth = lengths // block
        if nth.max() > _BLOCKS_KNOWN or (nth * block != lengths).any():
            return curve.command_s(lengths, depth)
        key = depth, writes
        if key not in self._by_blocks:
            self._by_blocks[key] = curve.command_s(np.arange(1, _BLOCKS_KNOWN + 1) * block, depth)
        return self._by_blocks[key][nth - 1]

    def _command_s(self, length: int, depth: int, writes: bool) -> float:
        key = length, depth, writes
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            curve = self.write if writes else self.read
            self._known[key] = float(curve.command_s(np.array([length]), depth)[0])
        return self._known[key]


class PricedRead(NamedTuple):
    """A read from ``begin`` to ``end`` of the file, of ``n_bytes`` in whole storage blocks. Its ``cost`` has no misses
    of the map."""

    begin: int
    end: int
    n_bytes: float
    cost: Cost


class CurveStorage(Storage):
    """One batch after the other, each for as long as its curve says; one event per batch, and its ticket.

    With full duplex a read and a write may be under way together, each at its own speed. Left out: that commands of
    different batches are under way together, and that reads and writes get in each other's way inside the device.
    The queue model has both.
    """

    def __init__(
        self, env: simpy.Environment, spec: StorageSpec, tell: Tell, contention: Contention | None = None
    ) -> None:
        directions = [_Direction(env, self._done) for _ in range(2 if spec.duplex == "full" else 1)]
        super().__init__(env, spec, tell, servers=len(directions))
        self._contention = contention if contention and contention.tell(self.resource, self._beside) else None
        self.curves = StorageCurves(spec)
        self._reading, self._writing = directions[0], directions[-1]

    def _takes(self, work: TimedWork) -> bool:
        return self._direction(cast(Batch, work)).batch is None

    def _begin(self, work: TimedWork) -> None:
        batch, now = cast(Batch, work), self.env.now
        direction = self._direction(batch)
        direction.batch = batch
        batch.nominal_s = self._seconds(batch.offsets, batch.lengths, batch.writes)
        direction.pace.begin(batch.nominal_s, now, self._speed())

    def _speed(self) -> float:
        return 1.0 if self._contention is None else self._contention.speed(self.resource)

    def _beside(self) -> None:
        """Another path has begun or ended its work."""
        for direction in {self._reading, self._writing}:
            if direction.batch is not None:
                direction.pace.respeed(self._speed())

    def seconds(self, extents: Extents, writes: bool = False) -> float:
        """What a batch that comes next takes."""
        return self._seconds(*commands_of(extents, self.spec), writes)

    def batches(self, extents: Extents, writes: bool) -> Iterator[tuple[str, float, float]]:
        """Label, seconds and bytes of the batches that read or write these extents, one after the other, if they come
        next."""
        if writes:
            parts = blocks_in_part(extents, int(self.spec.block_bytes))
            if parts is not None:
                yield from self.batches(parts, writes=False)
                extents = self.whole_blocks(extents)
        offsets, lengths = commands_of(extents, self.spec)
        yield "Write" if writes else "Read", self._seconds(offsets, lengths, writes), float(lengths.sum())

    def priced(self, many: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[PricedRead] | None:
        """Prices several reads in one call, each by its offsets and lengths, but for misses of the map, which depend on
        what comes before (``priced_s``). None: one of them reads nothing."""
        counts = [len(offsets) for offsets, _ in many]
        if not all(counts):
            return None
        offsets, lengths = (np.concatenate(of) for of in zip(*many, strict=True))
        block = int(self.spec.block_bytes)
        begins, ends = offsets & -block, (offsets + lengths + block - 1) & -block
        close = begins[1:] <= ends[:-1]
        close[np.cumsum(counts)[:-1] - 1] = False
        if close.any() or not lengths.all():
            # Extents of one read share storage blocks, lie against each other or descend.
            commands = [commands_of(Extents(*ranges), self.spec) for ranges in many]
            counts = [len(offsets) for offsets, _ in commands]
            if not all(counts):
                return None
            begins, lengths = (np.concatenate(of) for of in zip(*commands, strict=True))
        else:
            lengths = ends - begins
        firsts = np.cumsum(counts) - np.array(counts, np.int64)
        n_bytes = np.add.reduceat(lengths, firsts).astype(float).tolist()
        ends = (begins + lengths)[np.append(firsts[1:], len(begins)) - 1].tolist()
        costs = self.curves.priced(lengths, firsts)
        return [PricedRead(*of) for of in zip(begins[firsts].tolist(), ends, n_bytes, costs, strict=True)]

    def priced_s(self, read: PricedRead) -> float:
        """What a read takes that comes next."""
        n, each_s, all_s = read.cost
        miss_s = 0.0 if self._map is None else self._miss_within_s(self._map, read.begin, read.end)
        return all_s + n * miss_s if each_s is None else n * (each_s + miss_s)

    def seconds_of_equal(self, commands: int, each_bytes: int) -> float:
        """What this many reads of one length take, within what has been read or written before."""
        miss_s = map_miss_s(self.spec.map, self._highest - self._lowest) if self.spec.map else 0.0
        return self.curves.equal_s(commands, each_bytes, extra_s=miss_s)

    def _seconds(self, offsets: np.ndarray, lengths: np.ndarray, writes: bool) -> float:
        return self.curves.batch_s(lengths, writes, self._map_miss_s(offsets, lengths))

    def withdraw(self, work: TimedWork) -> float | None:
        batch = cast(Batch, work)
        direction = self._direction(batch)
        if batch is not direction.batch:
            return super().withdraw(work)
        assert batch.start_s is not None
        direction.batch = None
        left_s = direction.pace.stop()
        done_s = self.env.now - batch.start_s if self._contention is None else batch.nominal_s - left_s
        # The rest is not moved, and the span does not count it.
        batch.n_bytes *= done_s / batch.nominal_s if batch.nominal_s else 1.0
        self._end(batch)
        return batch.n_bytes

    def _done(self, direction: "_Direction") -> None:
        batch, direction.batch = direction.batch, None
        assert batch is not None
        batch.end_s = self.env.now
        batch.succeed(batch.result)
        self._end(batch)

    def _direction(self, batch: Batch) -> "_Direction":
        return self._writing if batch.writes else self._reading


class _Direction:
    """A direction, with at most one batch under way; with half duplex, reads and writes share one."""

    def __init__(self, env: simpy.Environment, done: "Callable[[_Direction], None]") -> None:
        self.batch: Batch | None = None
        self.pace = Pace(env, None, lambda: done(self))


def _curve(spec: StorageSpec, writes: bool) -> AnyCurve:
    if spec.bytes_per_s is not None:
        return LatencyCurve(spec.bytes_per_s, spec.latency_s)
    if rows := spec.write if writes and spec.write else spec.read:
        return Curve(rows)
    assert spec.queue is not None
    return FlashCurve(spec.queue, spec.duplex == "half", writes)


def _log_costs(row: CurveRow, log_sizes: np.ndarray) -> np.ndarray:
    """Log seconds per command at these sizes, by one row alone."""
    own, rates = np.log(row.block_bytes), np.log(row.bytes_per_s)
    costs: np.ndarray = np.interp(log_sizes, own, own - rates) + np.maximum(0.0, log_sizes - own[-1])
    return costs

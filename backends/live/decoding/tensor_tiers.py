"""Tiers of KV in tensors, of a torch device and of its host: the ranges are those of the file on storage."""

from collections import deque
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch

from kvferry.backends.live.decoding.copies import Copies, TensorData
from kvferry.backends.live.decoding.written import Bytes
from kvferry.machine.ops import Extents

# Copies move numbers of this many bytes.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Ranges of this length in the mean are copied one by one, shorter ones by rows.
_LONG_BYTES = 2**16
# Uploads of numbers that may be asked for again: reads and writes of the layers of one step.
_UPLOADS = 4


class _Part(NamedTuple):
    """The ranges of some extents in one region: where they lie there, and where in the extents' bytes."""

    region: int
    offsets: np.ndarray
    lengths: np.ndarray
    ats: np.ndarray


class Regions:
    """Memory as regions of equal length, such as layers. Each is made when it is first used, and may be dropped."""

    def __init__(self, n_bytes: int, regions: int, make: Callable[[int], torch.Tensor]) -> None:
        self._n_bytes, self._make = n_bytes, make
        self._each = max(1, -(-n_bytes // regions))
        self._made: dict[int, torch.Tensor] = {}
        self._lock = Lock()

    @property
    def n_bytes(self) -> int:
        """Returns the bytes held at present."""
        return sum(map(len, self._made.values()))

    def __getitem__(self, region: int) -> torch.Tensor:
        with self._lock:
            if region not in self._made:
                self._made[region] = self._make(min(self._each, self._n_bytes - region * self._each))
            return self._made[region]

    def drop(self, region: int) -> None:
        self._made.pop(region, None)

    def parts(self, extents: Extents) -> list[_Part]:
        """Returns the extents by region, in their order. A range that crosses a border is in both."""
        offsets, lengths = extents.arrays
        if not lengths.all():
            offsets, lengths = offsets[lengths > 0], lengths[lengths > 0]
        if not len(lengths):
            return []
        ends, ats = offsets + lengths, np.cumsum(lengths) - lengths
        first, last = int(offsets.min()) // self._each, (int(ends.max()) - 1) // self._each
        if first == last:
            return [_Part(first, offsets - first * self._each, lengths, ats)]
        return list(self._apart(range(first, last + 1), offsets, ends, ats))

    def _apart(self, regions: range, offsets: np.ndarray, ends: np.ndarray, ats: np.ndarray) -> Iterator[_Part]:
        for region in regions:
            base = region * self._each
            begins, until = np.maximum(offsets, base), np.minimum(ends, base + self._each)
            here = begins < until
            if here.any():
                places = begins[here]
                yield _Part(region, places - base, until[here] - places, ats[here] + places - offsets[here])


class HostMemory:
    """The host's memory. What is written is there when ``write`` is back, so that reads wait for nothing; they are
    copies. In `regions`; where these are `layers`, those of a layer that leaves are given back."""

    def __init__(self, n_bytes: int, copies: Copies, regions: int = 1, *, layers: bool = False) -> None:
        self._regions = Regions(n_bytes, regions, copies.memory_of("host"))
        self._copies, self._layers = copies, layers

    @property
    def n_bytes(self) -> int:
        """Returns the bytes held at present."""
        return self._regions.n_bytes

    def write(self, extents: Extents, data: Bytes | torch.Tensor) -> None:
        came, parts = as_tensor(data), self._regions.parts(extents)
        if extents.n_bytes >= _LONG_BYTES * len(extents.arrays[1]):
            # Straight to its place, as prompts are.
            self._copies.to_host(came, [there for part in parts for there in _places(self._regions[part.region], part)])
            return
        there = self._copies.to_host(came)
        for part in parts:
            _scatter(self._regions[part.region], part, there, torch.from_numpy)

    def read(self, extents: Extents) -> TensorData:
        read = torch.empty(extents.n_bytes, dtype=torch.uint8)
        self._into(extents, read)
        return TensorData(read, extents.arrays[1], self._copies)

    def brought(self, extents: Extents) -> TensorData:
        """Returns the data of the extents, as tensors of the device; they are filled once the present stream comes to
        them."""
        brought = self._copies.staged(extents.n_bytes, lambda into: self._into(extents, into))
        return TensorData(brought, extents.arrays[1], self._copies)

    def give_up(self, extents: Extents) -> None:
        if self._layers and extents.placed is not None:
            for layer in extents.placed:
                self._regions.drop(layer)

    def _into(self, extents: Extents, into: torch.Tensor) -> None:
        for part in self._regions.parts(extents):
            _gather(self._regions[part.region], part, into, torch.from_numpy)


class DeviceMemory:
    """The device's memory. A read comes behind the last write of the regions that it touches, a write behind that and
    all reads since: nothing is read before it is there, or overwritten before what reads it has ended. Reads are
    copies, made by the stream that asks for them. In `regions`; where these are `layers`, the memory of a layer that
    leaves serves others.

    Several threads may call: of one, all is launched before another's.
    """

    def __init__(self, n_bytes: int, copies: Copies, regions: int, *, layers: bool = False) -> None:
        self._regions = Regions(n_bytes, regions, copies.memory_of("device"))
        self._copies, self._layers, self._lock = copies, layers, Lock()
        # By region: what is passed when its last write has ended, and the reads since.
        self._written: dict[int, Any] = {}
        self._reads: dict[int, list[Any]] = {}
        # Numbers of rows that the device has, and what is passed when they are there. Those of one step are often alike
        # for all layers.
        self._uploads: deque[tuple[np.ndarray, torch.Tensor, Any]] = deque(maxlen=_UPLOADS)

    @property
    def n_bytes(self) -> int:
        """Returns the bytes held at present."""
        return self._regions.n_bytes

    def write(self, extents: Extents, data: Bytes | torch.Tensor) -> None:
        there = self._copies.to_device(as_tensor(data))
        with self._lock:
            parts = self._regions.parts(extents)
            for part in parts:
                self._behind_write(part.region)
                for mark in self._reads.pop(part.region, ()):
                    self._copies.behind(mark)
            for part in parts:
                _scatter(self._region(part), part, there, self._numbers)
            if parts:
                self._written |= dict.fromkeys((part.region for part in parts), self._copies.mark())

    def read(self, extents: Extents) -> TensorData:
        with self._lock:
            parts = self._regions.parts(extents)
            for part in parts:
                self._behind_write(part.region)
            memories = [self._region(part) for part in parts]
            like = memories[0] if memories else torch.empty(0, dtype=torch.uint8)
            read = torch.empty(extents.n_bytes, dtype=torch.uint8, device=like.device)
            for memory, part in zip(memories, parts, strict=True):
                _gather(memory, part, read, self._numbers)
            if parts:
                mark = self._copies.mark()
                for part in parts:
                    self._reads.setdefault(part.region, []).append(mark)
        return TensorData(read, extents.arrays[1], self._copies)

    def give_up(self, extents: Extents) -> None:
        if self._layers and extents.placed is not None:
            with self._lock:
                for layer in extents.placed:
                    # Streams that use it are known to its allocator.
                    self._regions.drop(layer)
                    self._written.pop(layer, None)
                    self._reads.pop(layer, None)

    def _region(self, part: _Part) -> torch.Tensor:
        memory = self._regions[part.region]
        self._copies.used_here(memory)
        return memory

    def _behind_write(self, region: int) -> None:
        if region in self._written:
            self._copies.behind(self._written[region])

    def _numbers(self, numbers: np.ndarray) -> torch.Tensor:
        """On the device."""
        for known, there, mark in self._uploads:
            if np.array_equal(known, numbers):
                self._copies.behind(mark)
                self._copies.used_here(there)
                return there
        raw = torch.from_numpy(numbers).view(torch.uint8)
        there = self._copies.staged(len(raw), lambda into: into.copy_(raw)).view(torch.int64)
        self._uploads.append((numbers, there, self._copies.mark()))
        return there


def as_tensor(data: Bytes | torch.Tensor) -> torch.Tensor:
    """Returns uint8[n]."""
    if isinstance(data, torch.Tensor):
        return data
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)


# Makes a tensor of numbers on the side of the memory.
_Numbers = Callable[[np.ndarray], torch.Tensor]


def _scatter(memory: torch.Tensor, part: _Part, data: torch.Tensor, of: _Numbers) -> None:
    unit = _unit(part)
    there, here = _rows(memory, unit), _rows(data, unit)
    if not _follow(part):
        here = here.index_select(0, of(_each(part.ats, part.lengths, unit)))
    else:
        here = here[part.ats[0] // unit :][: int(part.lengths.sum()) // unit]
    there.index_copy_(0, of(_each(part.offsets, part.lengths, unit)), here)


def _gather(memory: torch.Tensor, part: _Part, into: torch.Tensor, of: _Numbers) -> None:
    unit = _unit(part)
    there, here = _rows(memory, unit), _rows(into, unit)
    numbers = of(_each(part.offsets, part.lengths, unit))
    if _follow(part):
        torch.index_select(there, 0, numbers, out=here[part.ats[0] // unit :][: len(numbers)])
    else:
        here.index_copy_(0, of(_each(part.ats, part.lengths, unit)), there.index_select(0, numbers))


def _places(memory: torch.Tensor, part: _Part) -> Iterator[tuple[torch.Tensor, int]]:
    """Yields the memory of each range, and where in the extents' bytes it begins."""
    ranges = zip(part.offsets.tolist(), part.ats.tolist(), part.lengths.tolist(), strict=True)
    for offset, at, n_bytes in ranges:
        yield memory[offset : offset + n_bytes], at


def _follow(part: _Part) -> bool:
    """Returns whether its bytes follow one another in the extents."""
    return bool(part.ats[-1] + part.lengths[-1] - part.ats[0] == part.lengths.sum())


def _unit(part: _Part) -> int:
    """Returns the largest unit in bytes that divides all its ranges: the length of a KV block, or of an entry."""
    return int(np.gcd.reduce([np.gcd.reduce(one) for one in (part.offsets, part.lengths, part.ats)]))


def _each(begins: np.ndarray, lengths: np.ndarray, unit: int) -> np.ndarray:
    """Returns the number of every unit of some ranges."""
    begins, counts = begins // unit, lengths // unit
    if (counts == 1).all():
        return begins
    ends = np.cumsum(counts)
    return np.repeat(begins - (ends - counts), counts) + np.arange(ends[-1])


def _rows(memory: torch.Tensor, unit: int) -> torch.Tensor:
    """Returns the memory as rows of units, in words as long as they can be: one thread copies one."""
    word = int(np.gcd(unit, 8))
    return memory[: len(memory) // unit * unit].view(_WORDS[word]).view(-1, unit // word)

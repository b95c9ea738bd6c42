"""Where KV tiers of a torch device have their memory, and what keeps copies and attention in order there."""

from typing import Any, Protocol

import numpy as np
import torch

from kvferry.backends.live.decoding.written import Bytes
from kvferry.disk.direct_storage import Data
from kvferry.machine.ops import Extents
from kvferry.specs.errors import InputError


class Copies(Protocol):
    """Memory on both sides, and order between the streams that use it. What is launched goes to the stream that the
    calling thread has at present, which is that of its queue (StreamWorker)."""

    def device_memory(self, n_bytes: int) -> torch.Tensor:
        """uint8[n_bytes] of the device."""
        ...

    def host_memory(self, n_bytes: int) -> torch.Tensor:
        """uint8[n_bytes] of the host, from and to which the device copies by itself."""
        ...

    def mark(self) -> Any:
        """What the present stream passes once it has done all that was launched so far."""
        ...

    def behind(self, mark: Any) -> None:
        """Let the present stream do what follows once the mark is passed. Does not wait for it."""
        ...

    def used_here(self, tensor: torch.Tensor) -> None:
        """The present stream uses a tensor that another one may have made: its memory serves nothing else before."""
        ...

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same in the device's memory, once the present stream has come so far."""
        ...

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same in the host's memory; waits until it is there."""
        ...


class PlainCopies:
    """Of a processor that does one thing after the other (a CPU): what is launched is done."""

    def device_memory(self, n_bytes: int) -> torch.Tensor:
        return torch.zeros(n_bytes, dtype=torch.uint8)

    def host_memory(self, n_bytes: int) -> torch.Tensor:
        return torch.zeros(n_bytes, dtype=torch.uint8)

    def mark(self) -> Any:
        return None

    def behind(self, mark: Any) -> None:
        """It is passed."""

    def used_here(self, tensor: torch.Tensor) -> None:
        """There is one stream."""

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


class CudaCopies:
    """Of a CUDA device: its memory, pinned memory of the host, events. Left out: this has not been run on a GPU."""

    def __init__(self, processor: str) -> None:
        if not torch.cuda.is_available():
            raise InputError(f"live.processor: {processor}: torch sees no CUDA device; cpu would do")
        self._device = torch.device(processor)

    def device_memory(self, n_bytes: int) -> torch.Tensor:
        return torch.zeros(n_bytes, dtype=torch.uint8, device=self._device)

    def host_memory(self, n_bytes: int) -> torch.Tensor:
        return torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=True)

    def mark(self) -> Any:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def behind(self, mark: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def used_here(self, tensor: torch.Tensor) -> None:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(self._device))

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        # The allocator keeps pinned memory until the copy has passed.
        return tensor.to(self._device, non_blocking=True)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_cuda:
            return tensor
        there = self.host_memory(len(tensor)).copy_(tensor, non_blocking=True)
        torch.cuda.current_stream(self._device).synchronize()
        return there


class TensorData(Data):
    """Bytes uint8[n] that were read of a tier, on the tier's side."""

    def __init__(self, tensor: torch.Tensor, lengths: np.ndarray, copies: Copies) -> None:
        super().__init__(memoryview(b""), np.cumsum(lengths) - lengths, lengths, lambda: None)
        self._tensor, self._copies = tensor, copies

    @property
    def tensor(self) -> torch.Tensor:
        """For what the present stream does with it."""
        self._copies.used_here(self._tensor)
        return self._tensor

    def rows(self) -> Any:
        """Extents of equal length as a tensor uint8[extents, length]."""
        assert (self._lengths == self._lengths[:1]).all(), "extents of different lengths are no rows"
        return self.tensor.unflatten(0, (len(self._lengths), -1)) if len(self._lengths) else self.tensor[:, None]

    def __bytes__(self) -> bytes:
        return self._copies.to_host(self.tensor).numpy().tobytes()

    def release(self) -> None:
        """Its memory is freed with the last reference."""


class HostMemory:
    """The host's memory as one tensor. What is written is there when ``write`` is back, so that reads wait for nothing;
    they are copies in memory from which the device copies by itself."""

    def __init__(self, memory: torch.Tensor, copies: Copies) -> None:
        self._memory, self._copies = memory, copies

    def write(self, extents: Extents, data: Bytes | torch.Tensor) -> None:
        _scatter(self._memory, extents, self._copies.to_host(_tensor(data)))

    def read(self, extents: Extents) -> TensorData:
        read = self._copies.host_memory(extents.n_bytes)
        _gather(self._memory, extents, read)
        return TensorData(read, extents.arrays[1], self._copies)

    def brought(self, extents: Extents) -> TensorData:
        """What is read, in the device's memory once the present stream has come so far."""
        read = self.read(extents)
        return TensorData(self._copies.to_device(read.tensor), extents.arrays[1], self._copies)

    def give_up(self, extents: Extents) -> None:
        """Keeps the memory: what is pinned stays."""


class DeviceMemory:
    """The device's memory as one tensor, in `regions` of equal length. A read comes behind the last write of the
    regions that it touches, a write behind that and all reads since: nothing is read before it is there, or overwritten
    before what reads it has ended. Reads are copies, made by the stream that asks for them."""

    def __init__(self, memory: torch.Tensor, copies: Copies, regions: int) -> None:
        self._memory, self._copies = memory, copies
        self._region_bytes = max(1, -(-len(memory) // regions))
        # By region: what is passed when its last write has ended, and the reads since.
        self._written: dict[int, Any] = {}
        self._reads: dict[int, list[Any]] = {}

    def write(self, extents: Extents, data: Bytes | torch.Tensor) -> None:
        regions = self._regions(extents)
        for region in regions:
            self._behind_write(region)
            for mark in self._reads.pop(region, ()):
                self._copies.behind(mark)
        _scatter(self._memory, extents, self._copies.to_device(_tensor(data)))
        self._written |= dict.fromkeys(regions, self._copies.mark())

    def read(self, extents: Extents) -> TensorData:
        regions = self._regions(extents)
        for region in regions:
            self._behind_write(region)
        read = torch.empty(extents.n_bytes, dtype=torch.uint8, device=self._memory.device)
        _gather(self._memory, extents, read)
        mark = self._copies.mark()
        for region in regions:
            self._reads.setdefault(region, []).append(mark)
        return TensorData(read, extents.arrays[1], self._copies)

    def give_up(self, extents: Extents) -> None:
        """Keeps the memory: a tensor has no pages that could be returned."""

    def _behind_write(self, region: int) -> None:
        if region in self._written:
            self._copies.behind(self._written[region])

    def _regions(self, extents: Extents) -> list[int]:
        offsets, lengths = (column[extents.arrays[1] > 0] for column in extents.arrays)
        firsts, lasts = offsets // self._region_bytes, (offsets + lengths - 1) // self._region_bytes
        pairs = set(zip(firsts.tolist(), lasts.tolist(), strict=True))
        return sorted({region for first, last in pairs for region in range(first, last + 1)})


def _tensor(data: Bytes | torch.Tensor) -> torch.Tensor:
    if isinstance(data, torch.Tensor):
        return data
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if len(data) else torch.empty(0, dtype=torch.uint8)


def _scatter(memory: torch.Tensor, extents: Extents, data: torch.Tensor) -> None:
    if (found := _rows(memory, extents)) is not None:
        rows, numbers = found
        rows.index_copy_(0, numbers, data.view(len(numbers), -1))
        return
    at = 0
    for offset, length in extents:
        memory[offset : offset + length] = data[at : at + length]
        at += length


def _gather(memory: torch.Tensor, extents: Extents, into: torch.Tensor) -> None:
    if (found := _rows(memory, extents)) is not None:
        rows, numbers = found
        torch.index_select(rows, 0, numbers, out=into.view(len(numbers), -1))
        return
    at = 0
    for offset, length in extents:
        into[at : at + length] = memory[offset : offset + length]
        at += length


def _rows(memory: torch.Tensor, extents: Extents) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The memory as rows uint8[n, length], and which of them the extents are; None where they are not alike."""
    offsets, lengths = extents.arrays
    if not len(lengths) or not (length := int(lengths[0])) or (lengths != length).any() or (offsets % length).any():
        return None
    whole = memory[: len(memory) // length * length].view(-1, length)
    return whole, torch.from_numpy(offsets // length).to(memory.device)

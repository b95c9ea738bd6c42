"""Copies between a torch device and its host; keeps the device's streams in order."""

import mmap
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
import torch

from kvferry.backends.live.engine.out_of_memory import told_as_out_of_memory
from kvferry.disk.direct_storage import Data
from kvferry.specs.errors import InputError, OutOfMemory
from kvferry.specs.human import size
from kvferry.specs.tier import Tier

# Pinned memory through which copies go: stages, and the most bytes of each.
_STAGES = 4
_STAGE_BYTES = 2**26


class Copies(Protocol):
    """Memory on both sides, and order between the streams that use it. What is launched goes to the stream that the
    calling thread has at present, which is that of its queue (StreamWorker). Tensors are uint8[n]."""

    def memory_of(self, tier: Tier) -> Callable[[int], torch.Tensor]:
        """Returns what makes zeros in the memory of the device, or in that of the host from and to which the device
        copies by itself; it takes their bytes, and raises OutOfMemory."""
        ...

    def mark(self) -> Any:
        """Returns an event that the present stream passes once it has done all that was launched so far."""
        ...

    def behind(self, mark: Any) -> None:
        """Let the present stream do what follows once the mark is passed. Does not wait for it."""
        ...

    def used_here(self, tensor: torch.Tensor) -> None:
        """The present stream uses a tensor that another one may have made: its memory serves nothing else before."""
        ...

    def staged(self, n_bytes: int, fill: Callable[[torch.Tensor], None]) -> torch.Tensor:
        """Returns what `fill` writes into memory of the host, as a tensor of the device; it is filled once the present
        stream comes to it. Does not wait for that."""
        ...

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the same in the device's memory, once the present stream has come so far."""
        ...

    def to_host(self, tensor: torch.Tensor, into: Sequence[tuple[torch.Tensor, int]] = ()) -> torch.Tensor:
        """Returns the same in the host's memory; waits until it is there. `into`: memory of the host that takes what
        begins at a byte of the tensor, in place of new memory."""
        ...

    def settle(self) -> None:
        """Wait until the device has done all that was launched so far, on any stream."""
        ...


class CudaCopies:
    """Copies of a CUDA device: pinned memory of the host, and events."""

    def __init__(self, processor: str) -> None:
        if not torch.cuda.is_available():
            raise InputError(f"live.processor: {processor}: torch sees no CUDA device; cpu would do")
        self._device = torch.device(processor)
        # The one that was used first comes first: its last copy has most likely passed.
        self._stages: SimpleQueue[_Stage] = SimpleQueue()
        for _ in range(_STAGES):
            self._stages.put(_Stage())

    def memory_of(self, tier: Tier) -> Callable[[int], torch.Tensor]:
        return self._host_memory if tier == "host" else self._device_memory

    def _device_memory(self, n_bytes: int) -> torch.Tensor:
        with told_as_out_of_memory(f"{self._device} has no {size(n_bytes)} for KV"):
            return torch.zeros(n_bytes, dtype=torch.uint8, device=self._device)

    def _host_memory(self, n_bytes: int) -> torch.Tensor:
        """Pinned by its exact size: torch's own allocator rounds up to a power of two, and gives nothing back."""
        refused = f"the host has no {size(n_bytes)} of memory to pin for KV"
        try:
            memory = torch.frombuffer(mmap.mmap(-1, n_bytes), dtype=torch.uint8)
        except (OSError, OverflowError) as error:
            raise OutOfMemory(f"{refused}: {error}") from None
        runtime, address = torch.cuda.cudart(), memory.data_ptr()
        if code := int(runtime.cudaHostRegister(address, n_bytes, 0)):
            raise OutOfMemory(f"{refused} (CUDA error {code})")
        weakref.finalize(memory, runtime.cudaHostUnregister, address)
        return memory

    def mark(self) -> Any:
        # Who waits for it sleeps, and spins no core.
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def behind(self, mark: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def used_here(self, tensor: torch.Tensor) -> None:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(self._device))

    def staged(self, n_bytes: int, fill: Callable[[torch.Tensor], None]) -> torch.Tensor:
        if n_bytes > _STAGE_BYTES:
            with self._room(n_bytes, "the host"):
                into = torch.empty(n_bytes, dtype=torch.uint8)
            fill(into)
            return self.to_device(into)
        with self._stage(n_bytes) as stage:
            fill(stage)
            with self._room(n_bytes):
                return stage.to(self._device, non_blocking=True)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_cuda:
            return tensor
        with self._room(len(tensor)):
            there = torch.empty(len(tensor), dtype=torch.uint8, device=self._device)
        for here, part in zip(there.split(_STAGE_BYTES), tensor.split(_STAGE_BYTES), strict=True):
            with self._stage(len(part)) as stage:
                here.copy_(stage.copy_(part), non_blocking=True)
        return there

    def to_host(self, tensor: torch.Tensor, into: Sequence[tuple[torch.Tensor, int]] = ()) -> torch.Tensor:
        for there, at in into:
            # It is pinned: the device writes there by itself.
            there.copy_(tensor[at : at + len(there)], non_blocking=True)
        if into:
            self.mark().synchronize()
            return tensor
        if not tensor.is_cuda:
            return tensor
        with self._room(len(tensor), "the host"):
            there = torch.empty(len(tensor), dtype=torch.uint8)
        for here, part in zip(there.split(_STAGE_BYTES), tensor.split(_STAGE_BYTES), strict=True):
            with self._stage(len(part)) as stage:
                stage.copy_(part, non_blocking=True)
                self.mark().synchronize()
                here.copy_(stage)
        return there

    def settle(self) -> None:
        torch.cuda.synchronize(self._device)

    def _room(self, n_bytes: int, whose: str | None = None) -> AbstractContextManager[None]:
        """For what takes so much memory, of the device unless it says whose."""
        return told_as_out_of_memory(f"{whose or self._device} has no {size(n_bytes)} for a copy of KV")

    @contextmanager
    def _stage(self, n_bytes: int) -> Iterator[torch.Tensor]:
        """Yields pinned memory, reserved until the present stream has passed what the block launches."""
        stage = self._stages.get()
        try:
            yield stage.of(n_bytes)
        finally:
            stage.passed = self.mark()
            self._stages.put(stage)


class _Stage:
    """Pinned memory that is used again once the device has passed its last use. Grows to what is wanted of it."""

    def __init__(self) -> None:
        self.passed: Any = None
        self._memory = torch.empty(0, dtype=torch.uint8)

    def of(self, n_bytes: int) -> torch.Tensor:
        if self.passed is not None:
            self.passed.synchronize()
        if len(self._memory) < n_bytes:
            # The allocator takes this much, however little is asked for.
            taken_bytes = 1 << (n_bytes - 1).bit_length()
            with told_as_out_of_memory(f"the host has no {size(taken_bytes)} of memory to pin for copies"):
                self._memory = torch.empty(taken_bytes, dtype=torch.uint8, pin_memory=True)
        return self._memory[:n_bytes]


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
        """Returns extents of equal length as a tensor uint8[extents, length]."""
        assert (self._lengths == self._lengths[:1]).all(), "extents of different lengths are no rows"
        return self.tensor.unflatten(0, (len(self._lengths), -1)) if len(self._lengths) else self.tensor[:, None]

    def __bytes__(self) -> bytes:
        return self._copies.to_host(self.tensor).numpy().tobytes()

    def release(self) -> None:
        """Its memory is freed with the last reference."""

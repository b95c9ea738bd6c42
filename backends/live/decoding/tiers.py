"""KV in memory: the processor's own, and the host's beside it. A tier has the same ranges as the file on storage."""

import mmap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from threading import Condition
from typing import Any

import numpy as np
import torch

from kvferry.backends.live.decoding.copies import Copies, TensorData
from kvferry.backends.live.decoding.tensor_tiers import DeviceMemory, HostMemory
from kvferry.backends.live.decoding.written import Bytes, Written, WrittenLayers, source
from kvferry.disk.direct_storage import Data
from kvferry.machine.ops import Extents, KvRef
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.tier import Tier

# Layers of prompts on their way out of a device's memory, as planners count them.
_ON_THEIR_WAY = 2


class TierMemory:
    """Memory for KV. The operating system provides its pages as they are written. Reads return copies."""

    def __init__(self, n_bytes: int) -> None:
        try:
            self._memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            what = f"no {n_bytes / 2**30:,.1f} GiB of memory for KV"
            raise InputError(f"policies.placement: {what}: {error}; say placement: storage") from None
        self._whole = memoryview(self._memory)

    def write(self, extents: Extents, data: Bytes) -> None:
        if (found := self._rows(extents)) is not None:
            rows, numbers = found
            rows[numbers] = np.frombuffer(data, np.uint8, extents.n_bytes).reshape(len(numbers), -1)
            return
        view, at = memoryview(data), 0
        for offset, length in extents:
            self._whole[offset : offset + length] = view[at : at + length]
            at += length

    def read(self, extents: Extents) -> Data:
        _offsets, lengths = extents.arrays
        ats = np.cumsum(lengths) - lengths
        if (found := self._rows(extents)) is not None:
            rows, numbers = found
            return Data(memoryview(rows[numbers].reshape(-1)), ats, lengths, lambda: None)
        copied = memoryview(bytearray(extents.n_bytes))
        for at, (offset, length) in zip(ats.tolist(), extents, strict=True):
            copied[at : at + length] = self._whole[offset : offset + length]
        return Data(copied, ats, lengths, lambda: None)

    def brought(self, extents: Extents) -> Data:
        """Returns what is read: the processor takes it as it is."""
        return self.read(extents)

    def _rows(self, extents: Extents) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the memory as rows uint8[n, length], and which of them the extents are; None where they are not
        alike. Single tokens' KV is a few hundred bytes: to go from one to the next would take longer than to copy
        them."""
        offsets, lengths = extents.arrays
        if not len(lengths) or (lengths != (length := int(lengths[0]))).any() or (offsets % length).any():
            return None
        whole = np.frombuffer(self._memory, np.uint8)
        return whole[: len(whole) // length * length].reshape(-1, length), offsets // length

    def give_up(self, extents: Extents) -> None:
        """Returns pages that lie within these ranges to the operating system, as their KV is not needed any more."""
        page = mmap.PAGESIZE
        for offset, length in extents:
            begin, end = -(-offset // page) * page, (offset + length) // page * page
            if begin < end:
                with suppress(AttributeError, OSError):
                    self._memory.madvise(mmap.MADV_DONTNEED, begin, end - begin)


class KvTiers:
    """The memory of the tiers "device" and "host", for a LiveMachine; both are distinct even where the processor uses
    the host's memory. ``n_bytes``: of the layout's file.

    `copies`: of a device that has memory of its own; None: the processor uses the host's. In `regions`, copies and
    attention of such a device wait for each other. Where these are `layers`, each takes memory from its first write
    until it leaves.
    """

    def __init__(self, n_bytes: int, copies: Copies | None = None, regions: int = 1, *, layers: bool = False) -> None:
        self._n_bytes, self._copies, self._regions, self._layers = n_bytes, copies, regions, layers
        self._packed: set[WrittenLayers] = set()
        self._on_its_way = Condition()

    @cached_property
    def device(self) -> TierMemory | DeviceMemory:
        if self._copies is None:
            return TierMemory(self._n_bytes)
        return DeviceMemory(self._n_bytes, self._copies, self._regions, layers=self._layers)

    @cached_property
    def host(self) -> TierMemory | HostMemory:
        if self._copies is None:
            return TierMemory(self._n_bytes)
        return HostMemory(self._n_bytes, self._copies, self._regions, layers=self._layers)

    def have_ready(self, tiers: Iterable[Tier]) -> None:
        """Raises InputError now where there is no memory for these tiers, of a processor that uses the host's: a
        device's own is taken layer by layer."""
        for tier in tiers:
            if tier != "storage":
                getattr(self, tier)

    def settle(self) -> None:
        """Wait until the device has what was made ready for it."""
        if self._copies is not None:
            self._copies.settle()

    def upload(self, numbers: np.ndarray, device: torch.device) -> torch.Tensor:
        """Copies to the processor's memory, without waiting for it."""
        here = torch.from_numpy(np.ascontiguousarray(numbers))
        if self._copies is None:
            return here.to(device)
        raw = here.flatten().view(torch.uint8)
        there = self._copies.staged(len(raw), lambda into: into.copy_(raw))
        return there.view(here.dtype).view(here.shape)

    def source(self, extents: Extents, request: int | None, inputs: Sequence[Any]) -> Bytes:
        """Returns the bytes that a move takes out of the processor's memory: what the op before it made, or what lies
        there."""
        if inputs and isinstance(inputs[0], WrittenLayers):
            taken = source(extents, request, inputs)
            self._has_left(extents, inputs[0])
            return taken
        leaving = self._leaving(extents, request, inputs)
        return bytes(leaving) if isinstance(leaving, Data) else leaving

    def _leaving(self, extents: Extents, request: int | None, inputs: Sequence[Any]) -> Bytes | TensorData:
        if inputs and isinstance(inputs[0], Data):
            if extents.placed is not None:
                # It came from there, for good.
                self.host.give_up(extents)
            return self._taken(inputs[0])
        if inputs and inputs[0] is not None:
            written = inputs[0]
            if self._copies is not None and isinstance(written, WrittenLayers):
                return TensorData(self._tensor_of(extents, written), extents.arrays[1], self._copies)
            return source(extents, request, inputs)
        leaving = self._taken(self.device.read(extents))
        self.device.give_up(extents)
        return leaving

    def keep(self, kv: Extents, written: Written) -> None:
        """Put what an op made into the processor's own memory: without a way through the host's, where it can be."""
        if isinstance(self.device, DeviceMemory) and isinstance(written, WrittenLayers):
            self.device.write(kv, self._tensor_of(kv, written))
        else:
            self.device.write(kv, written.bytes_of(kv))

    def _tensor_of(self, extents: Extents, written: WrittenLayers) -> torch.Tensor:
        """Returns what was written, uint8[n], for the present stream: another one may have made it."""
        assert self._copies is not None
        for one in written.made:
            self._copies.used_here(one)
        return written.tensor_of(extents)

    def pack(self, written: WrittenLayers) -> None:
        """Pack what an op made for another tier, on the op's stream: the tier may write it on another one. Waits while
        a device's memory holds more on its way out than it may."""
        if written.pack():
            with self._on_its_way:
                self._packed.add(written)
                self._on_its_way.wait_for(lambda: len(self._packed) <= _ON_THEIR_WAY)

    def _has_left(self, extents: Extents, written: WrittenLayers) -> None:
        with self._on_its_way:
            if extents.n_bytes >= written.n_bytes:
                written.drop()
            self._packed.discard(written)
            self._on_its_way.notify_all()

    def _taken(self, read: Data) -> Bytes | TensorData:
        """Returns what was read; its memory may be used again unless it is a device's."""
        if isinstance(read, TensorData):
            return read
        taken = bytes(read)
        read.release()
        return taken

    def place(self, kv: KvRef | Extents, to: Tier, request: int | None, inputs: Sequence[Any]) -> Data | None:
        """Copy KV to the host's memory, or from there to the processor's: to its place, or to be attended to."""
        assert isinstance(kv, Extents)
        if to == "host":
            _put(self.host, kv, self._leaving(kv, request, inputs))
            if inputs and isinstance(inputs[0], WrittenLayers):
                self._has_left(kv, inputs[0])
            return None
        if kv.placed is None:
            return self.host.brought(kv)
        if inputs and hasattr(inputs[0], "bytes_of"):
            # An op made it.
            self.keep(kv, inputs[0])
            if isinstance(inputs[0], WrittenLayers):
                self._has_left(kv, inputs[0])
            return None
        if inputs and isinstance(inputs[0], Data):
            arrived: Data = inputs[0]
        else:
            arrived = self.host.read(kv)
            self.host.give_up(kv)
        _put(self.device, kv, self._taken(arrived))
        return None


def memory_of(tiers: KvTiers | None) -> KvTiers:
    """Raises KvferryError where there is none."""
    if tiers is None:
        raise KvferryError("no KV lies in the processor's own memory: this machine was made without it")
    return tiers


def left(written: Written | None, stays: Extents | None, tiers: KvTiers | None) -> Written | None:
    """Returns what an op leaves to be written elsewhere, and puts what stays into the processor's own memory."""
    if written is not None and stays is not None:
        memory_of(tiers).keep(stays, written)
    if isinstance(written, WrittenLayers) and (stays is None or stays.n_bytes < written.n_bytes):
        if tiers is None:
            written.pack()
        else:
            tiers.pack(written)
    return written


def _put(memory: TierMemory | DeviceMemory | HostMemory, kv: Extents, data: Bytes | TensorData) -> None:
    """From one side to the other without a stop, where both are tensors."""
    if not isinstance(data, TensorData):
        memory.write(kv, data)
    elif isinstance(memory, TierMemory):
        memory.write(kv, bytes(data))
    else:
        memory.write(kv, data.tensor)

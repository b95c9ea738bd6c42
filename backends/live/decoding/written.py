"""The output of an op that is to be written: bytes of KV as they lie in a tier, by layer."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from kvferry.backends.live.decoding.block_format import BlockFormat
from kvferry.machine.ops import Extents
from kvferry.system.aligned_memory import aligned_memory

Bytes = bytes | bytearray | memoryview


class Written(Protocol):
    def bytes_of(self, extents: Extents) -> Bytes:
        """Returns what lies in these ranges, one of the ``extents.placed`` layers after the other."""
        ...


class WrittenLayers:
    """KV blocks [rows, blocks, *shape] of some layers, equally many of each. They are packed when they are first asked
    for, those of a device that has memory of its own in that memory."""

    def __init__(self, format: BlockFormat, blocks: Sequence[torch.Tensor], layers: Sequence[int]) -> None:
        self._format, self._blocks = format, blocks
        self._at = {layer: n for n, layer in enumerate(layers)}
        self._whole: memoryview | None = None
        self._there: torch.Tensor | None = None
        self._apart = blocks[0].device.type != "cpu"
        self.n_bytes = len(blocks) * blocks[0].shape[0] * blocks[0].shape[1] * format.layout.stride_bytes

    def pack(self) -> bool:
        """Make what is written of all layers, one after the other, on the stream that made the blocks. Returns whether
        it lies in the memory of a device."""
        if self._apart:
            if self._there is None:
                self._there, self._blocks = self._format.packed_there(self._blocks), ()
        elif self._whole is None:
            self._whole = self._format.packed(self._blocks)
        return self._apart

    def drop(self) -> None:
        """Give the device's memory back: all of it has been written."""
        if self._apart:
            self._there, self._blocks = None, ()

    @property
    def made(self) -> Sequence[torch.Tensor]:
        """Returns the tensors that hold it at present."""
        return self._blocks if self._there is None else [self._there]

    def bytes_of(self, extents: Extents) -> Bytes:
        layers = self._layers(extents)
        if self._apart:
            there = self.tensor_of(extents)
            whole = aligned_memory(len(there))
            torch.frombuffer(whole, dtype=torch.uint8).copy_(there)
            return whole
        self.pack()
        assert self._whole is not None
        if layers == list(self._at):
            return self._whole
        each = len(self._whole) // len(self._at)
        return joined([self._whole[self._at[layer] * each : (self._at[layer] + 1) * each] for layer in layers])

    def tensor_of(self, extents: Extents) -> torch.Tensor:
        """Returns the same, uint8[n], where the blocks are."""
        layers = self._layers(extents)
        if self._there is None:
            return self._format.packed_there([self._blocks[self._at[layer]] for layer in layers])
        if layers == list(self._at):
            return self._there
        parts = self._there.chunk(len(self._at))
        return torch.cat([parts[self._at[layer]] for layer in layers])

    def _layers(self, extents: Extents) -> list[int]:
        return list(self._at) if extents.placed is None else list(extents.placed)


class WrittenPieces:
    """``contents`` has the bytes of pieces of clusters, by layer, row, block and first entry."""

    def __init__(self, contents: Mapping[tuple[int, int, int, int], Bytes]) -> None:
        self._contents = contents

    def bytes_of(self, extents: Extents) -> Bytes:
        pieces = extents.pieces
        assert pieces is not None
        columns = (pieces.layers, pieces.rows, pieces.blocks, pieces.firsts)
        places = zip(*(column.tolist() for column in columns), strict=True)
        whole = joined([memoryview(self._contents[place]) for place in places])
        assert len(whole) == extents.n_bytes, "ranges are not as long as what is there to be written"
        return whole


def joined(parts: Sequence[memoryview]) -> memoryview:
    """Returns the parts as one, in memory that direct I/O takes as it is."""
    whole = aligned_memory(max(1, sum(map(len, parts))))
    at = 0
    for part in parts:
        whole[at : at + len(part)] = part
        at += len(part)
    return whole[:at]


def source(extents: Extents, request: int | None, inputs: Sequence[Any]) -> Bytes:
    """Returns, for a LiveMachine, what a write is of, from the op that it comes after."""
    written: Written = inputs[0]
    return written.bytes_of(extents)

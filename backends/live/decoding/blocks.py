"""KV blocks of a lock-step batch: those in the file, those in slots of the reuse buffers, and the one that grows."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from kvferry.backends.live.decoding.block_format import BlockFormat, raw_bytes
from kvferry.backends.live.decoding.entry_log import EntryLog
from kvferry.backends.live.decoding.indexes.index import BlockIndex
from kvferry.backends.live.decoding.rebuilt_keys import RebuiltKeys
from kvferry.backends.live.decoding.written import WrittenLayers
from kvferry.disk.direct_storage import Data
from kvferry.machine.handles import Attended, Rebuilt
from kvferry.machine.ops import OutputHead
from kvferry.policies.decode.spans import gaps
from kvferry.specs.errors import KvferryError


class StoredBlocks:
    """Tensors of what policies decide about: where a KV block lies, and which slot it takes, is said by ops.

    ``recent`` tokens of every sequence are in the rolling buffer, as their KV block is not complete; the token under
    way is not among them. `slots` per row of each layer's reuse buffer, 0: none; places counted on from there are in
    what was read, and not kept. `rebuilt` holds the keys where the file has values alone. `log`, where KV blocks are of
    one token, records what becomes of the file before it does.
    """

    def __init__(
        self,
        format: BlockFormat,
        *,
        context: int,
        device: torch.device,
        slots: int = 0,
        rebuilt: RebuiltKeys | None = None,
        log: EntryLog | None = None,
        upload: Callable[[np.ndarray, torch.device], torch.Tensor] | None = None,
    ) -> None:
        assert format.values_only == (rebuilt is not None)
        assert log is None or format.group_tokens == 1
        self._log, self._upload = log, upload or (lambda numbers, device: torch.from_numpy(numbers).to(device))
        layout = format.layout
        self.format, self.layers, self.sequences = format, layout.layers, layout.sequences
        self.recent = context % format.group_tokens
        self._whole = context - self.recent
        # Ranges of the context's KV blocks that are not to be written, as they lie in the file.
        self.lying: Sequence[tuple[int, int]] = ()
        self._rebuilt = rebuilt
        like = {"dtype": format.dtype, "device": device}
        self._slots = torch.zeros((layout.layers, format.rows * slots, *format.shape), **like) if slots else None
        self._row_slots, self._first_slot = slots, np.arange(format.rows)[:, None] * slots
        rolling = (layout.layers, format.sides, layout.sequences, format.kv_heads, format.group_tokens, format.head_dim)
        self._rolling = torch.zeros(rolling, **like)
        # By layer, keys that wait to be decomposed, and keys that were rebuilt for its next attention.
        self._undecomposed: dict[int, torch.Tensor] = {}
        self._ready_keys: dict[int, torch.Tensor] = {}

    @property
    def n_bytes(self) -> int:
        """Returns what reuse buffers and rolling buffers take in memory."""
        return self._rolling.nbytes + (0 if self._slots is None else self._slots.nbytes)

    @property
    def key_bytes(self) -> int:
        """Returns what rebuilt keys take in memory."""
        return self._rebuilt.n_bytes if self._rebuilt else 0

    def prefilled(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, order: torch.Tensor | None
    ) -> WrittenLayers | None:
        """Take in a layer of the prompts, each [sequences, KV heads, tokens, head_dim]; what of it is to be written;
        None: nothing. Blocks are of consecutive tokens."""
        assert order is None
        for side, one in enumerate(self.format.kept(keys, values)):
            self._rolling[layer, side, :, :, : self.recent] = one[:, :, self._whole :]
        if self._rebuilt is not None:
            self._undecomposed[layer] = keys[:, :, : self._whole]
        blocks = self.format.blocks(keys[:, :, : self._whole], values[:, :, : self._whole])
        if self._log is not None:
            rows, tokens = np.indices(blocks.shape[:2])
            self._log.prompts(layer, raw_bytes(blocks), self.format.layout.ranges(layer, rows, tokens)[0])
        if self.lying:
            lacking = gaps([*self.lying], blocks.shape[1])
            if not lacking:
                return None
            blocks = torch.cat([blocks[:, begin:end] for begin, end in lacking], dim=1)
        return WrittenLayers(self.format, [blocks], [layer])

    def decompose(self, layer: int | None) -> None:
        """Keep a prefilled layer's keys at a low rank."""
        if self._rebuilt is None or layer not in self._undecomposed:
            raise KvferryError(f"no keys of layer {layer} wait to be decomposed")
        self._rebuilt.decompose(layer, self._undecomposed.pop(layer))

    def rebuild(self, kv: Rebuilt | None) -> None:
        """Rebuilds the keys of a layer's chosen KV blocks, for its attention."""
        if self._rebuilt is None or kv is None:
            raise KvferryError("no keys can be rebuilt: the file has them all, or the op does not say which")
        self._ready_keys[kv.layer] = self._rebuilt.rebuilt(kv.layer, kv.ids)

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take in the token under way, each [sequences, KV heads, 1, head_dim]."""
        for side, one in enumerate(self.format.kept(keys, values)):
            self._rolling[layer, side, :, :, self.recent] = one[:, :, 0]

    def attended(self, kv: Attended, read: Data) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns keys and values that a layer's attention takes in, each [sequences, KV heads, tokens, head_dim]: what
        was chosen, `kv.recent` tokens of the rolling buffer, and the one under way. Rows are equally long, so all of it
        is there. Releases the read."""
        if not 0 <= kv.recent <= self.recent:
            raise KvferryError(f"{kv.recent} recent tokens are to be attended, {self.recent} are in memory")
        brought = list(self.format.side_by_side(self._brought(kv, read)))
        if self._rebuilt is not None:
            if kv.layer not in self._ready_keys:
                raise KvferryError(f"keys of layer {kv.layer} have not been rebuilt")
            brought.insert(0, self._ready_keys.pop(kv.layer))
        recent = self._rolling[kv.layer, :, :, :, self.recent - kv.recent : self.recent + 1]
        whole = tuple(torch.cat(pair, dim=2) for pair in zip(brought, recent, strict=True))
        read.release()
        return *self.format.keys_values(whole), None

    def grown(self, op: OutputHead, index: BlockIndex | None) -> WrittenLayers | None:
        """Takes note that the token under way has passed all layers. Where it completes the KV block of the rolling
        buffer, as `op` says, empties the buffer, adds the block's keys to the index, and returns what is to be
        written."""
        self.recent += 1
        if op.complete is None:
            return None
        if self.recent != self.format.group_tokens:
            raise KvferryError(f"a group of {self.format.group_tokens} tokens is not complete with {self.recent}")
        self.recent = 0
        keys = self._rolling[:, 0]
        if self._rebuilt is not None:
            for layer in range(self.layers):
                self._rebuilt.append(layer, keys[layer])
        if index is not None:
            for layer, of_layer in enumerate(keys):
                index.append(layer, of_layer)
        blocks = [self.format.blocks(*self.format.keys_values(layer)) for layer in self._rolling]
        if self._log is not None:
            offsets, _ = self.format.layout.column(op.complete, np.arange(self.layers))
            self._log.step(raw_bytes(torch.stack(blocks)[:, :, 0]), offsets)
        return WrittenLayers(self.format, blocks, range(self.layers))

    def _brought(self, kv: Attended, read: Data) -> torch.Tensor:
        """Returns KV blocks [rows, k, *shape]: the ones read, put into their slots where there are any, and the ones
        that lay there already."""
        came = self.format.unpacked(read.rows()).to(self._rolling.device)
        if kv.slots is None or kv.missing is None:
            return came.unflatten(0, (self.format.rows, -1))
        assert self._slots is not None
        kept = kv.slots < self._row_slots
        enters = kept[kv.missing]
        if len(came) != len(enters):
            raise KvferryError(f"{len(came)} KV blocks were read, {len(enters)} are missing")
        slots = np.where(kept, kv.slots, 0) + self._first_slot
        # Together: one upload.
        numbers = [slots[kv.missing & kept], slots.ravel()]
        if passing := int(np.count_nonzero(~kept)):
            numbers += [np.flatnonzero(enters), np.flatnonzero(~kept), np.flatnonzero(~enters)]
        there = self._upload(np.concatenate(numbers), came.device)
        taken, chosen, *apart = there.split([len(one) for one in numbers])
        if len(taken):
            self._slots[kv.layer].index_copy_(0, taken, came.index_select(0, apart[0]) if passing else came)
        brought = self._slots[kv.layer].index_select(0, chosen)
        if passing:
            brought.index_copy_(0, apart[1], came.index_select(0, apart[2]))
        return brought.unflatten(0, slots.shape)

"""KV blocks that are clusters: of different size, growing and splitting as the policies decide."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from kvferry.backends.live.decoding.indexes.centroids import Centroids
from kvferry.backends.live.decoding.written import Bytes, WrittenBlocks
from kvferry.disk.direct_storage import Data
from kvferry.machine.handles import Attended
from kvferry.machine.ops import Clustered, Divided, Extents, OutputHead, Split
from kvferry.policies.decode.means import two_means
from kvferry.policies.decode.pools import PoolLayout
from kvferry.policies.decode.rows import Cut, Joined
from kvferry.specs.errors import InputError, KvferryError

# A row and a block of it, in some layer.
Place = tuple[int, int]


class ClusterFormat:
    """A KV block is as many entries as it has tokens, each [sides, heads of a row, head_dim] in the model's own
    numbers; so a token more is written behind the others. Raises InputError for a layout whose tokens have another
    size."""

    def __init__(self, layout: PoolLayout, *, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.layout, self.kv_heads, self.head_dim, self.dtype = layout, kv_heads, head_dim, dtype
        self.shape = (2, kv_heads // layout.heads, head_dim)
        n_bytes = int(np.prod(self.shape)) * dtype.itemsize
        if n_bytes != layout.token_bytes:
            raise InputError(
                f"a token in {str(dtype).removeprefix('torch.')} takes {n_bytes} bytes per row, the layout has"
                f" {layout.token_bytes}; is the model's kv_value_bytes that of its dtype?"
            )

    def entries(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """[rows, tokens, *shape] of keys and values [sequences, KV heads, tokens, head_dim]."""
        sides = torch.stack([keys, values]).unflatten(2, (self.layout.heads, -1))
        return sides.permute(1, 2, 4, 0, 3, 5).flatten(0, 1)

    def packed(self, entries: torch.Tensor) -> bytes:
        """Entries [tokens, *shape] as they lie in the file, with zeros up to a whole storage block."""
        whole = entries.to("cpu").contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return whole + bytes(-len(whole) % self.layout.alignment_bytes)

    def unpacked(self, read: Bytes, tokens: int) -> torch.Tensor:
        flat = torch.frombuffer(bytearray(read[: tokens * self.layout.token_bytes]), dtype=self.dtype)
        return flat.view(tokens, *self.shape)


@dataclass(frozen=True, slots=True, eq=False)
class ClusteredKv(Clustered):
    """The answer, and what is to be written of it."""

    written: WrittenBlocks

    def bytes_of(self, extents: Extents) -> Bytes:
        return self.written.bytes_of(extents)


class ClusterBlocks:
    """Tensors of clusters of a lock-step batch. Of every cluster the storage block in which it ends is in memory, so
    that a token more can be written without a read, and so are entries that wait for it to be cut; the clusters that a
    step attends to are at hand until it ends."""

    def __init__(self, format: ClusterFormat, *, device: torch.device) -> None:
        layout = format.layout
        self.format, self.layers, self.sequences = format, layout.layers, layout.sequences
        # All tokens of the prompts belong to clusters.
        self.recent, self.key_bytes = 0, 0
        self._device = device
        # By layer: slots of the reuse buffer by row, clusters at hand, ends of clusters, entries that wait for one, and
        # the token under way.
        self._slots: list[dict[Place, torch.Tensor]] = [{} for _ in range(layout.layers)]
        self._here: list[dict[Place, torch.Tensor]] = [{} for _ in range(layout.layers)]
        self._ends: list[dict[Place, bytes]] = [{} for _ in range(layout.layers)]
        self._waiting: list[dict[Place, list[torch.Tensor]]] = [{} for _ in range(layout.layers)]
        self._new: list[torch.Tensor | None] = [None] * layout.layers
        # What prompts left in a layer, until it is clustered.
        self._prompts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def n_bytes(self) -> int:
        """What reuse buffers, ends of clusters and entries that wait take in memory."""
        slots = sum(slot.nbytes for of_layer in self._slots for slot in of_layer.values())
        waiting = sum(one.nbytes for of_layer in self._waiting for some in of_layer.values() for one in some)
        return slots + waiting + sum(len(end) for of_layer in self._ends for end in of_layer.values())

    def prefilled(self, layer: int, keys: torch.Tensor, values: torch.Tensor, order: torch.Tensor | None) -> None:
        """Take in a layer of the prompts. Nothing can be written before it is clustered."""
        self._prompts[layer] = keys, values

    def clustered(self, layer: int, clusters: int, index: Centroids) -> ClusteredKv:
        """Make clusters of a layer of the prompts."""
        keys, values = self._prompts.pop(layer)
        labels, entries = index.cluster(layer, keys, clusters, 0), self.format.entries(keys, values)
        contents: list[Bytes] = []
        for row, of_row in enumerate(labels):
            order = torch.from_numpy(np.argsort(of_row, kind="stable"))
            for block, members in enumerate(entries[row][order].split(index.sizes(layer, row))):
                contents.append(self._written(layer, (row, block), members))
        table, rows = index.tables[layer], np.arange(len(labels))[:, None]
        variances = table.variances(rows, np.arange(clusters))
        return ClusteredKv(table.counts[:, :clusters].copy(), variances, WrittenBlocks({layer: contents}))

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take in the token under way, each [sequences, KV heads, 1, head_dim]."""
        self._new[layer] = self.format.entries(keys, values)[:, 0]

    def attended(self, kv: Attended, read: Data) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Keys and values that a layer's attention takes in, each [sequences, KV heads, tokens, head_dim], and which of
        them are there, bool[sequences, KV heads, 1, tokens]: rows differ in length. Releases the read."""
        new = self._new[kv.layer]
        assert new is not None and kv.ids is not None and kv.starts is not None and kv.tokens is not None
        self._bring(kv, read)
        rows = []
        for row, one in enumerate(new):
            places = [(row, block) for block in kv.ids[kv.starts[row] : kv.starts[row + 1]].tolist()]
            rows.append(torch.cat([*(part for place in places for part in self._whole(kv.layer, place)), one[None]]))
        lengths = torch.tensor([len(row) for row in rows])
        padded = pad_sequence(rows, batch_first=True)  # rows, tokens, sides, heads of a row, head_dim
        there = (torch.arange(padded.shape[1]) < lengths[:, None]).to(self._device)
        layout, heads = self.format.layout, self.format.shape[1]
        by_head = padded.permute(2, 0, 3, 1, 4).unflatten(1, (layout.sequences, layout.heads)).flatten(2, 3)
        mask = there.unflatten(0, (layout.sequences, layout.heads)).repeat_interleave(heads, 1)
        return by_head[0], by_head[1], mask[:, :, None]

    def split(self, op: Split, read: Data | None, index: Centroids) -> Divided:
        """Carry out cuts. `read` has the clusters that are not at hand, row by row. Releases it."""
        here, new = self._here[op.layer], self._new[op.layer]
        assert new is not None
        places = [(cut.row, cut.block) for cut in op.cuts]
        absent = sorted(place for place in places if place not in here)
        if len(absent) != (0 if read is None else len(read.views)):
            raise KvferryError(f"{len(absent)} clusters of layer {op.layer} are cut and not in memory")
        if read is not None:
            for place, view in zip(absent, read.views, strict=True):
                here[place] = self.format.unpacked(view, len(view) // self.format.layout.token_bytes).to(self._device)
            read.release()
        tokens, variances = np.zeros((len(places), 2), np.int64), np.zeros((len(places), 2))
        for n, (cut, place) in enumerate(zip(op.cuts, places, strict=True)):
            waiting = self._waiting[op.layer].get(place, [])
            came = [*waiting, *([new[cut.row][None]] if cut.joins else [])]
            # What was read ends with a whole storage block.
            entries = torch.cat([here[place][: cut.tokens - len(came)], *came])
            self._waiting[op.layer].pop(place, None)
            keys = entries[:, 0].flatten(1).float().cpu().double().numpy()
            leaves = np.zeros(len(keys), bool)
            if cut.new is not None:
                leaves = two_means(keys[None], np.ones((1, len(keys)), bool))[0]
                here[cut.row, cut.new] = entries[torch.from_numpy(leaves)]
                variances[n, 1] = index.set(op.layer, cut.row, cut.new, keys[leaves])
            here[place] = entries[torch.from_numpy(~leaves)]
            variances[n, 0] = index.set(op.layer, cut.row, cut.block, keys[~leaves])
            tokens[n] = (~leaves).sum(), leaves.sum()
        return Divided(tokens, variances)

    def grown(self, op: OutputHead, index: Centroids | None) -> WrittenBlocks:
        """Adds the token under way, which has passed all layers, to the clusters that `op` names. Returns what is to be
        written."""
        assert index is not None
        if len(op.joined) != self.layers:
            raise KvferryError(f"new keys of {len(op.joined)} of {self.layers} layers are said to join clusters")
        contents = {layer: self._join(layer, joined, index) for layer, joined in enumerate(op.joined)}
        for of_layer in self._here:
            of_layer.clear()
        return WrittenBlocks(contents)

    def _whole(self, layer: int, place: Place) -> list[torch.Tensor]:
        """A cluster at hand, with what waits for it."""
        return [self._here[layer][place], *self._waiting[layer].get(place, [])]

    def _bring(self, kv: Attended, read: Data) -> None:
        """Gathers the clusters of a step: those that were read, which enter their slots where there are any, and those
        that lay there already."""
        assert kv.ids is not None and kv.starts is not None and kv.tokens is not None and kv.missing is not None
        here, slots, came = self._here[kv.layer], self._slots[kv.layer], iter(read.views)
        rows = np.repeat(np.arange(len(kv.starts) - 1), np.diff(kv.starts)).tolist()
        is_read = np.ones(len(rows), bool) if kv.at is not None else kv.missing
        if len(read.views) != int(is_read.sum()):
            raise KvferryError(f"{len(read.views)} KV blocks were read, {int(is_read.sum())} are missing")
        for n, (row, block) in enumerate(zip(rows, kv.ids.tolist(), strict=True)):
            slot = None if kv.slots is None else (row, int(kv.slots[n]))
            if is_read[n]:
                # Of its tokens, those that lie in the file.
                stored = int(kv.tokens[n]) - len(self._waiting[kv.layer].get((row, block), []))
                here[row, block] = self.format.unpacked(next(came), stored).to(self._device)
                if slot is not None:
                    slots[slot] = here[row, block]
            else:
                assert slot is not None
                here[row, block] = slots[slot]
        read.release()

    def _join(self, layer: int, joined: Sequence[Joined | Cut], index: Centroids) -> list[Bytes]:
        new, here, contents = self._new[layer], self._here[layer], list[Bytes]()
        assert new is not None
        for one in joined:
            place = one.row, one.block
            if isinstance(one, Cut):
                contents.append(self._written(layer, place, here[place]))
                if one.new is not None:
                    contents.append(self._written(layer, (one.row, one.new), here[one.row, one.new]))
                continue
            entry = new[one.row][None]
            if one.buffered:
                self._waiting[layer].setdefault(place, []).append(entry)
                continue
            index.join(layer, one.row, one.block, entry[0, 0].flatten().float().cpu().numpy())
            if place in here:
                here[place] = torch.cat([here[place], entry])
                contents.append(self._written(layer, place, here[place]))
            else:
                contents.append(self._appended(layer, place, entry))
        return contents

    def _written(self, layer: int, place: Place, entries: torch.Tensor) -> Bytes:
        """A whole cluster; remembers its end."""
        content, unit = self.format.packed(entries), self.format.layout.alignment_bytes
        used = len(entries) * self.format.layout.token_bytes
        self._ends[layer][place] = content[used // unit * unit : used]
        return content

    def _appended(self, layer: int, place: Place, entry: torch.Tensor) -> Bytes:
        """One entry behind a cluster of which only the end is in memory."""
        unit = self.format.layout.alignment_bytes
        whole = self._ends[layer][place] + self.format.packed(entry)[: self.format.layout.token_bytes]
        self._ends[layer][place] = whole[len(whole) // unit * unit :]
        return whole + bytes(-len(whole) % unit)

"""KV blocks that are clusters: of different size, growing and splitting as the policies decide."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from kvferry.backends.live.decoding.block_format import raw_bytes
from kvferry.backends.live.decoding.cluster_members import Place
from kvferry.backends.live.decoding.entry_log import ClusterLog
from kvferry.backends.live.decoding.indexes.centroids import Centroids
from kvferry.backends.live.decoding.written import Bytes, WrittenPieces, joined
from kvferry.disk.direct_storage import Data
from kvferry.layouts.cluster_layout import ClusterLayout
from kvferry.layouts.pieces import Pieces, Reads
from kvferry.machine.handles import Attended
from kvferry.machine.ops import Cluster, Extents, OutputHead, Split
from kvferry.policies.decode.means import two_means
from kvferry.policies.decode.splits import Clustered, Joined, SplitParts
from kvferry.specs.errors import InputError, KvferryError


class ClusterFormat:
    """A KV block is as many entries as it has tokens, each [sides, heads of a row, head_dim] in the model's own
    numbers; so a token more is written behind the others. Raises InputError for a layout whose tokens have another
    size."""

    def __init__(self, layout: ClusterLayout, *, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
        self.layout, self.kv_heads, self.head_dim, self.dtype = layout, kv_heads, head_dim, dtype
        self.shape = (2, kv_heads // layout.heads, head_dim)
        n_bytes = int(np.prod(self.shape)) * dtype.itemsize
        if n_bytes != layout.token_bytes:
            raise InputError(
                f"a token in {str(dtype).removeprefix('torch.')} takes {n_bytes} bytes per row, the layout has"
                f" {layout.token_bytes}; is the model's kv_value_bytes that of its dtype?"
            )

    def entries(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Returns [rows, tokens, *shape] of keys and values [sequences, KV heads, tokens, head_dim]."""
        sides = torch.stack([keys, values]).unflatten(2, (self.layout.heads, -1))
        return sides.permute(1, 2, 4, 0, 3, 5).flatten(0, 1)

    def packed(self, entries: torch.Tensor, down: bool) -> Bytes:
        """Returns entries [tokens, *shape] as they lie in the file."""
        in_file = entries.flip(0) if down else entries
        return in_file.to("cpu").contiguous().flatten().view(torch.uint8).numpy().tobytes()

    def unpacked(self, read: Bytes, down: bool) -> torch.Tensor:
        entries = torch.frombuffer(bytearray(read), dtype=self.dtype).view(-1, *self.shape)
        return entries.flip(0) if down else entries


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ClusteredKv(Clustered):
    """The answer, and what is to be written of it, by row and cluster: a Written, which a log records."""

    format: ClusterFormat
    clusters: dict[Place, torch.Tensor]
    log: ClusterLog | None

    def bytes_of(self, extents: Extents) -> Bytes:
        assert extents.pieces is not None
        parts = []
        for place, first, tokens, down in stretches_of(extents.pieces):
            parts.append(self.format.packed(self.clusters[place][first : first + tokens], down))
        whole = joined([memoryview(part) for part in parts])
        if self.log is not None:
            assert self.labels is not None
            self.log.clustered(int(extents.pieces.layers[0]), self.labels, extents.pieces, whole)
        return whole


class ClusterBlocks:
    """Tensors of clusters of a lock-step batch, each with its entries in the order in which they came to it. Clusters
    that a step attends to are in memory until it ends. Of other clusters, entries that wait for a split are in memory,
    and entries in page buffers, which are not in the file yet. `log` records what becomes of the file before it
    does."""

    def __init__(self, format: ClusterFormat, *, device: torch.device, log: ClusterLog | None = None) -> None:
        layout, self._log = format.layout, log
        self.format, self.layers, self.sequences = format, layout.layers, layout.sequences
        # All tokens of the prompts belong to clusters.
        self.recent, self.key_bytes = 0, 0
        self._device = device
        # By layer: slots of the reuse buffer by row, clusters at hand, last entries that are not in the file, entries
        # that wait for a split, and the token under way.
        self._slots: list[dict[Place, torch.Tensor]] = [{} for _ in range(layout.layers)]
        # Slots are numbered as clusters are, and what changes is kept up to date there.
        self._renewed = [False] * layout.layers
        self._here: list[dict[Place, torch.Tensor]] = [{} for _ in range(layout.layers)]
        self._unwritten: list[dict[Place, torch.Tensor]] = [{} for _ in range(layout.layers)]
        self._waiting: list[dict[Place, list[torch.Tensor]]] = [{} for _ in range(layout.layers)]
        self._new: list[torch.Tensor | None] = [None] * layout.layers
        # Tokens of every row that belong to no cluster yet.
        self._recent: list[torch.Tensor | None] = [None] * layout.layers
        # The prompts' keys and values of a layer, until it is clustered.
        self._prompts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def n_bytes(self) -> int:
        """Returns what reuse buffers, page buffers, newest tokens and waiting entries take in memory."""
        parts = (*self._slots, *self._unwritten)
        kept = sum(entries.nbytes for of_layer in parts for entries in of_layer.values())
        kept += sum(recent.nbytes for recent in self._recent if recent is not None)
        return kept + sum(one.nbytes for of_layer in self._waiting for some in of_layer.values() for one in some)

    def prefilled(self, layer: int, keys: torch.Tensor, values: torch.Tensor, order: torch.Tensor | None) -> None:
        """Take in a layer of the prompts. Nothing can be written before it is clustered."""
        self._prompts[layer] = keys, values

    def clustered(self, op: Cluster, read: Data | None, index: Centroids) -> Clustered:
        """Make clusters of a layer of the prompts, which are to be written, or of all of its tokens (`read` has those
        that are not at hand), or of its newest, which belong to none yet; the one under way is among them."""
        if op.step < 0:
            entries = self.format.entries(*self._prompts.pop(op.layer))
        elif op.whole:
            entries = self._everything(op, read)
        else:
            entries = self._newest(op.layer)
            self._recent[op.layer] = None
        labels = index.cluster(op.layer, _numbers(entries), op.clusters, op.first)
        table, rows = index.tables[op.layer], np.arange(len(labels))[:, None]
        numbers = np.arange(op.first, op.first + op.clusters)
        tokens, variances = table.counts[rows, numbers], table.variances(rows, numbers)
        parts = {}
        for row, of_row in enumerate(labels):
            order = torch.from_numpy(np.argsort(of_row, kind="stable"))
            for block, members in zip(numbers.tolist(), entries[row][order].split(tokens[row].tolist()), strict=True):
                parts[row, block] = members
        if op.step < 0:
            retrieved = index.references(op.layer, op.references, op.k)
            return ClusteredKv(tokens, variances, labels, retrieved, format=self.format, clusters=parts, log=self._log)
        if self._log is not None:
            self._log.grouped(op.layer, op.first, labels, op.whole)
        self._here[op.layer] |= parts
        self._renew(op.layer, parts)
        return Clustered(tokens, variances, labels)

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take in the token under way, each [sequences, KV heads, 1, head_dim]."""
        self._new[layer] = self.format.entries(keys, values)[:, 0]

    def attended(
        self, kv: Attended, read: Data, swapped: Data | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns keys and values that a layer's attention takes in, each [sequences, KV heads, tokens, head_dim], and
        which of them are there, bool[sequences, KV heads, 1, tokens]: rows differ in length. Releases the reads."""
        assert kv.ids is not None and kv.starts is not None and kv.tokens is not None
        self._bring(kv, read, swapped)
        newest = self._newest(kv.layer)
        if newest.shape[1] != kv.recent + 1:
            raise KvferryError(f"{kv.recent} recent tokens are to be attended, {newest.shape[1] - 1} are in memory")
        rows = []
        for row, of_row in enumerate(newest):
            places = [(row, block) for block in kv.ids[kv.starts[row] : kv.starts[row + 1]].tolist()]
            rows.append(torch.cat([*(part for place in places for part in self._whole(kv.layer, place)), of_row]))
        lengths = torch.tensor([len(row) for row in rows])
        padded = pad_sequence(rows, batch_first=True)  # rows, tokens, sides, heads of a row, head_dim
        there = (torch.arange(padded.shape[1]) < lengths[:, None]).to(self._device)
        layout, heads = self.format.layout, self.format.shape[1]
        by_head = padded.permute(2, 0, 3, 1, 4).unflatten(1, (layout.sequences, layout.heads)).flatten(2, 3)
        mask = there.unflatten(0, (layout.sequences, layout.heads)).repeat_interleave(heads, 1)
        return by_head[0], by_head[1], mask[:, :, None]

    def split(self, op: Split, read: Data | None, index: Centroids) -> SplitParts:
        """Carries out splits. `read` has the clusters that are not at hand, row by row. Releases it."""
        here, new = self._here[op.layer], self._new[op.layer]
        assert new is not None
        places = [(split.row, split.block) for split in op.splits]
        if read is not None:
            here |= self._read(op.layer, op.reads, read)
        if absent := [place for place in places if place not in here]:
            raise KvferryError(f"{len(absent)} clusters of layer {op.layer} are split and not in memory")
        tokens, variances = np.zeros((len(places), 2), np.int64), np.zeros((len(places), 2))
        leaving: list[np.ndarray] = []
        for n, (split, place) in enumerate(zip(op.splits, places, strict=True)):
            waiting = self._waiting[op.layer].get(place, [])
            came = [*waiting, *([new[split.row][None]] if split.joins else [])]
            entries = torch.cat([here[place], *came])
            if len(entries) != split.tokens:
                what = f"{len(entries)} entries of cluster {split.block}, row {split.row}, layer {op.layer} are there"
                raise KvferryError(f"{what}, {split.tokens} are to be split")
            self._waiting[op.layer].pop(place, None)
            unwritten = self._unwritten[op.layer].pop(place, None)
            if split.new is None:
                # It stays as it is, and what came may wait in a page buffer.
                self._unwritten[op.layer][place] = torch.cat([*([] if unwritten is None else [unwritten]), *came])
            keys = _numbers(entries).astype(float)
            leaves = np.zeros(len(keys), bool)
            if split.new is not None:
                leaves = two_means(keys[None], np.ones((1, len(keys)), bool))[0]
                here[split.row, split.new] = entries[torch.from_numpy(leaves)]
                variances[n, 1] = index.set(op.layer, split.row, split.new, keys[leaves])
            here[place] = entries[torch.from_numpy(~leaves)]
            parts = (place, *([] if split.new is None else [(split.row, split.new)]))
            self._renew(op.layer, {part: here[part] for part in parts})
            variances[n, 0] = index.set(op.layer, split.row, split.block, keys[~leaves])
            tokens[n] = (~leaves).sum(), leaves.sum()
            leaving.append(leaves)
            if self._log is not None:
                self._log.split(op.layer, split, leaves)
        return SplitParts(tokens, variances, leaving)

    def grown(self, op: OutputHead, index: Centroids | None) -> WrittenPieces:
        """The token under way has passed all layers, and joins the clusters that `op` says; what is to be written."""
        assert index is not None
        if len(op.joined) != self.layers:
            raise KvferryError(f"new keys of {len(op.joined)} of {self.layers} layers are said to join clusters")
        for layer, of_layer in enumerate(op.joined):
            self._join(layer, of_layer or (), index)
            if of_layer is None:
                self._recent[layer] = self._newest(layer)
        contents = {} if op.written is None else self._written(op.written)
        if self._log is not None:
            entries = torch.stack([new for new in self._new if new is not None])
            self._log.grown(op.joined, op.written, contents, raw_bytes(entries))
        for of_here in self._here:
            of_here.clear()
        return WrittenPieces(contents)

    def _everything(self, op: Cluster, read: Data | None) -> torch.Tensor:
        """Returns [rows, tokens, *shape]: all of a layer's, which are in no cluster any more. Releases the read."""
        here, new = self._here[op.layer], self._new[op.layer]
        assert new is not None
        if read is not None:
            here |= self._read(op.layer, op.reads, read)
        rows: list[list[torch.Tensor]] = [[] for _ in new]
        for place in sorted({*here, *self._unwritten[op.layer]}):
            rows[place[0]].append(here[place] if place in here else self._unwritten[op.layer][place])
        entries = [torch.cat([*found, one[None]]) for found, one in zip(rows, new, strict=True)]
        here.clear()
        self._unwritten[op.layer].clear()
        if {len(of_row) for of_row in entries} != {op.tokens}:
            raise KvferryError(f"all {op.tokens} tokens of layer {op.layer} are to be clustered, and are not in memory")
        return torch.stack(entries)

    def _newest(self, layer: int) -> torch.Tensor:
        """Returns [rows, tokens, *shape]: tokens that belong to no cluster yet, and the one under way."""
        new, recent = self._new[layer], self._recent[layer]
        assert new is not None
        return new[:, None] if recent is None else torch.cat([recent, new[:, None]], dim=1)

    def _whole(self, layer: int, place: Place) -> list[torch.Tensor]:
        """Returns a cluster at hand, with what waits for it."""
        return [self._here[layer][place], *self._waiting[layer].get(place, [])]

    def _bring(self, kv: Attended, read: Data, swapped: Data | None) -> None:
        """Gathers the clusters of a step: the ones read, which enter their slots where there are any, and the ones
        that lay there already."""
        assert kv.ids is not None and kv.starts is not None and kv.tokens is not None and kv.missing is not None
        here, slots = self._here[kv.layer], self._slots[kv.layer]
        rows = np.repeat(np.arange(len(kv.starts) - 1), np.diff(kv.starts)).tolist()
        is_read = np.ones(len(rows), bool) if kv.at is not None else kv.missing
        came, kept = self._read(kv.layer, kv.reads, read), slots
        self._renewed[kv.layer] = kv.dropped is not None and not kv.swaps
        if kv.dropped is not None:
            for place in zip(*(part.tolist() for part in kv.dropped), strict=True):
                slots.pop(place, None)
        if kv.swaps:
            kept = {} if swapped is None else self._read(kv.layer, kv.swapped, swapped)
        for n, (row, block) in enumerate(zip(rows, kv.ids.tolist(), strict=True)):
            place, slot = (row, block), None if kv.slots is None else (row, int(kv.slots[n]))
            if not is_read[n]:
                assert slot is not None
                here[place] = kept[slot] if slot in kept else self._unwritten[kv.layer][place]
                continue
            if place not in came and place in self._unwritten[kv.layer]:
                # All of it is in a page buffer.
                came[place] = self._unwritten[kv.layer][place]
            stored = int(kv.tokens[n]) - len(self._waiting[kv.layer].get(place, []))
            if place not in came or len(came[place]) != stored:
                what = f"{len(came.get(place, ()))} entries of cluster {block}, row {row}, layer {kv.layer} were read"
                raise KvferryError(f"{what}, it has {stored}")
            here[place] = came[place]
            if slot is not None and not kv.swaps:
                slots[slot] = here[place]

    def _renew(self, layer: int, clusters: dict[Place, torch.Tensor]) -> None:
        """Keeps clusters at hand that have been made again."""
        if self._renewed[layer]:
            self._slots[layer] |= clusters

    def _read(self, layer: int, reads: Reads | None, read: Data) -> dict[Place, torch.Tensor]:
        """Returns clusters that were read, with what of them is in page buffers. Releases the read."""
        whole = memoryview(bytes(read))
        read.release()
        if reads is None or reads.pieces is None or len(whole) != int(reads.lengths.sum()):
            raise KvferryError(f"{len(whole):,} bytes of clusters were read, which is not what was asked for")
        parts: dict[Place, list[torch.Tensor]] = {}
        for (place, _, tokens, down), at in zip(stretches_of(reads.pieces), reads.ats.tolist(), strict=True):
            end = at + tokens * self.format.layout.token_bytes
            parts.setdefault(place, []).append(self.format.unpacked(whole[at:end], down).to(self._device))
        late = self._unwritten[layer]
        return {place: torch.cat([*some, *([late[place]] if place in late else [])]) for place, some in parts.items()}

    def _join(self, layer: int, of_layer: Sequence[Joined], index: Centroids) -> None:
        new, here, unwritten = self._new[layer], self._here[layer], self._unwritten[layer]
        assert new is not None
        for one in of_layer:
            place, entry = (one.row, one.block), new[one.row][None]
            if one.delayed:
                self._waiting[layer].setdefault(place, []).append(entry)
                continue
            index.join(layer, one.row, one.block, entry[0, 0].flatten().float().cpu().numpy())
            unwritten[place] = torch.cat([unwritten[place], entry]) if place in unwritten else entry
            for clusters in (here, self._slots[layer] if self._renewed[layer] else {}):
                if place in clusters:
                    clusters[place] = torch.cat([clusters[place], entry])

    def _written(self, pieces: Pieces) -> dict[tuple[int, int, int, int], Bytes]:
        """Returns pieces of clusters as they lie in the file, from those at hand, or from what is not in the file
        yet."""
        contents: dict[tuple[int, int, int, int], Bytes] = {}
        for layer, (place, first, tokens, down) in zip(pieces.layers.tolist(), stretches_of(pieces), strict=True):
            here, unwritten = self._here[layer], self._unwritten[layer]
            late = unwritten.get(place)
            entries = here[place][first : first + tokens] if place in here else None
            if late is not None:
                # If a cluster is not in memory, it is its first entry in the buffer that is written.
                began = len(here[place]) - len(late) if place in here else first
                entries = late[:tokens] if entries is None else entries
                left = late[max(0, first + tokens - began) :]
                if len(left):
                    unwritten[place] = left
                else:
                    del unwritten[place]
            if entries is None or len(entries) != tokens:
                raise KvferryError(f"cluster {place[1]} of row {place[0]}, layer {layer} is written and not in memory")
            contents[layer, *place, first] = self.format.packed(entries, down)
        return contents


def stretches_of(pieces: Pieces) -> Iterator[tuple[Place, int, int, bool]]:
    """Returns place, first entry, entries and direction of each piece."""
    columns = (pieces.rows, pieces.blocks, pieces.firsts, pieces.tokens, pieces.down)
    for row, block, first, tokens, down in zip(*(column.tolist() for column in columns), strict=True):
        yield (row, block), first, tokens, down


def _numbers(entries: torch.Tensor) -> np.ndarray:
    """Returns float32[..., numbers]: keys of entries [..., sides, heads of a row, head_dim]."""
    return np.asarray(entries.select(-3, 0).flatten(-2).float().cpu().numpy())

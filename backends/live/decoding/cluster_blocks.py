"""KV blocks that are clusters: of different size, growing and splitting as the policies decide."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from kvferry.backends.live.decoding.block_format import raw_bytes
from kvferry.backends.live.decoding.cluster_format import ClusterFormat, numbers_of, stretches_of
from kvferry.backends.live.decoding.cluster_members import Place
from kvferry.backends.live.decoding.entry_log import ClusterLog
from kvferry.backends.live.decoding.indexes.centroids import Centroids
from kvferry.backends.live.decoding.layer_clusters import LayerClusters
from kvferry.backends.live.decoding.written import Bytes, WrittenPieces, joined
from kvferry.disk.direct_storage import Data
from kvferry.layouts.pieces import Pieces
from kvferry.machine.handles import Attended
from kvferry.machine.ops import Cluster, Extents, OutputHead, Split
from kvferry.policies.decode.splits import Clustered, SplitParts
from kvferry.specs.errors import KvferryError


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
    """Clusters of a lock-step batch, each with its entries in the order in which they came to it. `log` records what
    becomes of the file before it does."""

    def __init__(self, format: ClusterFormat, *, device: torch.device, log: ClusterLog | None = None) -> None:
        layout, self._log = format.layout, log
        self.format, self.layers, self.sequences = format, layout.layers, layout.sequences
        # All tokens of the prompts belong to clusters.
        self.recent, self.key_bytes = 0, 0
        self._device = device
        self._by_layer = [LayerClusters(layer, format, device) for layer in range(layout.layers)]
        # The prompts' keys and values of a layer, until it is clustered.
        self._prompts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def n_bytes(self) -> int:
        """Returns what reuse buffers, page buffers, newest tokens and waiting entries take in memory."""
        return sum(layer.n_bytes for layer in self._by_layer)

    def prefilled(self, layer: int, keys: torch.Tensor, values: torch.Tensor, order: torch.Tensor | None) -> None:
        """Take in a layer of the prompts. Nothing can be written before it is clustered."""
        self._prompts[layer] = keys, values

    def clustered(self, op: Cluster, read: Data | None, index: Centroids) -> Clustered:
        """Make clusters of a layer of the prompts, which are to be written, or of all of its tokens (`read` has those
        that are not at hand), or of its newest, which belong to none yet; the one under way is among them."""
        here = self._by_layer[op.layer]
        if op.step < 0:
            entries = self.format.entries(*self._prompts.pop(op.layer))
        elif op.whole:
            entries = here.everything(op, read)
        else:
            entries, here.recent = here.newest(), None
        labels = index.cluster(op.layer, numbers_of(entries), op.clusters, op.first)
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
        here.made(parts)
        return Clustered(tokens, variances, labels)

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Take in the token under way, each [sequences, KV heads, 1, head_dim]."""
        self._by_layer[layer].new = self.format.entries(keys, values)[:, 0]

    def attended(
        self, kv: Attended, read: Data, swapped: Data | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Returns keys and values that a layer's attention takes in, each [sequences, KV heads, tokens, head_dim], and
        which of them are there, bool[sequences, KV heads, 1, tokens]: rows differ in length. Releases the reads."""
        assert kv.ids is not None and kv.starts is not None and kv.tokens is not None
        here = self._by_layer[kv.layer]
        here.bring(kv, read, swapped)
        newest = here.newest()
        if newest.shape[1] != kv.recent + 1:
            raise KvferryError(f"{kv.recent} recent tokens are to be attended, {newest.shape[1] - 1} are in memory")
        rows = []
        for row, of_row in enumerate(newest):
            places = [(row, block) for block in kv.ids[kv.starts[row] : kv.starts[row + 1]].tolist()]
            rows.append(torch.cat([*(part for place in places for part in here.whole(place)), of_row]))
        lengths = torch.tensor([len(row) for row in rows])
        padded = pad_sequence(rows, batch_first=True)  # rows, tokens, sides, heads of a row, head_dim
        there = (torch.arange(padded.shape[1]) < lengths[:, None]).to(self._device)
        layout, heads = self.format.layout, self.format.shape[1]
        by_head = padded.permute(2, 0, 3, 1, 4).unflatten(1, (layout.sequences, layout.heads)).flatten(2, 3)
        mask = there.unflatten(0, (layout.sequences, layout.heads)).repeat_interleave(heads, 1)
        return by_head[0], by_head[1], mask[:, :, None]

    def split(self, op: Split, read: Data | None, index: Centroids) -> SplitParts:
        """Carries out splits. `read` has the clusters that are not at hand, row by row. Releases it."""
        here = self._by_layer[op.layer]
        here.bring_split(op, read)
        tokens, variances = np.zeros((len(op.splits), 2), np.int64), np.zeros((len(op.splits), 2))
        leaving: list[np.ndarray] = []
        for n, split in enumerate(op.splits):
            leaves, variances[n] = here.split(split, index)
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
        for here, of_layer in zip(self._by_layer, op.joined, strict=True):
            here.join(of_layer or (), index)
            if of_layer is None:
                here.recent = here.newest()
        contents = {} if op.written is None else self._written(op.written)
        if self._log is not None:
            entries = torch.stack([here.new for here in self._by_layer])
            self._log.grown(op.joined, op.written, contents, raw_bytes(entries))
        for here in self._by_layer:
            here.end_step()
        return WrittenPieces(contents)

    def _written(self, pieces: Pieces) -> dict[tuple[int, int, int, int], Bytes]:
        """Returns pieces of clusters as they lie in the file."""
        contents: dict[tuple[int, int, int, int], Bytes] = {}
        for layer, (place, first, tokens, down) in zip(pieces.layers.tolist(), stretches_of(pieces), strict=True):
            contents[layer, *place, first] = self.format.packed(self._by_layer[layer].taken(place, first, tokens), down)
        return contents

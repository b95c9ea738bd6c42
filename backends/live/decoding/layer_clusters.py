"""The clusters of one layer, as far as they are in memory."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch

from kvferry.backends.live.decoding.cluster_format import ClusterFormat, numbers_of, stretches_of
from kvferry.backends.live.decoding.cluster_members import Place
from kvferry.backends.live.decoding.indexes.centroids import Centroids
from kvferry.disk.direct_storage import Data
from kvferry.layouts.pieces import Reads
from kvferry.machine.handles import Attended
from kvferry.machine.ops import Cluster, Split
from kvferry.policies.decode.means import two_means
from kvferry.policies.decode.splits import ClusterSplit, Joined
from kvferry.specs.errors import KvferryError


class LayerClusters:
    """Tensors of a layer's clusters. Those that a step attends to are in memory until it ends. Of other clusters,
    entries that wait for a split are in memory, and entries in page buffers, which are not in the file yet."""

    def __init__(self, layer: int, format: ClusterFormat, device: torch.device) -> None:
        self._layer, self._format, self._device = layer, format, device
        # Slots of the reuse buffer by row, clusters at hand, last entries that are not in the file, and entries that
        # wait for a split.
        self._slots, self._here, self._unwritten = (dict[Place, torch.Tensor]() for _ in range(3))
        self._waiting: dict[Place, list[torch.Tensor]] = {}
        self._renewed = False  # slots are numbered as clusters are, and what changes is kept up to date there
        # The token under way, [rows, *shape], and tokens of every row that belong to no cluster yet.
        self.new: torch.Tensor = torch.empty(0)
        self.recent: torch.Tensor | None = None

    @property
    def n_bytes(self) -> int:
        """Returns what its part of the reuse buffer, page buffers, newest tokens and waiting entries take in memory."""
        kept = [*self._slots.values(), *self._unwritten.values(), *chain.from_iterable(self._waiting.values())]
        return sum(one.nbytes for one in kept) + (0 if self.recent is None else self.recent.nbytes)

    def newest(self) -> torch.Tensor:
        """Returns [rows, tokens, *shape]: tokens that belong to no cluster yet, and the one under way."""
        return self.new[:, None] if self.recent is None else torch.cat([self.recent, self.new[:, None]], dim=1)

    def everything(self, op: Cluster, read: Data | None) -> torch.Tensor:
        """Returns [rows, tokens, *shape]: all of a layer's, which are in no cluster any more. Releases the read."""
        here = self._here
        here |= {} if read is None else self._read(op.reads, read)
        rows: list[list[torch.Tensor]] = [[] for _ in self.new]
        for place in sorted({*here, *self._unwritten}):
            rows[place[0]].append(here[place] if place in here else self._unwritten[place])
        entries = [torch.cat([*found, one[None]]) for found, one in zip(rows, self.new, strict=True)]
        here.clear()
        self._unwritten.clear()
        if {len(of_row) for of_row in entries} != {op.tokens}:
            what = f"all {op.tokens} tokens of layer {self._layer}"
            raise KvferryError(f"{what} are to be clustered, and are not in memory")
        return torch.stack(entries)

    def made(self, clusters: dict[Place, torch.Tensor]) -> None:
        """Clusters have been made, or made again: they are at hand."""
        self._here |= clusters
        if self._renewed:
            self._slots |= clusters

    def whole(self, place: Place) -> list[torch.Tensor]:
        """Returns a cluster at hand, with what waits for it."""
        return [self._here[place], *self._waiting.get(place, [])]

    def bring(self, kv: Attended, read: Data, swapped: Data | None) -> None:
        """Gathers the clusters of a step: the ones read, which enter their slots where there are any, and the ones
        that lay there already."""
        assert kv.ids is not None and kv.starts is not None and kv.tokens is not None and kv.missing is not None
        here, slots = self._here, self._slots
        rows = np.repeat(np.arange(len(kv.starts) - 1), np.diff(kv.starts)).tolist()
        is_read = np.ones(len(rows), bool) if kv.at is not None else kv.missing
        came, kept = self._read(kv.reads, read), slots
        self._renewed = kv.dropped is not None and not kv.swaps
        if kv.dropped is not None:
            for place in zip(*(part.tolist() for part in kv.dropped), strict=True):
                slots.pop(place, None)
        if kv.swaps:
            kept = {} if swapped is None else self._read(kv.swapped, swapped)
        for n, (row, block) in enumerate(zip(rows, kv.ids.tolist(), strict=True)):
            place, slot = (row, block), None if kv.slots is None else (row, int(kv.slots[n]))
            if not is_read[n]:
                assert slot is not None
                here[place] = kept[slot] if slot in kept else self._unwritten[place]
                continue
            if place not in came and place in self._unwritten:
                # All of it is in a page buffer.
                came[place] = self._unwritten[place]
            stored = int(kv.tokens[n]) - len(self._waiting.get(place, []))
            if place not in came or len(came[place]) != stored:
                what = f"{len(came.get(place, ()))} entries of cluster {block}, row {row}, layer {self._layer}"
                raise KvferryError(f"{what} were read, it has {stored}")
            here[place] = came[place]
            if slot is not None and not kv.swaps:
                slots[slot] = here[place]

    def bring_split(self, op: Split, read: Data | None) -> None:
        """Gathers the clusters that are split: `read` has those that are not at hand. Releases it."""
        self._here |= {} if read is None else self._read(op.reads, read)
        if absent := [split for split in op.splits if (split.row, split.block) not in self._here]:
            raise KvferryError(f"{len(absent)} clusters of layer {self._layer} are split and not in memory")

    def split(self, split: ClusterSplit, index: Centroids) -> tuple[np.ndarray, tuple[float, float]]:
        """Returns which entries of a cluster at hand leave it, and the variances of those that stay and that leave."""
        place = split.row, split.block
        came = [*self._waiting.pop(place, []), *([self.new[split.row][None]] if split.joins else [])]
        entries = torch.cat([self._here[place], *came])
        if len(entries) != split.tokens:
            what = f"{len(entries)} entries of cluster {split.block}, row {split.row}, layer {self._layer} are there"
            raise KvferryError(f"{what}, {split.tokens} are to be split")
        late = [self._unwritten.pop(place)] if place in self._unwritten else []
        keys = numbers_of(entries).astype(float)
        leaves, left_variance, parts = np.zeros(len(keys), bool), 0.0, dict[Place, torch.Tensor]()
        if split.new is None:
            # It stays as it is, and what came may wait in a page buffer.
            self._unwritten[place] = torch.cat([*late, *came])
        else:
            leaves = two_means(keys[None], np.ones((1, len(keys)), bool))[0]
            parts[split.row, split.new] = entries[torch.from_numpy(leaves)]
            left_variance = index.set(self._layer, split.row, split.new, keys[leaves])
        parts[place] = entries[torch.from_numpy(~leaves)]
        self.made(parts)
        return leaves, (index.set(self._layer, split.row, split.block, keys[~leaves]), left_variance)

    def join(self, of_layer: Sequence[Joined], index: Centroids) -> None:
        """The token under way joins clusters of this layer, or waits for them."""
        for one in of_layer:
            place, entry = (one.row, one.block), self.new[one.row][None]
            if one.delayed:
                self._waiting.setdefault(place, []).append(entry)
                continue
            index.join(self._layer, one.row, one.block, entry[0, 0].flatten().float().cpu().numpy())
            late = self._unwritten.get(place)
            self._unwritten[place] = entry if late is None else torch.cat([late, entry])
            for clusters in (self._here, self._slots if self._renewed else {}):
                if place in clusters:
                    clusters[place] = torch.cat([clusters[place], entry])

    def taken(self, place: Place, first: int, tokens: int) -> torch.Tensor:
        """Returns entries of a cluster that are written now, and leave its page buffer."""
        entries, left = _written_of(self._here.get(place), self._unwritten.pop(place, None), first, tokens)
        if left is not None and len(left):
            self._unwritten[place] = left
        if entries is None or len(entries) != tokens:
            raise KvferryError(
                f"cluster {place[1]} of row {place[0]}, layer {self._layer} is written and not in memory"
            )
        return entries

    def end_step(self) -> None:
        """No cluster is at hand any more."""
        self._here.clear()

    def _read(self, reads: Reads | None, read: Data) -> dict[Place, torch.Tensor]:
        """Returns clusters that were read, with what of them is in page buffers. Releases the read."""
        whole = memoryview(bytes(read))
        read.release()
        if reads is None or reads.pieces is None or len(whole) != int(reads.lengths.sum()):
            raise KvferryError(f"{len(whole):,} bytes of clusters were read, which is not what was asked for")
        parts: dict[Place, list[torch.Tensor]] = {}
        for (place, _, tokens, down), at in zip(stretches_of(reads.pieces), reads.ats.tolist(), strict=True):
            end = at + tokens * self._format.layout.token_bytes
            parts.setdefault(place, []).append(self._format.unpacked(whole[at:end], down).to(self._device))
        late = self._unwritten
        return {place: torch.cat([*some, *([late[place]] if place in late else [])]) for place, some in parts.items()}


def _written_of(
    at_hand: torch.Tensor | None, late: torch.Tensor | None, first: int, tokens: int
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Returns entries of a cluster from the first on, from what is at hand or from its page buffer `late`, and what
    stays in that. If a cluster is not at hand, it is its first entry in the buffer that is written."""
    if at_hand is None:
        return (None, None) if late is None else (late[:tokens], late[tokens:])
    left = None if late is None else late[max(0, first + tokens - (len(at_hand) - len(late))) :]
    return at_hand[first : first + tokens], left

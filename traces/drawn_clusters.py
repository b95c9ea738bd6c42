"""Answers of a modelled machine to ops about clusters of its keys."""

from collections.abc import Sequence

import numpy as np

from kvferry.machine.answers import Answer, Assigned, Selection
from kvferry.machine.ops import Assign, Cluster, Op, OutputHead, Select, Split
from kvferry.policies.decode.means import Told
from kvferry.policies.decode.splits import Clustered, ClusterSplit, Joined, SplitParts
from kvferry.specs.errors import KvferryError
from kvferry.traces.clustered_keys import ClusteredKeys
from kvferry.traces.key_scores import scored


class DrawnClusters:
    """Answers from clusters of ``keys``, and carries out on them what policies decide: a Clusters."""

    def __init__(self, keys: ClusteredKeys) -> None:
        self.keys = keys
        # By kind of layer and step: the clusters that were made, and what splits came to.
        self._clustered: dict[tuple[int, int], Clustered] = {}
        self._parts: dict[tuple[int, int], tuple[Sequence[ClusterSplit], SplitParts]] = {}

    def __call__(self, op: Op) -> Answer | None:
        if isinstance(op, OutputHead):
            self._joined(op.joined)
            return None
        if isinstance(op, Cluster):
            return self._cluster(op)
        assert isinstance(op, Select | Assign | Split)
        self.keys.go_to(op.step)
        kind = op.layer % self.keys.kinds
        of_kind, shape = self.keys.of_kind(kind), (-1, self.keys.heads)
        if isinstance(op, Select):
            return Selection(self.keys.token.ranking(op.k)[of_kind].reshape(*shape, op.k))
        if isinstance(op, Assign):
            ids, squared = self.keys.token.nearest
            return Assigned(ids[of_kind].astype(np.int32).reshape(shape), squared[of_kind].reshape(shape))
        return self._split(kind, op)

    def prompts(self, layer: int, clusters: int) -> Clustered:
        """Clusters of the context of a layer."""
        return self._cluster(Cluster(1, self.keys.context, clusters, layer, heads=self.keys.heads))

    def _cluster(self, op: Cluster) -> Clustered:
        """Returns the clusters of the prompts, or of the newest tokens."""
        kind, keys = op.layer % self.keys.kinds, self.keys
        place = kind, op.step
        if place not in self._clustered:
            of_kind = keys.of_kind(kind)
            if op.step >= 0:
                self.keys.go_to(op.step)
            told = self._told_of(kind) if op.step < 0 else lambda done, of: None
            labels = keys.cluster(of_kind, op.tokens, op.clusters, op.first, told)
            clusters = slice(op.first, op.first + op.clusters)
            tokens = keys.table.counts[of_kind, clusters].copy()
            self._clustered = {key: one for key, one in self._clustered.items() if key[1] == op.step}
            variances = keys.table.variances(of_kind, clusters)
            self._clustered[place] = Clustered(tokens, variances, labels, self._references(of_kind, op))
        return self._clustered[place]

    def _told_of(self, kind: int) -> Told:
        """Kinds are clustered one after the other, and take equally long."""
        return lambda done, of: self.keys.told(kind * of + done, self.keys.kinds * of)

    def _references(self, rows: slice, op: Cluster) -> np.ndarray | None:
        """int[rows, queries, k]: the best clusters of the last queries of the prompts."""
        if not op.references:
            return None
        end = self.keys.context
        of_queries = [
            np.argsort(-scored(self.keys.table, rows, self.keys.queries[rows, at]), axis=1, kind="stable")[:, : op.k]
            for at in range(max(0, end - op.references), end)
        ]
        return np.stack(of_queries, axis=1)

    def _split(self, kind: int, op: Split) -> SplitParts:
        if (kind, op.step) not in self._parts:
            self._parts = {key: one for key, one in self._parts.items() if key[1] == op.step}
            self._parts[kind, op.step] = op.splits, self.keys.split([(kind, split) for split in op.splits])
        splits, parts = self._parts[kind, op.step]
        if tuple(splits) != tuple(op.splits):
            raise KvferryError(f"layer {op.layer} splits other clusters than layer {kind}, which is like it")
        return parts

    def _joined(self, joined: Sequence[Sequence[Joined] | None]) -> None:
        """Enters the keys under way into their clusters; splits have been made."""
        places = {False: list[tuple[int, int]](), True: list[tuple[int, int]]()}
        for kind, of_layer in enumerate(joined[: self.keys.kinds]):
            for one in of_layer or ():
                places[one.delayed].append((kind * self.keys.rows + one.row, one.block))
        for waiting, some in places.items():
            if some:
                rows, clusters = np.array(some).T
                self.keys.members.join(self.keys.entry, rows, clusters, waiting=waiting)

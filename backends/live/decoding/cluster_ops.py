"""Ops that make clusters of keys, and split those that grow."""

from collections.abc import Sequence
from typing import Any

from kvferry.backends.live.decoding.blocks import StoredBlocks
from kvferry.backends.live.decoding.cluster_blocks import ClusterBlocks
from kvferry.backends.live.decoding.hidden_state import HiddenState
from kvferry.backends.live.decoding.indexes.centroids import Centroids
from kvferry.backends.live.decoding.indexes.index import Index
from kvferry.backends.live.decoding.tiers import KvTiers, memory_of
from kvferry.backends.live.engine.op_runner import RegisteredOps, runs
from kvferry.backends.live.quality.attended_tokens import AttendedTokens
from kvferry.disk.direct_storage import Data
from kvferry.machine.answers import Answer, Assigned
from kvferry.machine.ops import Assign, Cluster, Split
from kvferry.policies.decode.splits import Clustered, SplitParts
from kvferry.specs.errors import KvferryError
from kvferry.traces.cluster_answers import Place, place_of


class ClusterOps(RegisteredOps):
    """Carries out ops on a layer's clusters, where KV blocks are clusters, and notes in `said` what it answers."""

    def __init__(
        self,
        blocks: StoredBlocks | ClusterBlocks,
        index: Index | None,
        state: HiddenState,
        tiers: KvTiers | None,
        said: dict[Place, Answer],
        attended: AttendedTokens | None,
    ) -> None:
        self._blocks, self._index, self._state, self._tiers = blocks, index, state, tiers
        self._said, self._attended = said, attended

    @runs(Assign)
    def _assign(self, op: Assign, inputs: Sequence[Any]) -> Assigned:
        index, keys = self._centroids, self._state.projected_keys(op, op.layer)
        self._said[place_of(op)] = assigned = Assigned(*index.nearest(op.layer, keys))
        return assigned

    @runs(Cluster)
    def _cluster(self, op: Cluster, inputs: Sequence[Any]) -> Clustered:
        found = self._clusters.clustered(op, self._read_for(op, inputs), self._centroids)
        self._said[place_of(op)] = said = Clustered(found.tokens, found.variances, found.labels, found.retrieved)
        if self._attended is not None:
            self._attended.clustered(op, said)
        return found

    @runs(Split)
    def _split(self, op: Split, inputs: Sequence[Any]) -> SplitParts:
        self._said[place_of(op)] = parts = self._clusters.split(op, self._read_for(op, inputs), self._centroids)
        if self._attended is not None:
            self._attended.split(op, parts)
        return parts

    def _read_for(self, op: Cluster | Split, inputs: Sequence[Any]) -> Data | None:
        """Returns clusters that were read for this op, or lie in the processor's own memory."""
        if op.at is not None:
            return memory_of(self._tiers).device.read(op.at)
        return next((one for one in inputs if isinstance(one, Data)), None)

    @property
    def _centroids(self) -> Centroids:
        if not isinstance(self._index, Centroids):
            raise KvferryError("keys belong to clusters only where an index keeps their centroids")
        return self._index

    @property
    def _clusters(self) -> ClusterBlocks:
        if not isinstance(self._blocks, ClusterBlocks):
            raise KvferryError("KV blocks are no clusters")
        return self._blocks

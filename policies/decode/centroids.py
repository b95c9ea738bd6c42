"""Clusters of like keys by their centroids (DynaKV, PQCache, ClusterKV)."""

from dataclasses import dataclass

import numpy as np

from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.stages import Key, Stage, Stages, own_layer
from kvferry.policies.decode.top_blocks import TopByOwnQuery

# A number of a mean that thousands of keys add to: single precision, whatever keys are stored in.
_MEAN_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Centroids(TopByOwnQuery):
    """A KV block is a cluster, whose centroid stays in memory. The best clusters are taken until they hold
    ``selected_tokens``; every new key joins the cluster that it is nearest to."""

    kind = "centroids"
    clusters = True

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        if self.ahead:
            raise ValueError("clusters are chosen with the layer's own query, not ahead")
        model = room.model
        n_bytes = model.layers * room.blocks * model.key_width * _MEAN_BYTES
        return Index(self.spec(room, model.key_width), n_bytes)

    def vectors(self, block_tokens: int, stored: int) -> int:
        return stored

    def take(self, ranked: BlockRows, tokens: np.ndarray | None) -> BlockRows:
        assert tokens is not None and ranked.starts is None
        before = np.cumsum(tokens, axis=1) - tokens
        # A row that has fewer clusters than others is answered with some that are not there.
        wanted = (before < self.selected_tokens) & (tokens > 0)
        return BlockRows(ranked.ids[wanted], np.cumsum([0, *wanted.sum(axis=1)]))

    def stages(self, layers: int, beside: tuple[str, ...]) -> Stages:
        """The query chooses, and meanwhile the key finds its cluster: both are there once the layer is projected."""

        def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
            return [
                Stage("project", layer, after),
                Stage("select", layer, (("project", layer),), awaited=True),
                Stage("look_up", layer),
                Stage("bring", layer, (("look_up", layer),)),
                Stage("assign", layer, (("project", layer),), awaited=True),
            ]

        return own_layer(fetch, "bring", layers, rest="rest")

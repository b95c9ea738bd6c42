"""Clusters of like keys by their centroids (DynaKV, PQCache, ClusterKV)."""

from dataclasses import dataclass, replace

import numpy as np

from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.ranked import Ranked
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.selector import Ask, Index
from kvferry.policies.decode.stages import Key, Stage, Stages, own_layer
from kvferry.policies.decode.top_blocks import TopByOwnQuery

# A number of a mean that thousands of keys add to: single precision, whatever keys are stored in.
_MEAN_BYTES = 4
# Clusters that are ranked, of those of mean size that would hold enough.
_ASKED = 3


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

    def ask(self, index: IndexSpec, stored_blocks: int) -> Ask:
        ask = super().ask(index, stored_blocks)
        # The best may be smaller than others.
        return replace(ask, k=min(stored_blocks, _ASKED * ask.k))

    def take(self, ranked: Ranked) -> BlockRows:
        tokens, ids = ranked.tokens, ranked.blocks.ids
        assert tokens is not None and ranked.blocks.starts is None
        before = np.cumsum(tokens, axis=1) - tokens
        # A row that has fewer clusters than others is answered with some that are not there.
        wanted = (before < self.wanted_tokens(ranked.stored_tokens)) & (tokens > 0)
        if ranked.most_blocks is not None:
            wanted[:, ranked.most_blocks :] = False
        starts = np.concatenate([[0], np.cumsum(np.count_nonzero(wanted, axis=1))])
        return BlockRows(ids[wanted], starts)

    def stages(self, layers: int, beside: tuple[str, ...], after_attention: tuple[str, ...] = ()) -> Stages:
        """The query chooses, and the new key finds its cluster while what was chosen moves."""

        def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
            return [
                Stage("project", layer, after),
                Stage("select", layer, (("project", layer),), awaited=True),
                Stage("look_up", layer),
                Stage("bring", layer, (("look_up", layer),)),
                Stage("project_kv", layer, (("project", layer),)),
                *(Stage(kind, layer, (("project_kv", layer),), awaited=True) for kind in beside),
            ]

        return own_layer(fetch, "bring", layers, "rest", after_attention)

"""Residencies that keep clusters of any size: of the whole model, or swapped layer by layer (DynaKV 6)."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from kvferry.policies.decode.cluster_cache import ClusterCache, Replacement
from kvferry.policies.decode.residency import NothingKept, Residency
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.slot_table import Resident
from kvferry.policies.decode.stages import Stage, Stages
from kvferry.policies.ledger import Holding


@dataclass(frozen=True, kw_only=True)
class WholeCache(Residency):
    """Every layer keeps clusters in memory. ``cache_share``: of all KV that there will be. ``replacement`` and
    ``reserved_share`` are as ClusterCache has them."""

    cache_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    replacement: Replacement = "cluster-aligned"
    reserved_share: Annotated[float, Field(ge=0, le=1)] = 0.25

    @property
    def keeps(self) -> bool:
        return self.cache_share > 0

    def cached_layers(self, layers: int) -> int:
        """Returns how many layers' caches are in memory at a time."""
        return layers

    def kept_tokens(self, room: Room) -> int:
        if not 0 <= self.cache_share <= 1:
            raise ValueError(f"cache_share lies in 0..1, got {self.cache_share}")
        if not 0 <= self.reserved_share <= 1:
            raise ValueError(f"reserved_share lies in 0..1, got {self.reserved_share}")
        return int(self.cache_share * room.tokens)

    def holdings(self, room: Room, selected: int, slots: int) -> tuple[Holding, ...]:
        cached = self.cached_layers(room.model.layers) * self.kept_tokens(room) * room.model.kv_entry_bytes
        # The selection of the layer that computes.
        reads = selected * room.block_bytes
        return Holding.of("kv: clusters kept", cached, "sequence"), Holding.of("kv: read buffers", reads, "sequence")

    def start(self, rows: int, blocks: int, slots: int, kept_tokens: int = 0, block_tokens: int = 1) -> Resident:
        if not kept_tokens:
            return NothingKept()
        return ClusterCache(rows, blocks, kept_tokens, self.replacement, self.reserved_share, block_tokens)


@dataclass(frozen=True, kw_only=True)
class VirtualCache(WholeCache):
    """Only the layer that computes and the next one have their caches in memory (DynaKV 6.1, pipeline 2). Clusters of
    others lie on storage, where all clusters do. While a layer attends and passes on, the next one's are read: those
    that were wanted last, as many as there is time for. The rest is read once the query is there.

    ``index_on_storage``: representatives lie on storage, too, and are brought while queries are projected (pipeline
    1). Left out: writing the ones that have changed, a vector per row and token; the paper does not mention it."""

    swaps = True
    index_on_storage: bool = True

    def cached_layers(self, layers: int) -> int:
        return min(2, layers)

    def arranged(self, stages: Stages, layers: int) -> Stages:
        found = [Stage("swap", 0)]
        for stage in super().arranged(stages, layers):
            kind, layer = stage.kind, stage.layer
            if kind == "attend":
                stage = stage._replace(after=(*stage.after, ("swap", layer)))
            found.append(stage)
            if kind == "bring" and layer + 1 < layers:
                found.append(Stage("swap", layer + 1, (("bring", layer),)))
        return tuple(found)

"""Residencies that keep clusters of any size: of the whole model, or swapped layer by layer (DynaKV 6)."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from kvferry.policies.decode.cluster_cache import ClusterCache, Replacement
from kvferry.policies.decode.residency import NothingKept, Residency
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.slot_table import Resident
from kvferry.policies.decode.stages import Stage, Stages
from kvferry.policies.ledger import NEW_TOKENS, Holding


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
    """Only the layer that computes and the next one have their caches in memory (DynaKV 6.1, pipeline 2). Others lie on
    storage, each in an area of its own, beside the clusters that they are copies of: while a layer attends and passes
    on, the next one's is read as one, and what has changed of its own is written back. What new keys change after that,
    a key in every row and the parts of what was cut, stays in memory until the layer's next turn. Representatives lie
    on storage, too, and are brought while queries are projected (pipeline 1). Left out: writing the ones that have
    changed, a vector per row and token; the paper does not mention it."""

    swaps = True

    def cached_layers(self, layers: int) -> int:
        return min(2, layers)

    def holdings(self, room: Room, selected: int, slots: int) -> tuple[Holding, ...]:
        newest = room.model.layers * room.model.kv_entry_bytes if self.kept_tokens(room) else 0
        return *super().holdings(room, selected, slots), Holding.of(NEW_TOKENS, newest, "sequence")

    def arranged(self, stages: Stages, layers: int) -> Stages:
        found, begun = [Stage("swap", 0)], set[int]()
        # The end of a layer comes behind all that attention and clusters need.
        last = {stage.layer: stage.key for stage in stages}
        for stage in stages:
            if stage.key == last[stage.layer]:
                found.append(Stage("swap_out", stage.layer, (("attend", stage.layer),)))
            kind, layer = stage.kind, stage.layer
            if layer not in begun:
                begun.add(layer)
                found.append(Stage("bring_index", layer, stage.after))
            if kind in ("select", "attend"):
                needed = "bring_index" if kind == "select" else "swap"
                stage = stage._replace(after=(*stage.after, (needed, layer)))
            found.append(stage)
            if kind == "bring" and layer + 1 < layers:
                found.append(Stage("swap", layer + 1, (("bring", layer),)))
        return tuple(found)

"""Layout roles for clusters: what lies beside what in the file (DynaKV 5)."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from kvferry.layouts.cluster_by_cluster import ContiguousLayout, Extent
from kvferry.layouts.cluster_layout import ClusterLayout
from kvferry.layouts.dual_head import DualHeadLayout
from kvferry.layouts.pools import PoolLayout
from kvferry.layouts.sequence_order import SequenceLayout
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.room import Room
from kvferry.specs.units import Bytes


@dataclass(frozen=True, kw_only=True)
class PlacedAsClusters(TokenGroups):
    """A block is a cluster. The context makes as many as there are whole groups of ``group_tokens`` in it; there is
    room for ``room`` times as many as all tokens, those of the output among them, would make. ``page_bytes``: what the
    flash writes at once; None: a storage block."""

    clusters = True
    before_write: ClassVar[tuple[str, ...]] = ("cluster",)

    room: Annotated[int, Field(ge=1)] = 2
    page_bytes: Bytes | None = None

    def layout(self, room: Room, sequences: int, heads: int, alignment_bytes: int) -> ClusterLayout:
        if self.room < 1:
            raise ValueError(f"room is 1 or more, got {self.room}")
        first = room.context_blocks
        block_tokens, more = divmod(room.context, first)
        return self._made(
            layers=room.model.layers,
            sequences=sequences,
            heads=heads,
            blocks=self.room * room.blocks,
            first_blocks=first,
            block_tokens=block_tokens,
            more=more,
            row_tokens=room.context + room.output,
            token_bytes=room.model.kv_entry_bytes // heads,
            alignment_bytes=alignment_bytes,
            page_bytes=None if self.page_bytes is None else int(self.page_bytes),
        )

    @abstractmethod
    def _made(self, **sizes: Any) -> ClusterLayout: ...


@dataclass(frozen=True, kw_only=True)
class SequenceOrdered(PlacedAsClusters):
    """Tokens lie in the order in which they came."""

    def _made(self, **sizes: Any) -> ClusterLayout:
        return SequenceLayout(**sizes)


@dataclass(frozen=True, kw_only=True)
class Buffered(PlacedAsClusters):
    """Clusters have pages of their own. ``page_buffers`` of a row's clusters have a buffer for one in memory: those
    that are updated again within ``hot_steps`` tokens. Clusters lie beside each other that the last ``references``
    queries of the prompts want together (DynaKV 5.1); 0: in the order of their numbers."""

    page_buffers: Annotated[int, Field(ge=0)] = 0
    hot_steps: Annotated[int, Field(ge=1)] = 32
    references: Annotated[int, Field(ge=0)] = 0

    @property
    def reference_queries(self) -> int:
        return self.references

    def layout(self, room: Room, sequences: int, heads: int, alignment_bytes: int) -> ClusterLayout:
        if self.references < 0:
            raise ValueError(f"references is 0 or more, got {self.references}; 0 pairs clusters by their numbers")
        return super().layout(room, sequences, heads, alignment_bytes)

    @abstractmethod
    def _made(self, **sizes: Any) -> ClusterLayout: ...


@dataclass(frozen=True, kw_only=True)
class ClusterByCluster(Buffered):
    """Clusters lie one behind the other, and whatever is behind one that grows moves (DynaKV, Fig. 13): what is behind
    it in its row, its layer or the whole file, as ``extent`` says."""

    extent: Extent = "file"

    def _made(self, **sizes: Any) -> ClusterLayout:
        buffers = {"page_buffers": self.page_buffers, "hot_steps": self.hot_steps}
        return ContiguousLayout(**sizes, **buffers, extent=self.extent)


@dataclass(frozen=True, kw_only=True)
class ClusterPools(Buffered):
    """Every cluster has a pool of its own, with room for ``spare`` times the tokens that it is made for."""

    spare: Annotated[int, Field(ge=1)] = 2

    def _made(self, **sizes: Any) -> ClusterLayout:
        if self.spare < 1:
            raise ValueError(f"spare is 1 or more, got {self.spare}")
        return PoolLayout(**sizes, page_buffers=self.page_buffers, hot_steps=self.hot_steps, spare=self.spare)


@dataclass(frozen=True, kw_only=True)
class DualHeads(Buffered):
    """Pairs of clusters have a pool in common, twice as large as the largest cluster, and grow inward from its ends
    (DynaKV 5.2). ``most_tokens``: of the largest cluster; None: twice what clusters have at first. ``whole_pairs``: two
    that are wanted together are read as one."""

    most_tokens: Annotated[int, Field(ge=1)] | None = None
    whole_pairs: bool = True
    # The whole prompt of the paper's experiments (5.1: "the initial input"), and the end of a longer one.
    references: int = 512

    def _made(self, **sizes: Any) -> ClusterLayout:
        return DualHeadLayout(
            **sizes,
            page_buffers=self.page_buffers,
            hot_steps=self.hot_steps,
            most_tokens=2 * sizes["block_tokens"] if self.most_tokens is None else self.most_tokens,
            whole_pairs=self.whole_pairs,
        )

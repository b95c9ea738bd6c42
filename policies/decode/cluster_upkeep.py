"""Upkeeps of clusters that new keys join: adaptive, which splits what is no longer alike (DynaKV Algorithm 1), and
static (PQCache)."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from kvferry.policies.decode.maintained_clusters import MaintainedClusters
from kvferry.policies.decode.retrieved_together import MOST_TOKENS
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.upkeep import Upkeep, new_tokens
from kvferry.policies.ledger import Holding


@dataclass(frozen=True, kw_only=True)
class StaticClusters(Upkeep):
    """Every new key joins the cluster whose centroid is nearest, for good (PQCache, as DynaKV 2.3 has it). A cluster
    that outgrows its pool is read, if it was not retrieved, and moves."""

    # Entries that wait for a page are the layout's business.
    clusters = True
    beside_moves: ClassVar[tuple[str, ...]] = ("assign",)
    after_attention: ClassVar[tuple[str, ...]] = ("maintain",)

    def start(self, context: int, block_tokens: int, layout: Any) -> MaintainedClusters:
        return MaintainedClusters(layout, threshold=math.inf, buffer_tokens=0, most_tokens=None)


@dataclass(frozen=True, kw_only=True)
class AdaptiveClusters(StaticClusters):
    """DynaKV's Algorithm 1. A key joins the nearest cluster while the variance stays below the head's threshold,
    ``threshold`` times the mean variance of the head's clusters in the context. Otherwise the cluster is split in two,
    at once if it was retrieved in this step; if not, the split is delayed, and the key waits in memory until it is.
    When ``buffer_tokens`` wait in a row, the cluster that most of them wait for is read and split.

    ``most_tokens``: a cluster that would be larger is split, too, whatever its variance, and one that is larger as it
    is made once it is retrieved; None: any size. ``paired_by``: two clusters of a row that a step retrieves become a
    pair where that would have saved these last tokens more accesses than its writes cost; 0: pairs stay as the prompt
    has them (5.1).
    """

    threshold: Annotated[float, Field(ge=0)] = 2.0
    buffer_tokens: Annotated[int, Field(ge=0)] = 16
    most_tokens: Annotated[int, Field(ge=1)] | None = None
    paired_by: Annotated[int, Field(ge=0, le=MOST_TOKENS)] = 0

    def holdings(self, room: Room, selected: int | None) -> tuple[Holding, ...]:
        return new_tokens(room, self.buffer_tokens)

    def check(self) -> None:
        if not self.threshold >= 0:
            raise ValueError(f"threshold is 0 or more, got {self.threshold}; upkeep: static-clusters never cuts")
        if self.buffer_tokens < 0:
            raise ValueError(
                f"buffer_tokens is 0 or more, got {self.buffer_tokens}; 0 reads a cluster to cut it at once"
            )
        if self.most_tokens is not None and self.most_tokens < 1:
            raise ValueError(f"most_tokens is 1 or more, got {self.most_tokens}")
        if not 0 <= self.paired_by <= MOST_TOKENS:
            raise ValueError(
                f"paired_by is up to {MOST_TOKENS} tokens, got {self.paired_by}; 0 keeps the prompt's pairs"
            )

    def start(self, context: int, block_tokens: int, layout: Any) -> MaintainedClusters:
        return MaintainedClusters(
            layout,
            threshold=self.threshold,
            buffer_tokens=self.buffer_tokens,
            most_tokens=self.most_tokens,
            paired_by=self.paired_by,
        )

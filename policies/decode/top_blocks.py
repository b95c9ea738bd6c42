"""What selectors share that score every KV block and take the best."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from kvferry.policies.decode.head_choice import choosing_heads
from kvferry.policies.decode.index import IndexSpec, Scores
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.selector import Ask, Taken, chosen_stages
from kvferry.policies.decode.stages import Stages


@dataclass(frozen=True, kw_only=True)
class TopBlocks(ABC):
    """The blocks with the highest scores: as many as hold ``selected_tokens``, of each KV head (``per_head``) or of all
    together; or the share of all tokens that ``selected_share`` says, which grows as they decode. ``ahead``: by a
    prediction of the query, while the layer before computes. ``scores``: how heads that choose together agree, as
    IndexSpec has it."""

    kind: ClassVar[str]
    clusters: ClassVar[bool] = False
    for_all_layers: ClassVar[bool] = False
    evicts: ClassVar[bool] = False

    selected_tokens: Annotated[int, Field(ge=1)] = 400
    selected_share: Annotated[float, Field(gt=0, le=1)] | None = None
    per_head: bool = False
    ahead: bool = True
    scores: Scores = "summed"

    def selected(self, block_tokens: int, stored: int) -> int | None:
        if self.selected_share is not None:
            return min(max(1, math.ceil(self.selected_share * stored)), stored)
        return min(-(-self.selected_tokens // block_tokens), stored)

    def wanted_tokens(self, stored: int) -> float:
        return self.selected_tokens if self.selected_share is None else self.selected_share * stored

    def kept_tokens(self, stored: int) -> int:
        return stored

    def ask(self, index: IndexSpec, stored: int) -> Ask:
        k = self.selected(index.block_tokens, stored)
        assert k is not None
        return Ask(stored, k, index.heads, self.vectors(index.block_tokens, stored), index.rank)

    def take(self, ranked: BlockRows, tokens: np.ndarray | None, stored: int, most: int | None) -> Taken:
        return ranked, tokens

    @abstractmethod
    def vectors(self, block_tokens: int, stored: int) -> int:
        """How many vectors of `stored` blocks are scored per sequence."""

    def stages(self, layers: int, beside: tuple[str, ...], after_attention: tuple[str, ...] = ()) -> Stages:
        return chosen_stages(self.ahead, layers, beside)

    def spec(self, room: Room, rank: int) -> IndexSpec:
        """Of vectors of `rank` numbers, all heads together. ValueError for a share that is none."""
        if self.selected_share is not None and not 0 < self.selected_share <= 1:
            raise ValueError(f"selected_share lies above 0 and up to 1, got {self.selected_share}")
        heads = choosing_heads(room.model) if self.per_head else 1
        return IndexSpec(
            kind=self.kind,
            heads=heads,
            rank=rank,
            block_tokens=room.block_tokens,
            scores=self.scores,
            clusters=self.clusters,
            for_all_layers=self.for_all_layers,
        )


@dataclass(frozen=True, kw_only=True)
class TopByOwnQuery(TopBlocks):
    """Each layer's own query scores an index that takes what it takes, whatever the budget: as the best of the heads
    that choose together."""

    ahead: bool = False
    scores: Scores = "best_head"

    @property
    def fixed(self) -> bool:
        return True

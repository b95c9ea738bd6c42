"""A base of selectors that score every KV block and take the best."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from kvferry.policies.decode.head_choice import choosing_heads
from kvferry.policies.decode.index import IndexSpec, Scores
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.selector import Ask, Index, Selector, chosen_stages
from kvferry.policies.decode.stages import Stages
from kvferry.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class TopBlocks(Selector):
    """The blocks with the highest scores: as many as hold ``selected_tokens``, of each KV head (``per_head``) or of all
    together; or the share of all tokens that ``selected_share`` says, which grows as they decode. ``ahead``: by a
    prediction of the query, while the layer before computes. ``scores``: how heads that choose together agree, as
    IndexSpec has it."""

    kind: ClassVar[str]

    selected_tokens: Annotated[int, Field(ge=1)] = 400
    selected_share: Annotated[float, Field(gt=0, le=1)] | None = None
    per_head: bool = False
    ahead: bool = True
    scores: Scores = "summed"

    def selected(self, block_tokens: int, stored_blocks: int) -> int | None:
        if self.selected_share is not None:
            return min(max(1, math.ceil(self.selected_share * stored_blocks)), stored_blocks)
        return min(-(-self.selected_tokens // block_tokens), stored_blocks)

    def wanted_tokens(self, stored_tokens: int) -> float:
        return self.selected_tokens if self.selected_share is None else self.selected_share * stored_tokens

    def ask(self, index: IndexSpec, stored_blocks: int) -> Ask:
        k = self.selected(index.block_tokens, stored_blocks)
        assert k is not None
        vectors = self.vectors(index.block_tokens, stored_blocks)
        return Ask(stored_blocks, k, index.heads, vectors, index.rank)

    def rank(self, model: ModelSpec) -> int:
        """Returns the numbers of each vector that is kept and scored, all heads together. By default a whole key."""
        return model.key_width

    def vectors(self, block_tokens: int, stored_blocks: int) -> int:
        """Returns how many vectors of the stored blocks are kept and scored per sequence. By default one per block."""
        return stored_blocks

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        model, rank = room.model, self.rank(room.model)
        n_bytes = model.layers * self.vectors(room.block_tokens, room.blocks) * rank * model.kv_value_bytes
        return Index(self.spec(room, rank), n_bytes)

    def stages(self, layers: int, beside: tuple[str, ...], after_attention: tuple[str, ...] = ()) -> Stages:
        return chosen_stages(self.ahead, layers, beside)

    def spec(self, room: Room, rank: int) -> IndexSpec:
        """Returns an index of vectors of `rank` numbers, all heads together. ValueError for a share that is none."""
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


@dataclass(frozen=True, kw_only=True)
class Entries(TopByOwnQuery):
    """No clusters (DynaKV 8.1's bound of accuracy): all keys stay in memory; the layer's own query chooses the blocks
    with the best of them. A block is one token where it is to have no neighbours (``group_tokens`` 1)."""

    kind = "keys"

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        if room.block_tokens != 1:
            raise ValueError(f"selector keys scores single tokens: group_tokens is 1, got {room.block_tokens}")
        return super().index(room, reserved_bytes)

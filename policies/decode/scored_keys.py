"""Selectors that score keys: compressed ones of every token, or one mean key per KV block."""

from dataclasses import dataclass
from typing import ClassVar

from kvferry.policies.decode.index import IndexSpec, Scores
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.selector import Ask, Index, chosen_stages
from kvferry.policies.decode.stages import Stages

# KVSwap 4.3: the most that keys are compressed.
MOST_COMPRESSION = 32.0


@dataclass(frozen=True, kw_only=True)
class _TopBlocks:
    """The blocks with the highest scores: as many as hold ``selected_tokens``, of each KV head (``per_head``) or of all
    together. ``ahead``: by a prediction of the query, while the layer before computes. ``scores``: how heads that
    choose together agree, as IndexSpec has it."""

    kind: ClassVar[str]

    selected_tokens: int = 400
    per_head: bool = False
    ahead: bool = True
    scores: Scores = "summed"

    def selected(self, block_tokens: int, stored: int) -> int | None:
        return min(-(-self.selected_tokens // block_tokens), stored)

    def ask(self, index: IndexSpec, stored: int) -> Ask:
        k = self.selected(index.block_tokens, stored)
        assert k is not None
        return Ask(stored, k, index.heads, self.vectors(index.block_tokens, stored), index.rank)

    def vectors(self, block_tokens: int, stored: int) -> int:
        """How many vectors of `stored` blocks are scored per sequence."""
        raise NotImplementedError

    def stages(self, layers: int, beside: tuple[str, ...]) -> Stages:
        return chosen_stages(self.ahead, layers, beside)

    def _spec(self, room: Room, rank: int) -> IndexSpec:
        heads = room.model.kv_heads if self.per_head else 1
        return IndexSpec(kind=self.kind, heads=heads, rank=rank, block_tokens=room.block_tokens, scores=self.scores)


@dataclass(frozen=True, kw_only=True)
class CompressedKeys(_TopBlocks):
    """A block scores as its best token does, by compressed keys of all tokens.

    ``compression``: full key width over the width that is scored; None: as little as ``metadata_share`` of the budget
    allows.
    """

    compression: float | None = MOST_COMPRESSION
    metadata_share: float = 1.0

    @property
    def fixed(self) -> bool:
        return self.compression is not None

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        rank = room.key_rank(self.compression, room.budget_bytes * self.metadata_share - reserved_bytes)
        return Index(self._spec(room, rank), room.key_cache_bytes(rank))

    def vectors(self, block_tokens: int, stored: int) -> int:
        return stored * block_tokens


class LowRankKeys(CompressedKeys):
    """KVSwap: keys of all heads, side by side, projected to their principal directions."""

    kind = "low-rank-keys"


class PartialKeys(CompressedKeys):
    """InfiniGen: the channels that count most, after query and key weights were skewed."""

    kind = "partial-keys"


class PrincipalKeys(CompressedKeys):
    """Loki: the first principal components of each head's keys."""

    kind = "principal-keys"


@dataclass(frozen=True, kw_only=True)
class Landmarks(_TopBlocks):
    """ShadowKV: a block scores as the mean of its keys does."""

    kind = "landmarks"

    ahead: bool = False
    scores: Scores = "best_head"

    @property
    def fixed(self) -> bool:
        return True

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        model = room.model
        n_bytes = model.layers * room.blocks * model.key_width * model.value_bytes
        return Index(self._spec(room, model.key_width), n_bytes)

    def vectors(self, block_tokens: int, stored: int) -> int:
        return stored

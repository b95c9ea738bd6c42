"""SpeContext's retrieval head: one choice for all layers before the first computes, each KV head for itself."""

from dataclasses import dataclass
from typing import ClassVar

from kvferry.policies.decode.room import Room
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.stages import Key, Stage, Stages, before_pass
from kvferry.policies.decode.top_blocks import TopByOwnQuery


@dataclass(frozen=True, kw_only=True)
class RetrievalHead(TopByOwnQuery):
    """The embedding and the QK projection of a distilled one-layer draft model score all tokens by a K cache of their
    own (SpeContext 4.3); every layer's KV head reads the tokens that weigh most in the same head of the draft.

    ``selected_tokens``: the budget of each KV head. The cache has one key of full width and precision per token.
    """

    kind = "retrieval-head"
    for_all_layers: ClassVar[bool] = True

    selected_tokens: int = 2048
    per_head: bool = True

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        model = room.model
        return Index(self.spec(room, model.key_width), room.tokens * model.key_width * model.kv_value_bytes)

    def vectors(self, block_tokens: int, stored: int) -> int:
        return stored * block_tokens

    def stages(self, layers: int, beside: tuple[str, ...], after_attention: tuple[str, ...] = ()) -> Stages:
        def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
            known: tuple[Key, ...] = (("compare", 0),)
            return [Stage("bring", layer, known), *(Stage(kind, layer, known) for kind in beside)]

        return before_pass(
            (Stage("retrieve", 0, awaited=True), Stage("compare", 0, (("retrieve", 0),))), fetch, "bring", layers
        )

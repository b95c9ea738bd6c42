"""SpeContext's retrieval head: one choice for all layers before the first computes, each KV head for itself."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from kvferry.policies.decode.room import Room
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.stages import Key, Stage, Stages, before_pass
from kvferry.policies.decode.top_blocks import TopByOwnQuery
from kvferry.specs.units import Tokens


@dataclass(frozen=True, kw_only=True)
class RetrievalHead(TopByOwnQuery):
    """The embedding and the QK projection of a distilled one-layer draft model score all tokens by a K cache of their
    own (SpeContext 4.3); every layer's KV head reads the tokens that weigh most in the same head of the draft.

    ``selected_tokens``: the budget of each KV head. The cache has one key of full width and precision per token; memory
    counts a layer of KV for it, and one for each query head of a group, as keys are repeated for those to be scored
    (Eq. 6: 1 + alpha). With a latent cache (MLA), a draft of the same attention keeps a layer of it, which all
    its heads score as it is; they choose together, as one entry of the cache serves all.
    """

    kind = "retrieval-head"
    for_all_layers: ClassVar[bool] = True

    selected_tokens: Annotated[Tokens, Field(ge=1)] = 2048
    per_head: bool = True

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        model = room.model
        copies = model.key_copies
        return Index(
            self.spec(room, model.key_width),
            0.0,
            kv_layers=1 + copies if copies > 1 else 1,
            weight_bytes=model.matrices.retrieval_parameters * model.embedding_bits / 8,
        )

    def vectors(self, block_tokens: int, stored_blocks: int) -> int:
        return stored_blocks * block_tokens

    def stages(self, layers: int, beside: tuple[str, ...], after_attention: tuple[str, ...] = ()) -> Stages:
        def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
            known: tuple[Key, ...] = (("compare", 0),)
            return [Stage("bring", layer, known), *(Stage(kind, layer, known) for kind in beside)]

        return before_pass(
            (Stage("retrieve", 0, awaited=True), Stage("compare", 0, (("retrieve", 0),))), fetch, "bring", layers
        )

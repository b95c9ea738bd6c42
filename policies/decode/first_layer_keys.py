"""One choice for all layers, before the first computes: what SpeContext does, without its trained head."""

from dataclasses import dataclass

from kvferry.policies.decode.room import Room
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.stages import Key, Stage, Stages, before_pass
from kvferry.policies.decode.top_blocks import TopByOwnQuery


@dataclass(frozen=True, kw_only=True)
class FirstLayerKeys(TopByOwnQuery):
    """The first layer's query of the new token scores the first layer's keys; all layers read the best blocks, whose
    transfers begin before the pass. SpeContext has a distilled head for this, which knows better what later layers
    attend to."""

    kind = "first-layer-keys"

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        model = room.model
        return Index(self.spec(room, model.key_width), room.tokens * model.key_width * model.kv_value_bytes)

    def vectors(self, block_tokens: int, stored: int) -> int:
        return stored * block_tokens

    def stages(self, layers: int, beside: tuple[str, ...], after_attention: tuple[str, ...] = ()) -> Stages:
        def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
            known = (("look_up", layer),)
            moves = [Stage("bring", layer, known), *(Stage(kind, layer, known) for kind in beside)]
            return [Stage("look_up", layer, after), *moves]

        return before_pass(Stage("retrieve", 0, awaited=True), fetch, "bring", layers)

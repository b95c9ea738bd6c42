"""One choice for all layers by the first layer's own keys: what SpeContext does, without its trained head."""

from dataclasses import dataclass

from kvferry.policies.decode.retrieval_head import RetrievalHead


@dataclass(frozen=True, kw_only=True)
class FirstLayerKeys(RetrievalHead):
    """The first layer's query of the new token scores the first layer's keys. SpeContext has a distilled head for this,
    which knows better what later layers attend to."""

    kind = "first-layer-keys"

    selected_tokens: int = 400
    per_head: bool = False

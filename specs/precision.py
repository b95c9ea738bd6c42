"""How many bits a model's numbers have in one scenario, whichever model that is."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError, model_validator

from kvferry.specs.base import BadKey, Spec
from kvferry.specs.weight_format import WeightFormatName


class PrecisionSpec(Spec):
    """Keys of a model that say how it is stored; None: as the model's own file says."""

    # Of each weight in the layers.
    weight_bits: float | None = Field(default=None, gt=0, le=64)
    # Of each weight in embeddings and output head.
    embedding_bits: float | None = Field(default=None, gt=0, le=64)
    # A weight format by name, such as q4_k_m, which says the bits of every weight.
    weights: WeightFormatName | None = None
    # Of each number in the KV cache.
    kv_value_bytes: float | None = Field(default=None, gt=0, le=8)

    @model_validator(mode="after")
    def _one_way_to_say_weights(self) -> "PrecisionSpec":
        if self.weights is not None and (self.weight_bits or self.embedding_bits):
            raise BadKey(
                "weights",
                f"{self.weights} says the bits of every weight; weight_bits and embedding_bits do not stand beside it",
            )
        return self


def in_precision(model: Mapping[str, Any], precision: Any) -> dict[str, Any]:
    """A model, as a file has it, in that precision; its source says what is not the file's. Applied twice, it changes
    nothing more; a precision that is none changes nothing."""
    try:
        own = PrecisionSpec.model_validate(precision).model_dump(exclude_none=True)
    except ValidationError:
        return dict(model)
    other = [key for key, value in own.items() if model.get(key) != value]
    source = model.get("source")
    if other and isinstance(source, str):
        own["source"] = f"{source}; but for {', '.join(other)}: the scenario's precision"
    # A format replaces numbers of bits, and the other way round.
    ours, theirs = {"weight_bits", "embedding_bits", "output_head_bits"}, {"weights"}
    gone = (ours if own.keys() & theirs else set()) | (theirs if own.keys() & ours else set())
    if "embedding_bits" in own:  # of embeddings and output head, as long as nothing else is said of the head
        gone.add("output_head_bits")
    return {**{key: value for key, value in model.items() if key not in gone}, **own}

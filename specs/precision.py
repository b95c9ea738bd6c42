"""How many bits a model's numbers have in one scenario, whichever model that is."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from kvferry.specs.base import Spec


class PrecisionSpec(Spec):
    """Keys of a model that say how it is stored; None: as the model's own file says."""

    weight_bits: float | None = Field(default=None, gt=0, le=64)
    embedding_bits: float | None = Field(default=None, gt=0, le=64)
    kv_value_bytes: float | None = Field(default=None, gt=0, le=8)


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
    return {**model, **own}

"""Weights that do not fit into the processor's memory: where they lie, and who computes with them."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kvferry.specs.base import Part
from kvferry.specs.tier import Tier

# The processor that computes with offloaded weights, as device profiles name it.
CPU = "cpu"
Layers = Annotated[int, Field(ge=0, le=100_000, strict=True)]


class OffloadSpec(Part):
    """What of the weights is not in the processor's memory."""

    # cpu: the CPU computes with them, out of the host's memory (llama.cpp's -ngl). host, storage: they are brought
    # before each layer, as FlexGen and accelerate do.
    to: Literal["cpu", "host", "storage"]
    # Whole layers, with their KV where the CPU computes them; or the experts of a mixture alone (--n-cpu-moe).
    what: Literal["layers", "experts"] = "layers"
    # Of this many layers. auto: of as few as leave room for the rest.
    layers: Literal["auto"] | Layers = "auto"

    @model_validator(mode="before")
    @classmethod
    def _from_place(cls, value: Any) -> Any:
        return {"to": value} if isinstance(value, str) else value

    @property
    def tier(self) -> Tier:
        """Returns where the weights lie."""
        return "storage" if self.to == "storage" else "host"

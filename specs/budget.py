"""Less memory than the device has, by kind of workload."""

from typing import Literal

from pydantic import Field

from kvferry.specs.base import Part
from kvferry.specs.units import Bytes


class ContextReuseBudget(Part):
    """The budget of loading contexts and answering over them."""

    # Of the workload; a file need not say it again.
    kind: Literal["context-reuse"] = Field(default="context-reuse", exclude=True)
    # None: all that the device leaves free.
    memory_bytes: Bytes | None = Field(default=None, gt=0)


class DecodeBudget(Part):
    """The budget of decoding a batch."""

    kind: Literal["decode"] = Field(default="decode", exclude=True)
    # None: all that the device leaves free.
    memory_bytes: Bytes | None = Field(default=None, gt=0)
    # What KV on storage takes of memory for metadata and buffers: of the batch in bytes, and of every sequence as a
    # share of its context's full cache. None of the two: all that the weights leave free.
    kv_bytes: Bytes | None = Field(default=None, gt=0)
    kv_share: float | None = Field(default=None, gt=0, le=1, strict=True)
    # Held for intermediate values (activations), as a share of the weights; SpeContext takes 0.3 (Eq. 6).
    runtime_share: float = Field(default=0.0, ge=0, le=10, strict=True)
    # For the KV of systems that keep it all in memory. None: all that is free.
    in_memory_kv_bytes: Bytes | None = Field(default=None, gt=0)

    @property
    def limits_kv(self) -> bool:
        """Grants KV outside the processor's memory less than the device has."""
        return self.kv_bytes is not None or self.kv_share is not None

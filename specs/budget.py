"""Less memory than the device has, by kind of workload."""

from typing import Annotated, Literal

from pydantic import Field

from kvferry.specs.base import Part
from kvferry.specs.offload import OffloadSpec
from kvferry.specs.units import Bytes, Tokens


class Budget(Part):
    """What every kind of workload may say of memory."""

    # None: all that the device leaves free.
    memory_bytes: Annotated[Bytes | None, Field(gt=0)] = None
    # Tokens of prompts that pass a layer together, which activations are as large as (chunked prefill; vLLM's
    # max_num_batched_tokens is 2,048 by default, so is llama.cpp's n_batch). None: a whole prompt. Times do not depend
    # on it.
    prefill_chunk: Annotated[Tokens, Field(ge=1, le=10_000_000)] | None = 2048


class ContextReuseBudget(Budget):
    """The budget of loading contexts and answering over them."""

    # Of the workload; a file need not say it again.
    kind: Literal["context-reuse"] = Field(default="context-reuse", exclude=True)


class DecodeBudget(Budget):
    """The budget of decoding a batch."""

    kind: Literal["decode"] = Field(default="decode", exclude=True)
    # What KV on storage takes of memory for metadata and buffers, of the whole batch. None, and no kv_share:
    # all that the weights leave free.
    kv_bytes: Bytes | None = Field(default=None, gt=0)
    # The same, of every sequence, as a share of its context's full cache.
    kv_share: float | None = Field(default=None, gt=0, le=1, strict=True)
    # For the KV of systems that keep it all in memory. None: all that is free.
    in_memory_kv_bytes: Bytes | None = Field(default=None, gt=0)
    # Weights that lie elsewhere, of systems that keep all KV in memory. None: all are in the processor's memory.
    offload: OffloadSpec | None = None

    @property
    def limits_kv(self) -> bool:
        """Grants KV outside the processor's memory less than the device has."""
        return self.kv_bytes is not None or self.kv_share is not None

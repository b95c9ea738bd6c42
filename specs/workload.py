"""What the user asks of the device: requests over reusable contexts, or a batch decoded from long ones."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvferry.specs.base import Part
from kvferry.specs.units import Count, Hertz, Requests, Seconds, Tokens

# Sequences of a lock-step batch, at most.
MOST_BATCH = 64


class ArrivalsSpec(Part):
    """Requests that come whether or not the last one is done: a Poisson process, or one every so often."""

    rate_hz: Hertz | None = None
    every_s: Seconds | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_process(self) -> "ArrivalsSpec":
        if (self.rate_hz is None) == (self.every_s is None):
            raise ValueError("needs exactly one of rate (rate: 0.2 requests/s) and every (every: 5 s)")
        return self


class ContextReuseSpec(Part):
    """Requests, each over its own context whose KV lies encoded in the cloud. All sizes in tokens."""

    kind: Literal["context-reuse"]
    # Visual tokens vary more in size and sparsity than text.
    content: Literal["text", "vlm"] = "text"
    context: Tokens = Field(ge=1, le=10_000_000)
    question: Tokens = Field(default=64, ge=1, le=1_000_000)
    output: Tokens = Field(default=1, ge=1, le=1_000_000)
    requests: Requests = Field(default=1, ge=1, le=100_000)
    # None: a closed loop, each request arrives when the one before is done.
    arrivals: ArrivalsSpec | None = None
    # Recorded sizes and sparsities instead of generated ones: a trace's name or path.
    chunks: str | None = Field(default=None, min_length=1)
    chunk_tokens: Tokens = Field(default=1024, ge=1, le=1_000_000)

    @property
    def token_chunks(self) -> int:
        return -(-self.context // self.chunk_tokens)


class DecodeSpec(Part):
    """One batch of prompts, prefilled here, that decodes in lock step. All sizes in tokens."""

    kind: Literal["decode"]
    context: Tokens = Field(ge=1, le=10_000_000)
    output: Tokens = Field(default=1, ge=1, le=1_000_000)
    # Sequences that decode together; max: as many as the budget holds, MOST_BATCH of them at most.
    batch: Annotated[Count, Field(ge=1, le=MOST_BATCH)] | Literal["max"] = 1
    # Tokens per sequence that are really decoded; the others follow at the pace of their second half. None: all.
    decoded: Tokens | None = Field(default=None, ge=2, le=1_000_000)
    # Which KV blocks each step finds critical: a recorded stream's path, or generated with these properties.
    selections: str | None = Field(default=None, min_length=1)
    overlap: float = Field(default=0.72, ge=0, le=1, strict=True)
    skew: float = Field(default=1.6, ge=0, le=10, strict=True)


WorkloadSpec = Annotated[ContextReuseSpec | DecodeSpec, Field(discriminator="kind")]

"""What the user asks of the device: requests over reusable contexts, or a batch decoded from long ones."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvferry.specs.base import BadKey, Part
from kvferry.specs.units import Count, Hertz, Requests, Seconds, Tokens

# Sequences of a lock-step batch, at most.
MOST_BATCH = 64
# Requests of a run that decode together as they come.
MOST_REQUESTS = 10_000


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


class LengthSpec(Part):
    """One request's own lengths, where they are not the workload's."""

    context: Tokens | None = Field(default=None, ge=1, le=10_000_000)
    output: Tokens | None = Field(default=None, ge=1, le=1_000_000)


class DecodeSpec(Part):
    """Prompts that are prefilled here and decode together: one batch in lock step, or requests that come and go, as
    the system does. All sizes in tokens."""

    kind: Literal["decode"]
    context: Tokens = Field(ge=1, le=10_000_000)
    output: Tokens = Field(default=1, ge=1, le=1_000_000)
    # Sequences that decode together, at most; max: as many as the budget holds, MOST_BATCH of them at most.
    batch: Annotated[Count, Field(ge=1, le=MOST_BATCH)] | Literal["max"] = 1
    # How many come in all; None: one batch, or as many as `lengths` has.
    requests: Requests | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    # None: all are there at the start.
    arrivals: ArrivalsSpec | None = None
    # Standard deviation of the logarithm of context and output, which are then the medians.
    spread: float = Field(default=0.0, ge=0, le=1, strict=True)
    # Of each request; None: as `context`, `output` and `spread` say.
    lengths: tuple[LengthSpec, ...] | None = Field(default=None, min_length=1, max_length=MOST_REQUESTS)
    # Tokens per sequence that are really decoded; the others follow at the pace of their second half. None: all.
    decoded: Tokens | None = Field(default=None, ge=2, le=1_000_000)
    # Which KV blocks each step finds critical: a recorded stream's path, or generated with these properties.
    selections: str | None = Field(default=None, min_length=1)
    overlap: float = Field(default=0.72, ge=0, le=1, strict=True)
    skew: float = Field(default=1.6, ge=0, le=10, strict=True)

    @model_validator(mode="after")
    def _lengths_once(self) -> "DecodeSpec":
        if self.lengths is not None and (self.spread or self.requests is not None):
            key = "spread" if self.spread else "requests"
            raise BadKey(key, f"lengths says it for {len(self.lengths):,} requests; leave one of the two out")
        return self


WorkloadSpec = Annotated[ContextReuseSpec | DecodeSpec, Field(discriminator="kind")]

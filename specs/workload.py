"""What the user asks of the device: requests over a reusable context."""

from typing import Literal

from pydantic import Field, model_validator

from kvferry.specs.base import Part
from kvferry.specs.units import Hertz, Requests, Seconds, Tokens


class ArrivalsSpec(Part):
    """Requests that come whether or not the last one is done: a Poisson process, or one every so often."""

    rate_hz: Hertz | None = None
    every_s: Seconds | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_process(self) -> "ArrivalsSpec":
        if (self.rate_hz is None) == (self.every_s is None):
            raise ValueError("needs exactly one of rate (rate: 0.2 requests/s) and every (every: 5 s)")
        return self


class WorkloadSpec(Part):
    """Requests, each over its own reusable context whose KV lies encoded in the cloud. All sizes in tokens."""

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

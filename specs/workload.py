"""What the user asks of the device: requests over reusable contexts, or a batch decoded from long ones."""

import math
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, ConfigDict, Field, model_validator

from kvferry.specs.base import BadKey, Part, exactly_one_of
from kvferry.specs.model import ModelSpec
from kvferry.specs.units import Count, Hertz, Requests, Seconds, Tokens

# Tokens of a context.
MOST_CONTEXT = 10_000_000
# Sequences of a lock-step batch, at most.
MOST_BATCH = 64
# Requests of a run that decode together as they come.
MOST_REQUESTS = 10_000


# What is streamed or computed on its own in one request: chunks (t, l, h), or with all_heads (t, l). About a minute
# of simulation; a 20K-token request of a 36-layer model has 5,760. And chunks of a whole run. They keep a slip of the
# unit from becoming a run that ends next year.
MOST_UNITS_PER_REQUEST = 500_000
MOST_CHUNKS_PER_RUN = 100_000_000
# Answer tokens of a whole run; and where KV lies on storage, tokens that are decoded times layers, as every layer reads
# for itself. Either takes minutes of simulation, with progress shown.
MOST_TOKENS_PER_RUN = 2_000_000
MOST_LAYER_STEPS_PER_RUN = 2_000_000


class ArrivalsSpec(Part):
    """Requests that come whether or not the last one is done: a Poisson process, or one every so often."""

    model_config = exactly_one_of("rate", "every")

    # A Poisson process of this rate.
    rate_hz: Hertz | None = None
    # One request every so often.
    every_s: Seconds | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_process(self) -> "ArrivalsSpec":
        if (self.rate_hz is None) == (self.every_s is None):
            raise ValueError("needs exactly one of rate (rate: 0.2 requests/s) and every (every: 5 s)")
        return self


class ContextReuseSpec(Part):
    """Requests, each over its own context whose KV lies encoded in the cloud. All sizes in tokens."""

    # Requests over contexts that lie in the cloud.
    kind: Literal["context-reuse"]
    # Visual tokens vary more in size and sparsity than text.
    content: Literal["text", "vlm"] = "text"
    # Of each request's stored context.
    context: Tokens = Field(ge=1, le=MOST_CONTEXT)
    # Read after the context.
    question: Tokens = Field(default=64, ge=1, le=1_000_000)
    # Answered.
    output: Tokens = Field(default=1, ge=1, le=1_000_000)
    # Conversations, each of `turns` requests. None: one, or as many as `trace` holds.
    requests: Requests | None = Field(default=None, ge=1, le=100_000)
    # None: a closed loop, each conversation begins when the one before has ended.
    arrivals: ArrivalsSpec | None = None
    # Standard deviation of the logarithm of context, question and output, which are then the medians.
    spread: float = Field(default=0.0, ge=0, le=1, strict=True)
    # The path of a CSV file of recorded requests: their arrivals and lengths replace those above.
    trace: str | None = Field(default=None, min_length=1, max_length=1000)
    # Different contexts that the requests are about. None: each request has a context of its own.
    contexts: Count | None = Field(default=None, ge=1, le=100_000)
    # The exponent of Zipf's law by which `contexts` are chosen: the k-th with a probability of 1 / k^zipf.
    zipf: float = Field(default=1.0, ge=0, le=10, strict=True)
    # Questions asked one after the other over the same context, whose KV stays on the device.
    turns: Count = Field(default=1, ge=1, le=1000)
    # How long the user reads and types between an answer and the next question.
    think_s: Seconds = Field(default=0.0, ge=0)
    # Recorded sizes and sparsities instead of generated ones: a trace's name or path.
    chunks: str | None = Field(default=None, min_length=1)
    # Of a KV chunk.
    chunk_tokens: Tokens = Field(default=1024, ge=1, le=1_000_000)

    @property
    def token_chunks(self) -> int:
        return -(-self.context // self.chunk_tokens)

    @property
    def longest_tokens(self) -> int | None:
        """Tokens of the longest sequence; None: only a run will know."""
        drawn = self.spread or self.trace is not None
        return None if drawn else self.context + self.turns * (self.question + self.output)

    @model_validator(mode="after")
    def _lengths_once(self) -> "ContextReuseSpec":
        _said_by_the_trace(self, ("arrivals", "spread", "contexts"))
        if self.chunks is not None and (self.spread or self.trace is not None):
            key = "spread" if self.spread else "trace"
            raise BadKey(key, "chunks is a recording of one length; leave one of the two out")
        return self

    def check_size(self, model: ModelSpec, *, per_head: bool) -> None:
        """Raises BadKey when a request makes more units, or all of them more chunks or tokens, than a run may have."""
        chunks = self.token_chunks * model.layers * model.kv_heads
        units = chunks if per_head else chunks // model.kv_heads
        if units > MOST_UNITS_PER_REQUEST:
            what = f"{units:,} units (token chunks x layers{' x KV heads' if per_head else ''})"
            most = f"at most {MOST_UNITS_PER_REQUEST:,} will do, about a minute of simulation"
            raise BadKey("workload.context", f"makes {what}, {most}; shorten it, or enlarge chunk_tokens")
        requests = self.requests or 1
        total = int(chunks * requests * _mean_of(self.spread))
        if total > MOST_CHUNKS_PER_RUN:
            raise BadKey("workload.requests", f"make {total:,} chunks, at most {MOST_CHUNKS_PER_RUN:,} will do")
        tokens = int(self.output * requests * self.turns * _mean_of(self.spread))
        if tokens > MOST_TOKENS_PER_RUN:
            what = f"{self.output:,} tokens for each of {requests * self.turns:,} requests make {tokens:,}"
            raise BadKey("workload.output", f"{what}; at most {MOST_TOKENS_PER_RUN:,} will do")


def _mean_of(spread: float) -> float:
    """The mean of lognormal lengths over their median."""
    return math.exp(spread**2 / 2)


def _said_by_the_trace(workload: "ContextReuseSpec | DecodeSpec", keys: tuple[str, ...]) -> None:
    """Raises BadKey for what a file of recorded requests says already."""
    for key in keys:
        if workload.trace is not None and getattr(workload, key):
            raise BadKey(key, "trace holds the requests' arrivals and lengths; leave one of the two out")


class KeysSpec(Part):
    """Statistics of keys and queries of a long generation, where KV blocks are chosen by what keys say
    (kvferry.traces.key_process has what they mean). Fitted together (fits/dynakv_keys.py) so that a cluster which was
    updated is wanted again as soon as with the models of DynaKV's Tab. 2, in their mean, and clusters that are static,
    local and adaptive have variances as in its Tab. 5."""

    # Numbers of a key, per layer, sequence and KV head.
    width: Count = Field(default=8, ge=1, le=256)
    # Tokens of a scene, in the mean; a scene is about one topic.
    scene: Tokens = Field(default=24, ge=1, le=1_000_000)
    # The chance that a scene's topic is a new one.
    novelty: float = Field(default=0.25, ge=0, le=1, strict=True)
    # How far a key lies from its topic's centre, in each number; centres have a variance of 1.
    spread: float = Field(default=0.6, ge=0, le=100, strict=True)
    # How far centres walk in 1,000 tokens.
    drift: float = Field(default=0.2, ge=0, le=100, strict=True)
    # The share of a query's variance that looks for the present scene's topic.
    present: float = Field(default=0.12, ge=0, le=1, strict=True)
    # The share that looks for anything, drawn with every token.
    whim: float = Field(default=0.1, ge=0, le=1, strict=True)
    # Tokens within which a query's other interests are forgotten.
    persistence: float = Field(default=100.0, gt=0, le=1e6, strict=True)

    @model_validator(mode="after")
    def _shares(self) -> "KeysSpec":
        if self.present + self.whim > 1:
            raise ValueError(f"present and whim are shares of one, not {self.present} and {self.whim}")
        return self


class LengthSpec(Part):
    """One request's own lengths, where they are not the workload's."""

    # Of its prompt.
    context: Tokens | None = Field(default=None, ge=1, le=MOST_CONTEXT)
    # Of its answer.
    output: Tokens | None = Field(default=None, ge=1, le=1_000_000)


def _context_or_input(schema: dict[str, Any]) -> None:
    """The record's JSON schema, in which the context has a second name."""
    schema["properties"]["input"] = {**schema["properties"]["context"], "description": "Another name for `context`."}
    schema["required"].remove("context")
    rule: Any = exactly_one_of("context", "input")["json_schema_extra"]
    schema |= rule


class DecodeSpec(Part):
    """Prompts that are prefilled here and decode together: one batch in lock step, or requests that come and go, as
    the system does. All sizes in tokens."""

    model_config = ConfigDict(json_schema_extra=_context_or_input)

    # Prompts that decode together.
    kind: Literal["decode"]
    # Tokens of each prompt. A file may call it `input`, as papers about decoding do.
    context: Tokens = Field(ge=1, le=MOST_CONTEXT, validation_alias=AliasChoices("context", "input"))
    # Answered by each sequence.
    output: Tokens = Field(default=1, ge=1, le=1_000_000)
    # Sequences that decode together, at most; max: as many as the budget holds, MOST_BATCH of them at most.
    batch: Annotated[Count, Field(ge=1, le=MOST_BATCH)] | Literal["max"] = 1
    # How many come in all; None: one batch, or as many as `lengths` has.
    requests: Requests | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    # None: all are there at the start.
    arrivals: ArrivalsSpec | None = None
    # Standard deviation of the logarithm of context and output, which are then the medians.
    spread: float = Field(default=0.0, ge=0, le=1, strict=True)
    # The path of a CSV file of recorded requests: their arrivals and lengths replace those above.
    trace: str | None = Field(default=None, min_length=1, max_length=1000)
    # Of each request; None: as `context`, `output` and `spread` say.
    lengths: tuple[LengthSpec, ...] | None = Field(default=None, min_length=1, max_length=MOST_REQUESTS)
    # Tokens per sequence that are really decoded; the others follow at the pace of their second half. None: all.
    decoded: Tokens | None = Field(default=None, ge=2, le=1_000_000)
    # Which of them: in the middle, so that they stand for the whole output, or its last ones, so that figures are those
    # of a sequence of full length, or spread over it, so that what grows and moves meanwhile is seen at every length.
    part: Literal["middle", "end", "spread"] = "middle"
    # The path of a recorded selection stream. None: selections are generated from latent scores, whatever the
    # selector would have scored.
    selections: str | None = Field(default=None, min_length=1)
    # Tokens within which generated scores are alike: 32 B of text as recorded from byte-large, at some 4 B per token.
    reach: Tokens = Field(default=8, ge=1, le=1_000_000)
    # Steps within which they are forgotten: 28 to 50 B as recorded, which are 7 to 12 steps of a large model.
    persistence: float = Field(default=9.0, gt=0, le=1e6, strict=True)
    # The share of their variance that lasts; with `persistence` it makes KVSwap's reuse (Tab. 5), hot groups (3.4.2).
    lasting: float = Field(default=0.35, ge=0, le=1, strict=True)
    # The same as `persistence`, of what a retrieval head chooses for all layers; None: as that.
    retrieval_persistence: float | None = Field(default=None, gt=0, le=1e6, strict=True)
    # What keys say, where blocks are clusters of them, or are chosen by every key.
    keys: KeysSpec = KeysSpec()
    # The path of keys and queries that live.record_keys wrote, in place of the ones that are generated.
    recorded_keys: str | None = Field(default=None, min_length=1, max_length=1000)

    @model_validator(mode="before")
    @classmethod
    def _input_is_the_context(cls, value: Any) -> Any:
        """One of the two names; null takes back what a file says under the other."""
        if not isinstance(value, dict) or "input" not in value:
            return value
        if value.get("context") is not None and value["input"] is not None:
            raise BadKey("input", "is another name for context; leave one of the two out")
        given = "context" if value["input"] is None else "input"
        return {key: item for key, item in value.items() if key == given or key not in ("context", "input")}

    @property
    def longest_tokens(self) -> int | None:
        """Tokens of the longest sequence; None: only a run will know."""
        if self.spread or self.trace is not None:
            return None
        own = [(one.context or self.context) + (one.output or self.output) for one in self.lengths or ()]
        return max(own, default=self.context + self.output)

    @model_validator(mode="after")
    def _lengths_once(self) -> "DecodeSpec":
        _said_by_the_trace(self, ("arrivals", "spread", "lengths"))
        if self.lengths is not None and (self.spread or self.requests is not None):
            key = "spread" if self.spread else "requests"
            raise BadKey(key, f"lengths says it for {len(self.lengths):,} requests; leave one of the two out")
        return self

    def check_size(self, model: ModelSpec, *, per_head: bool) -> None:
        """Raises BadKey when decoding would take more steps, or make more tokens, than a run may have."""
        steps, layers = min(self.output, self.decoded or self.output), model.layers
        if steps * layers > MOST_LAYER_STEPS_PER_RUN:
            most = MOST_LAYER_STEPS_PER_RUN // layers
            what = f"{steps:,} tokens through {layers:,} layers take longer than a run may; at most {most:,} will do"
            key = "output" if self.decoded is None else "decoded"
            raise BadKey(f"workload.{key}", f"{what}, and workload.decoded cuts what is decoded of workload.output")
        if self.lengths is not None:
            tokens, key = sum(one.output or self.output for one in self.lengths), "lengths"
        else:
            tokens = int((self.requests or 1) * self.output * _mean_of(self.spread))
            key = "requests"
        if tokens > MOST_TOKENS_PER_RUN:
            raise BadKey(f"workload.{key}", f"ask for {tokens:,} tokens; at most {MOST_TOKENS_PER_RUN:,} will do")


class SloSpec(Part):
    """What a request must keep to count as served well: time to its first token, and per token after it."""

    # The longest time to its first token.
    ttft_s: Seconds | None = Field(default=None, gt=0)
    # The longest time per token after it.
    tpot_s: Seconds | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _something(self) -> "SloSpec":
        if self.ttft_s is None and self.tpot_s is None:
            raise ValueError("needs ttft (ttft: 1 s), tpot (tpot: 100 ms), or both")
        return self

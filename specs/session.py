"""Conversations of days on one device, whose KV lives on between turns: what is asked, budget and live settings."""

from itertools import pairwise
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from kvferry.specs.base import BadKey, Part
from kvferry.specs.budget import Budget
from kvferry.specs.live import RealRun
from kvferry.specs.model import ModelSpec
from kvferry.specs.units import Bytes, Count, Seconds, Tokens
from kvferry.specs.workload import MOST_LAYER_STEPS_PER_RUN, MOST_TOKENS_PER_RUN

# Turns of a run.
MOST_TURNS = 100_000
# The percentiles that a length may be given by.
PERCENTILES = (0, 10, 25, 50, 75, 90, 95, 99, 100)
Percentiles = Annotated[tuple[Annotated[Tokens, Field(ge=1, le=1_000_000)], ...], Field(max_length=len(PERCENTILES))]
Length = Literal["context", "question", "output"]
# Blocks of tokens of one prompt, each of which is looked up by itself.
MOST_BLOCKS_PER_TURN = 100_000
# And of all prompts, without and with their answers, which are held in memory together: 400 MB of names.
MOST_BLOCKS_PER_RUN = 50_000_000


class SessionSpec(Part):
    """Turns of conversations with one device, which answers one turn at a time. All sizes in tokens."""

    # Conversations whose KV lives on between turns.
    kind: Literal["session"]
    # Turns in all.
    turns: Count = Field(default=1, ge=1, le=MOST_TURNS)
    # What a conversation is about, read before its first question: a document, say.
    context: Tokens = Field(default=4096, ge=0, le=10_000_000)
    # The beginning of every conversation: a system prompt.
    beginning: Tokens = Field(default=0, ge=0, le=1_000_000)
    # Asked in a turn.
    question: Tokens = Field(default=64, ge=1, le=1_000_000)
    # Answered in a turn.
    output: Tokens = Field(default=128, ge=1, le=1_000_000)
    # Standard deviation of the logarithm of context, question and output, which are then the medians.
    spread: float = Field(default=0.0, ge=0, le=2, strict=True)
    # That of the question, and of the output; None: `spread`.
    question_spread: float | None = Field(default=None, ge=0, le=4, strict=True)
    output_spread: float | None = Field(default=None, ge=0, le=4, strict=True)
    # Instead of a median and a deviation: tokens at percentiles 0, 10, 25, 50, 75, 90, 95, 99 and 100; between these
    # their logarithm is a straight line.
    context_percentiles: Percentiles | None = None
    question_percentiles: Percentiles | None = None
    output_percentiles: Percentiles | None = None
    # Different contexts that conversations are about.
    contexts: Count = Field(default=1, ge=1, le=100_000)
    # The exponent of Zipf's law by which they are chosen: the k-th with a probability of 1 / k^zipf.
    zipf: float = Field(default=1.0, ge=0, le=10, strict=True)
    # Conversations that go on at the same time.
    at_once: Count = Field(default=1, ge=1, le=1000)
    # Turns of a conversation, in the mean; after each it ends by chance.
    turns_each: float = Field(default=8.0, ge=1, le=10_000, strict=True)
    # How long the user reads and types between an answer and the next question: the median.
    think_s: Seconds = Field(default=0.0, ge=0)
    # Standard deviation of its logarithm.
    think_spread: float = Field(default=0.0, ge=0, le=3, strict=True)
    # From the end of a conversation to the next one, in the mean.
    pause_s: Seconds = Field(default=0.0, ge=0)
    # Tokens of the blocks by which KV is found again: equal blocks behind equal ones. None: those of the recording's
    # hash ids, or else 256.
    block: Annotated[Tokens, Field(ge=1, le=1_000_000)] | None = None
    # A file of recorded turns: its lengths, and its arrivals if it has any, replace those above, and its conversations
    # are drawn by chance until there are `turns` turns.
    trace: str | None = Field(default=None, min_length=1, max_length=1000)
    # What lies encoded in the cloud from the beginning: what conversations are about, with their common beginning; or
    # nothing.
    in_cloud: Literal["contexts", "nothing"] = "contexts"
    # Visual tokens vary more in size and sparsity than text.
    content: Literal["text", "vlm"] = "text"
    # Tokens of an answer that are really decoded; the others follow at the pace of their second half. None: all.
    decoded: Tokens | None = Field(default=None, ge=2, le=1_000_000)

    @property
    def longest_tokens(self) -> None:
        """Tokens of the longest sequence: only a run will know, as conversations end by chance."""
        return None

    def spread_of(self, length: Length) -> float:
        """Returns the deviation of the logarithm of such a length."""
        own = {"context": None, "question": self.question_spread, "output": self.output_spread}[length]
        return self.spread if own is None else own

    def percentiles_of(self, length: Length) -> tuple[int, ...] | None:
        """Returns such a length at ``PERCENTILES``; None: it is drawn by its median and deviation."""
        found: tuple[int, ...] | None = getattr(self, f"{length}_percentiles")
        return found

    @model_validator(mode="after")
    def _fits_together(self) -> "SessionSpec":
        for length in get_args(Length):
            _check_percentiles(f"{length}_percentiles", self.percentiles_of(length))
        contexts = self.context_percentiles or (self.context + self.beginning,)
        if max(contexts) < 1 and self.trace is None and self.in_cloud == "contexts":
            raise BadKey("in_cloud", "contexts of 0 tokens lie nowhere; in_cloud: nothing would do")
        if self.trace is not None:
            lengths = ("context", "beginning", "question", "output", "spread", "question_spread", "output_spread")
            percentiles = (f"{length}_percentiles" for length in get_args(Length))
            said = [
                key
                for key in (*lengths, *percentiles, "contexts", "zipf", "turns_each")
                if key in self.model_fields_set and getattr(self, key) != type(self).model_fields[key].default
            ]
            if said:
                what = f"holds the turns' lengths, and the workload says {', '.join(said)}, too; leave these out"
                instead = f"workload={{kind: session, trace: FILE, turns: {self.turns}}}"
                raise BadKey("trace", f"{what}: --set '{instead}' replaces what a file says")
        return self

    def check_size(self, model: ModelSpec, *, per_head: bool) -> None:
        """Raises BadKey when all turns would take more steps, or make more tokens, than a run may have."""
        tokens = self.turns * self.output
        if tokens > MOST_TOKENS_PER_RUN:
            raise BadKey("workload.turns", f"ask for {tokens:,} tokens; at most {MOST_TOKENS_PER_RUN:,} will do")
        steps = self.turns * min(self.output, self.decoded or self.output) * model.layers
        if steps > MOST_LAYER_STEPS_PER_RUN:
            what = f"{steps:,} steps of layers take longer than a run may; at most {MOST_LAYER_STEPS_PER_RUN:,} will do"
            raise BadKey("workload.turns", f"{what}, and workload.decoded cuts what is decoded of an answer")


def _check_percentiles(key: str, tokens: tuple[int, ...] | None) -> None:
    """Raises BadKey for lengths that are not there at all percentiles, or fall."""
    if tokens is None:
        return
    if len(tokens) != len(PERCENTILES):
        at = ", ".join(map(str, PERCENTILES))
        raise BadKey(key, f"has {len(tokens)} lengths; {len(PERCENTILES)} would do, at percentiles {at}")
    fall = next((pair for pair in pairwise(tokens) if pair[1] < pair[0]), None)
    if fall is not None:
        raise BadKey(key, f"falls from {fall[0]:,} to {fall[1]:,} tokens; the ascending order would do")


class SessionBudget(Budget):
    """The budget of a device that keeps KV between turns."""

    # Of the workload; a file need not say it again.
    kind: Literal["session"] = Field(default="session", exclude=True)
    # KV that is kept in memory between turns. None: what the turn at work leaves free.
    kept_memory_bytes: Annotated[Bytes | None, Field(gt=0)] = None
    # KV that is kept on flash. None: all that the device's storage holds.
    kept_flash_bytes: Annotated[Bytes | None, Field(gt=0)] = None
    # What KV on storage takes of memory for metadata and buffers while a turn decodes. None, and no kv_share: all that
    # is free.
    kv_bytes: Bytes | None = Field(default=None, gt=0)
    # The same, as a share of the turn's full cache.
    kv_share: float | None = Field(default=None, gt=0, le=1, strict=True)


class SessionLive(RealRun):
    """Turns are answered by a real model, with KV on a real file between them."""

    kind: Literal["session"] = Field(default="session", exclude=True)
    # The folder for the file with the KV that is kept on flash, on the device that is to be used. None: the system's
    # folder for temporary files.
    kv_folder: str | None = Field(default=None, min_length=1, max_length=1000)
    # That file, which stays there with a log beside it, FILE.log: a later run finds again what is whole in it, however
    # this one ends. None: it has no name, and goes with the run.
    kv_file: str | None = Field(default=None, min_length=1, max_length=1000)
    # The file is read and written as slowly as `device.storage` says; false: as fast as it is.
    paced: bool = Field(default=True, strict=True)

    @model_validator(mode="after")
    def _one_place(self) -> "SessionLive":
        if self.kv_file is not None and self.kv_folder is not None:
            raise BadKey("kv_folder", "kv_file names the file itself; leave kv_folder out")
        return self

"""The memory of decoding at its peak: pages of KV where all of it is there, and what attention needs besides."""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from kvferry.policies.decode.batcher import Turn
from kvferry.policies.decode.pages import PageSizes
from kvferry.policies.decode.roles import Roles
from kvferry.specs.model import ModelSpec
from kvferry.specs.workload import MOST_BATCH
from kvferry.traces.request import Request


@dataclass(frozen=True)
class Peak:
    """Bytes of the processor's memory, for one way of decoding and one model."""

    roles: Roles
    model: ModelSpec

    @cached_property
    def pages(self) -> PageSizes:
        return PageSizes(self.model)

    def kv_bytes(self, tokens: int) -> float:
        """Returns the KV of a sequence of `tokens`, in whole pages."""
        return self.pages.of(self.roles.selector.kept_tokens(tokens)) * self.pages.page_bytes

    def turn_bytes(self, turn: Turn) -> float:
        """Returns what attention takes besides in a turn: scores of the prompts that pass a layer together, or copies
        of a layer's KV."""
        if turn.kind == "decode":
            return self.decode_bytes(sum(turn.tokens))
        groups = ((len(list(alike)), tokens) for tokens, alike in groupby(turn.tokens))
        return max(self.prefill_bytes(n, tokens) for n, tokens in groups)

    def prefill_bytes(self, batch: int, tokens: int) -> float:
        """Returns the scores of `batch` prompts that pass a layer together."""
        return self.roles.attention.prefill_bytes(self.model, batch, tokens)

    def decode_bytes(self, tokens: float) -> float:
        """Copies of a layer's KV of `tokens` over all sequences."""
        return self.roles.attention.decode_bytes(self.model, tokens)

    def batch_bytes(self, n: int, request: Request) -> float:
        """Returns the most that `n` sequences like this one take together, at the end of their prefill or of their
        output."""
        kept = self.roles.selector.kept_tokens
        together, most = n, self.roles.batching.prefill_tokens
        if most is not None:
            together = min(n, max(1, most // request.context))
        begin = n * self.kv_bytes(request.context) + self.prefill_bytes(together, request.context)
        tokens = request.context + request.output
        end = n * self.kv_bytes(tokens) + self.decode_bytes(n * kept(tokens))
        return max(begin, end)

    def sequences_within(self, whole_bytes: float, request: Request) -> int:
        """Returns how many sequences like this one decode together in this memory, MOST_BATCH at most."""
        return next((n for n in range(MOST_BATCH, 0, -1) if self.batch_bytes(n, request) <= whole_bytes), 0)

"""What decoding with all KV in memory takes at its peak: pages of KV, and what its attention needs besides."""

from dataclasses import dataclass
from itertools import groupby

from kvferry.policies.decode.batcher import Turn
from kvferry.policies.decode.pages import PAGE_TOKENS, pages_of
from kvferry.policies.decode.roles import Roles
from kvferry.specs.model import ModelSpec
from kvferry.specs.workload import MOST_BATCH
from kvferry.traces.request import Request


@dataclass(frozen=True)
class Peak:
    """Bytes of the processor's memory, for one way of decoding and one model."""

    roles: Roles
    model: ModelSpec

    def kv_bytes(self, tokens: int) -> float:
        """The KV of a sequence of so many tokens, in whole pages."""
        return pages_of(self.roles.selector.kept_tokens(tokens)) * PAGE_TOKENS * self.model.kv_bytes_per_token

    def turn_bytes(self, turn: Turn) -> float:
        """What attention takes besides in a turn: scores of the prompts that pass a layer together, or copies of a
        layer's KV."""
        kernel = self.roles.attention
        if turn.kind == "decode":
            return kernel.decode_bytes(self.model, sum(turn.tokens))
        groups = ((len(list(alike)), tokens) for tokens, alike in groupby(turn.tokens))
        return max(kernel.prefill_bytes(self.model, n, tokens) for n, tokens in groups)

    def batch_bytes(self, n: int, request: Request) -> float:
        """The most that `n` sequences like this one take together, at the end of their prefill or of their output."""
        kernel, kept = self.roles.attention, self.roles.selector.kept_tokens
        together, most = n, self.roles.batching.prefill_tokens
        if most is not None:
            together = min(n, max(1, most // request.context))
        begin = n * self.kv_bytes(request.context) + kernel.prefill_bytes(self.model, together, request.context)
        tokens = request.context + request.output
        end = n * self.kv_bytes(tokens) + kernel.decode_bytes(self.model, n * kept(tokens))
        return max(begin, end)

    def sequences_within(self, whole_bytes: float, request: Request) -> int:
        """How many sequences like this one decode together in so much memory, MOST_BATCH at most."""
        return next((n for n in range(MOST_BATCH, 0, -1) if self.batch_bytes(n, request) <= whole_bytes), 0)

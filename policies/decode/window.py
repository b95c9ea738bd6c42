"""Permanent eviction: the newest tokens are kept, and the first ones; all others are gone for good."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from kvferry.policies.decode.selector import Selector
from kvferry.specs.units import Tokens


@dataclass(frozen=True, kw_only=True)
class Window(Selector):
    """Attention over all that is kept: the newest ``window_tokens`` (a sliding window), and the first ``sink_tokens``,
    which attention sinks into (StreamingLLM). Nothing is scored."""

    evicts = True
    window_tokens: Annotated[Tokens, Field(ge=1)] = 2048
    sink_tokens: Annotated[Tokens, Field(ge=0)] = 0

    def kept_tokens(self, stored_tokens: int) -> int:
        return min(stored_tokens, self.sink_tokens + self.window_tokens)

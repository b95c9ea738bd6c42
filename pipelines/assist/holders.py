"""Requests that hold a slot of an instance, and the time per token that it keeps with them."""

from kvferry.pipelines.assist.estimates import Prices


class Holders:
    """Admits a request when a step for all holders and it takes at most `kept_tpot_s`, or when there is no holder. No
    token of a request is later than promised, as long as the estimates are true."""

    def __init__(self, prices: Prices, kept_tpot_s: float) -> None:
        self._prices, self._kept_tpot_s = prices, kept_tpot_s
        # How many there are, and the tokens that they end with.
        self.n, self._tokens = 0, 0

    def kept_s(self, tokens: int) -> float:
        """The time per token that a request of this many, prompt and answer, is promised at least."""
        return self._prices.kept_s(self._kept_tpot_s, tokens)

    def bears(self, tokens: int) -> bool:
        """Whether promises hold with another request of this many tokens."""
        return not self.n or self._prices.most_step_s(self.n + 1, self._tokens + tokens) <= self._kept_tpot_s

    def take(self, tokens: int) -> None:
        self.n, self._tokens = self.n + 1, self._tokens + tokens

    def leave(self, tokens: int) -> None:
        self.n, self._tokens = self.n - 1, self._tokens - tokens

    def longest_step_s(self) -> float:
        """Of a step with any of them."""
        return max(self._kept_tpot_s, self._prices.most_step_s(self.n, self._tokens))

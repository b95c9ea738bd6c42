"""Memory for the KV of a plan, and for all that manages it: sums over one list of holdings."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from kvferry.policies.decode.blocking import ValueGroups
from kvferry.policies.decode.placement import KvSize
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.scored_keys import CompressedKeys
from kvferry.policies.decode.sizes import Choice
from kvferry.policies.ledger import NEW_TOKENS, Holding, Ledger
from kvferry.specs.model import ModelSpec
from kvferry.specs.tier import TIERS, Tier


@dataclass(frozen=True, kw_only=True)
class Managed:
    """Holdings of each sequence beside its KV, and the budget for both.

    ``holdings``: from beginning to end. ``index_layers``: what is scored as tokens come, in layers of KV.
    ``away_tokens``: tokens for which a layer whose KV lies elsewhere has room. ``reuse_needs_bytes``: the budget with
    which a reuse buffer would hold one selection, where one is wanted and this one holds none.
    """

    holdings: tuple[Holding, ...]
    budget_bytes: float
    index_layers: float = 0.0
    away_tokens: int = 0
    reuse_needs_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class KvMemory:
    """The memory of a plan. ``newest_tokens``: as StayingSizes has it."""

    roles: Roles
    model: ModelSpec
    sequences: int
    context: int
    output: int
    choice: Choice
    newest_tokens: int | None
    managed: Managed

    @property
    def most_tokens(self) -> int:
        """Returns the tokens of a sequence at its end."""
        return self.context + self.output

    @property
    def sequence_bytes(self) -> float:
        """Returns the bytes of the processor's memory that manage one sequence's KV, without what all sequences
        share."""
        own = tuple(one for one in self.managed.holdings if one.per == "sequence")
        return Ledger(own).n_bytes(self.most_tokens)

    @property
    def least_bytes(self) -> float:
        """The same where all new tokens that can lie on the host do."""
        return self.sequence_bytes - (self.output * self._new_token_bytes if self._spills else 0)

    @property
    def _spills(self) -> bool:
        """Returns whether new tokens without room in the processor's memory go to the host, where the rest of the KV
        lies."""
        if self.choice.selected is None or self.newest_tokens is not None:
            return False
        return not self.roles.upkeep.grows and self.roles.placement.away == "host"

    @property
    def _new_token_bytes(self) -> int:
        return self.model.layers * self.model.kv_entry_bytes

    def within(self, budget_bytes: float) -> "KvMemory":
        """Returns it with another budget for each sequence, and as many new tokens in memory as that has room for."""
        managed = replace(self.managed, budget_bytes=budget_bytes)
        if not self._spills or not self.least_bytes <= budget_bytes < self.sequence_bytes:
            return replace(self, managed=managed)
        away = math.ceil((self.sequence_bytes - budget_bytes) / self._new_token_bytes)
        less = Holding.of(NEW_TOKENS, -away * self._new_token_bytes, "sequence")
        there = Holding(NEW_TOKENS, lambda tokens: away * self._new_token_bytes, "sequence", "host")
        managed = replace(managed, holdings=(*managed.holdings, less, there))
        return replace(self, managed=managed, newest_tokens=self.output - away)

    def size(self, tokens: int) -> KvSize:
        """Returns the size of the whole batch's KV blocks once each sequence has `tokens` tokens; the placement decides
        by it."""
        managed_bytes = Ledger(self.managed.holdings, self.sequences).n_bytes(tokens)
        return KvSize(
            layers=self.model.layers,
            tokens=self._in_blocks(tokens),
            most_tokens=self._in_blocks(self.most_tokens),
            token_bytes=self.sequences * self.model.kv_entry_bytes,
            memory_bytes=self.sequences * self.managed.budget_bytes - managed_bytes,
            beside_layers=self.managed.index_layers,
            away_tokens=self.managed.away_tokens,
        )

    def _in_blocks(self, tokens: int) -> int:
        """Returns how many of a sequence's tokens lie where its KV does."""
        if self.choice.selected is None:
            return tokens
        return self.roles.upkeep.in_blocks(self.context, self.choice.group_tokens, tokens)

    def tiers_at(self, tokens: int) -> tuple[Tier, ...]:
        """Returns where each layer's KV lies once each sequence has `tokens` tokens."""
        return self.roles.placement.tiers(self.size(tokens))

    @cached_property
    def ledger(self) -> Ledger:
        """Returns all that KV and what manages it hold."""

        @lru_cache(maxsize=4)
        def kv_at(tokens: int) -> dict[tuple[Tier, str], float]:
            size = self.size(tokens)
            return size.held(self.roles.placement.tiers(size))

        def growing(tier: Tier, name: str) -> Holding:
            return Holding(name, lambda tokens: kv_at(tokens).get((tier, name), 0), tier=tier)

        kinds = [(tier, "kv") for tier in TIERS]
        if self.managed.away_tokens:
            kinds.append(("device", "kv: slots"))
        if self.managed.index_layers:
            kinds.append(("device", "kv: index"))
        return Ledger((*self.managed.holdings, *(growing(*kind) for kind in kinds)), self.sequences)

    @property
    def over_bytes(self) -> float:
        """Returns the bytes that the budget lacks for the KV of the whole output in the processor's memory, with what
        grows beside it and what layers that lie elsewhere hold there; 0 where there is neither."""
        managed = self.managed
        if not (managed.away_tokens or managed.index_layers):
            return 0.0
        return max(0.0, self.ledger.n_bytes(self.most_tokens) - self.sequences * managed.budget_bytes)


_LATENT = "the model's cache is latent (model.latent)"


def latent_faults(roles: Roles) -> Iterator[tuple[str, str]]:
    """Roles that cannot be, each with the reason and what would do."""
    if isinstance(roles.selector, CompressedKeys):
        what = "which have no low rank beyond it; retrieval-head, page-bounds, landmarks or all would do"
        yield "selector", f"{_LATENT}: it is scored by its own vectors, {what}"
    elif roles.selector.clusters:
        what = "and clusters are made of a head's keys; retrieval-head, page-bounds, landmarks or all would do"
        yield "selector", f"{_LATENT}: it has one vector for all heads, {what}"
    if isinstance(roles.layout, ValueGroups):
        yield "layout", f"{_LATENT}: it has no values that could be read without keys; groups would do"
    elif roles.layout.clusters:
        yield "layout", f"{_LATENT}: it is not laid out by clusters of keys; groups would do"

"""The sizes of one run that decodes with KV blocks, where its KV lies, and the stages of its steps."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from kvferry.layouts.cluster_layout import AnyLayout
from kvferry.layouts.swap_area import SwapArea
from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.placement import KvSize
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.stages import Key, Stage, Stages
from kvferry.policies.ledger import NEW_TOKENS, Holding, Ledger
from kvferry.specs.model import ModelSpec
from kvferry.specs.tier import TIERS, Tier


@dataclass(frozen=True, kw_only=True)
class DecodePlan:
    """The sizes of one run, per sequence unless said otherwise."""

    roles: Roles
    model: ModelSpec
    sequences: int
    context: int
    output: int
    group_tokens: int
    # Parts of the KV heads that choose, and are read, for themselves; a row is one of them.
    heads: int
    # KV blocks of the context in each row, and how many of them are selected; None: all.
    blocks: int
    selected: int | None
    # What is scored; None: nothing.
    index: IndexSpec | None
    # Numbers per token from which keys are rebuilt, all heads together; None: keys are read.
    rebuilt_rank: int | None
    # Of each row's reuse buffer in each layer; 0: there is none.
    slots: int
    # Of each row of a layer, kept from one step to the next where that is not said in slots.
    kept_tokens: int = 0
    # What a KV block of a row is scored by.
    vector_bytes: int = 0
    # The budget with which a reuse buffer would hold one selection, where one is wanted and the budget holds none.
    reuse_needs_bytes: float | None = None
    # New tokens of a sequence that stay in the processor's memory, the others lie on the host; None: all of them stay.
    newest_tokens: int | None = None
    # What manages the KV, from beginning to end.
    manages: tuple[Holding, ...] = field(compare=False)
    # Of what is scored, as tokens come, in layers of KV; and tokens for which a layer whose KV lies elsewhere has room
    # in the processor's memory.
    beside_layers: float = 0.0
    away_tokens: int = 0
    # For all of it.
    budget_bytes: float
    layout: AnyLayout = field(compare=False)
    # The KV lies in a file that is mapped into memory, of which so many bytes may be in memory, of the whole batch;
    # None: the file is read past the page cache.
    mapped_bytes: float | None = None

    @property
    def rank(self) -> int:
        """Width of the compressed keys over all heads, kept to be rebuilt from or scored; 0: there are none."""
        return self.rebuilt_rank or (self.index.rank if self.index else 0)

    @property
    def memory_bytes(self) -> float:
        """What manages the KV of one sequence takes of the processor's memory, but for what all sequences share."""
        own = tuple(one for one in self.manages if one.per == "sequence")
        return Ledger(own).n_bytes(self.most_tokens)

    @property
    def most_tokens(self) -> int:
        """Of a sequence at its end."""
        return self.context + self.output

    @property
    def least_bytes(self) -> float:
        """What it takes where all new tokens that can lie on the host do."""
        return self.memory_bytes - (self.output * self._new_token_bytes if self._spills else 0)

    @property
    def _spills(self) -> bool:
        """New tokens that find no room in the processor's memory lie on the host, where the rest of the KV does."""
        if self.selected is None or self.newest_tokens is not None:
            return False
        return not self.roles.upkeep.grows and self.roles.placement.away == "host"

    @property
    def _new_token_bytes(self) -> int:
        return self.model.layers * self.model.kv_entry_bytes

    def within(self, budget_bytes: float) -> "DecodePlan":
        """The same with another budget for each sequence, and as many new tokens in memory as that has room for."""
        if not self._spills or not self.least_bytes <= budget_bytes < self.memory_bytes:
            return replace(self, budget_bytes=budget_bytes)
        away = math.ceil((self.memory_bytes - budget_bytes) / self._new_token_bytes)
        less = Holding.of(NEW_TOKENS, -away * self._new_token_bytes, "sequence")
        there = replace(less, n_bytes=lambda tokens: away * self._new_token_bytes, tier="host")
        manages = (*self.manages, less, there)
        return replace(self, budget_bytes=budget_bytes, manages=manages, newest_tokens=self.output - away)

    @property
    def writes_back(self) -> bool:
        """All KV of a layer that lies elsewhere is written there anew in every step, as attention has made another
        tensor of it."""
        return self.selected is None and self.roles.attention.grown

    @property
    def rows(self) -> int:
        """The number of rows of one layer over the whole batch."""
        return self.sequences * self.heads

    @property
    def blocks_per_selection(self) -> int:
        """Blocks that one sequence selects in one layer, over all heads."""
        return self.heads * (self.blocks if self.selected is None else self.selected)

    @property
    def index_row_bytes(self) -> int:
        """Bytes that a row's part of the index has in the file, where it does not stay in memory: whole storage blocks
        for as many KV blocks as there may be."""
        unit = self.layout.alignment_bytes
        return -(-self.layout.blocks * self.vector_bytes // unit) * unit

    @property
    def index_end(self) -> int:
        """Where the index ends in the file, which lies behind the KV; where it stays in memory, the KV does."""
        if not self.roles.residency.swaps:
            return self.layout.file_bytes
        return self.layout.file_bytes + self.model.layers * self.rows * self.index_row_bytes

    @cached_property
    def swap_layer_bytes(self) -> int:
        """Bytes that what is kept of a layer has in the file, where it does not stay in memory."""
        if not self.roles.residency.swaps:
            return 0
        return SwapArea.n_bytes(self.rows * self.kept_tokens, self.token_bytes, self.layout.alignment_bytes)

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's entry in one row of a layer."""
        return self.model.kv_entry_bytes // self.heads

    @property
    def file_bytes(self) -> int:
        """Bytes of the storage file: KV, and behind it the index and what is kept, where these do not stay in
        memory."""
        return self.index_end + self.model.layers * self.swap_layer_bytes

    def swap_area(self, layer: int) -> SwapArea | None:
        """Where what is kept of a layer lies while others compute; None: it stays in memory, or nothing is kept."""
        if not self.swap_layer_bytes:
            return None
        return SwapArea(
            layer=layer,
            offset=self.index_end + layer * self.swap_layer_bytes,
            slots=self.rows * self.kept_tokens,
            rows=self.rows,
            blocks=self.layout.blocks,
            token_bytes=self.token_bytes,
            alignment_bytes=self.layout.alignment_bytes,
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of the context's KV blocks in one row of one layer, as they lie outside the processor's memory."""
        return self.blocks * self.layout.stride_bytes

    def kv_size(self, tokens: int) -> KvSize:
        """The size of the whole batch's KV blocks once each sequence has so many tokens, by which the placement
        decides."""
        return KvSize(
            layers=self.model.layers,
            tokens=self._in_blocks(tokens),
            most_tokens=self._in_blocks(self.most_tokens),
            token_bytes=self.sequences * self.model.kv_entry_bytes,
            memory_bytes=self.sequences * self.budget_bytes - Ledger(self.manages, self.sequences).n_bytes(tokens),
            beside_layers=self.beside_layers,
            away_tokens=self.away_tokens,
        )

    def _in_blocks(self, tokens: int) -> int:
        """Of so many tokens of a sequence, those that lie where its KV does."""
        if self.selected is None:
            return tokens
        return self.roles.upkeep.in_blocks(self.context, self.group_tokens, tokens)

    def tiers_at(self, tokens: int) -> tuple[Tier, ...]:
        """Where each layer's KV lies with so many tokens of each sequence."""
        return self.roles.placement.tiers(self.kv_size(tokens))

    @cached_property
    def ledger(self) -> Ledger:
        """All that KV and what manages it hold of the machine's memories."""
        entry_bytes, tiers_at = self.model.kv_entry_bytes, lru_cache(maxsize=4)(self.tiers_at)

        def layers(tokens: int, tier: Tier) -> int:
            return tiers_at(tokens).count(tier)

        def kv_in(tier: Tier) -> Holding:
            return Holding("kv", lambda n: layers(n, tier) * self._in_blocks(n) * entry_bytes, "sequence", tier)

        def slots_bytes(tokens: int) -> float:
            away = self.model.layers - layers(tokens, "device")
            return away * min(self.away_tokens, self._in_blocks(tokens)) * entry_bytes

        def scored_bytes(tokens: int) -> float:
            return self.beside_layers * self._in_blocks(tokens) * entry_bytes

        growing = [kv_in(tier) for tier in TIERS]
        if self.away_tokens:
            growing.append(Holding("kv: slots", slots_bytes, "sequence"))
        if self.beside_layers:
            growing.append(Holding("kv: index", scored_bytes, "sequence"))
        return Ledger((*self.manages, *growing), self.sequences)

    @property
    def selects_all(self) -> bool:
        """A selection holds all blocks there will ever be."""
        return self.selected is not None and self.roles.selector.wanted_tokens(1) >= self.most_tokens

    @property
    def over_bytes(self) -> float:
        """What the budget lacks for the KV of the whole output in the processor's memory, with what grows beside it and
        what layers hold there that lie elsewhere; 0 where there is neither."""
        if not (self.away_tokens or self.beside_layers):
            return 0.0
        return max(0.0, self.ledger.n_bytes(self.most_tokens) - self.sequences * self.budget_bytes)

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Where each layer's KV lies after prefill."""
        return self.tiers_at(self.context)

    @property
    def last_tiers(self) -> tuple[Tier, ...]:
        """Where each layer's KV lies once all is decoded."""
        return self.tiers_at(self.most_tokens)

    @property
    def brought_tokens(self) -> int:
        """Tokens of the context that attention takes in, in each row."""
        return self.context if self.selected is None else self.selected * self.group_tokens

    @cached_property
    def stages(self) -> Stages:
        """One decoding step."""
        return step_of(self.roles, self.model.layers)

    @cached_property
    def prefill_stages(self) -> Stages:
        return prefill_of(self.roles, self.model.layers)

    def together(self, sequences: int) -> "DecodePlan":
        """The same for so many sequences."""
        return replace(self, sequences=sequences, layout=replace(self.layout, sequences=sequences))


@lru_cache(maxsize=64)
def step_of(roles: Roles, layers: int) -> Stages:
    """One decoding step through so many layers, to the next token."""
    upkeep = roles.upkeep
    beside = (*roles.layout.beside_moves, *upkeep.beside_moves)
    stages = roles.selector.stages(layers, beside, upkeep.after_attention)
    stages = roles.residency.arranged(stages, layers)
    return (*stages, Stage("next_token", 0, (stages[-1].key,)))


@lru_cache(maxsize=64)
def prefill_of(roles: Roles, layers: int) -> Stages:
    """Layer by layer: compute, and write the layer's KV out while the next is computed."""
    stages: list[Stage] = []
    before: tuple[Key, ...] = ()
    for layer in range(layers):
        computed = Stage("prefill", layer, before)
        first = [Stage(kind, layer, (computed.key,), awaited=True) for kind in roles.layout.before_write]
        rest = (Stage(kind, layer, (computed.key,)) for kind in roles.layout.after_prefill)
        written = Stage("write_out", layer, ((first or [computed])[-1].key,))
        stages += [computed, *first, written, *rest]
        before = (next(stage.key for stage in reversed(stages) if stage.kind != "write_out"),)
    return (*stages, Stage("first_token", 0, before))

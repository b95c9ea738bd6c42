"""Selectors: which KV blocks attention wants, from which query, and when that is asked.

A selector says what the machine must keep in memory to score KV blocks with (its index), what to ask it, and in which
order a decoding step runs. Which blocks come out is the machine's answer.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.stages import Key, Stage, Stages, layer_ahead, own_layer

# KV blocks by row, and the tokens in each of them; None: equally many in all.
Taken = tuple[BlockRows, np.ndarray | None]


@dataclass(frozen=True, slots=True)
class Ask:
    """One layer's question: choose `k` of `blocks` KV blocks for each of `heads`, by scoring `vectors` vectors of
    `rank` numbers per sequence."""

    blocks: int
    k: int
    heads: int
    vectors: int
    rank: int


@dataclass(frozen=True, slots=True)
class Index:
    """An index as sized for a run. ``n_bytes``: of one sequence, all layers. ``kv_layers``: what it takes as tokens
    come, in layers of KV. ``weight_bytes``: of its own weights, once for all sequences."""

    spec: IndexSpec
    n_bytes: float
    kv_layers: float = 0.0
    weight_bytes: float = 0.0


class Selector(Protocol):
    @property
    def clusters(self) -> bool:
        """It chooses among clusters."""
        ...

    @property
    def for_all_layers(self) -> bool:
        """One choice serves all layers, whose KV blocks share their places in memory."""
        ...

    @property
    def per_head(self) -> bool:
        """Every KV head chooses, and is read, for itself."""
        ...

    @property
    def fixed(self) -> bool:
        """Takes the memory that it takes, whatever the budget."""
        ...

    def selected(self, block_tokens: int, stored: int) -> int | None:
        """How many of `stored` blocks each row selects. None: all, and nothing is asked."""
        ...

    def wanted_tokens(self, stored: int) -> float:
        """Of a row's `stored` tokens, how many are wanted at least."""
        ...

    @property
    def evicts(self) -> bool:
        """KV of tokens that are not kept is gone for good, wherever the rest lies."""
        ...

    def kept_tokens(self, stored: int) -> int:
        """Of a sequence's `stored` tokens, those whose KV is kept; that of others is gone for good."""
        ...

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        """What is kept to score with; `reserved_bytes` of the budget are taken. None: nothing is scored. ValueError
        for parameters that cannot be."""
        ...

    def ask(self, index: IndexSpec, stored: int) -> Ask:
        """The question about `stored` blocks."""
        ...

    def take(self, ranked: BlockRows, tokens: np.ndarray | None, stored: int, most: int | None) -> Taken:
        """Of the machine's answer, what is wanted, and the tokens in each block of that. `tokens` are in each block of
        the answer, None: equally many in all. A sequence has `stored` tokens. `most`: blocks that a row may want; None:
        any number."""
        ...

    def stages(self, layers: int, beside: tuple[str, ...], after_attention: tuple[str, ...] = ()) -> Stages:
        """One decoding step; stages of the kinds `beside` run while a layer's KV moves, those of `after_attention` once
        it has attended, where clusters need them."""
        ...


class Unscored:
    """All KV blocks that are there, in the order in which they lie; nothing is scored. ``ahead``: the next layer's move
    while this one computes."""

    clusters = False
    for_all_layers = False
    evicts = False
    ahead: bool = True

    @property
    def per_head(self) -> bool:
        return False

    @property
    def fixed(self) -> bool:
        return True

    def selected(self, block_tokens: int, stored: int) -> int | None:
        return None

    def wanted_tokens(self, stored: int) -> float:
        return stored

    def kept_tokens(self, stored: int) -> int:
        return stored

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        return None

    def ask(self, index: IndexSpec, stored: int) -> Ask:
        raise AssertionError("nothing is asked where everything is read")

    def take(self, ranked: BlockRows, tokens: np.ndarray | None, stored: int, most: int | None) -> Taken:
        return ranked, tokens

    def stages(self, layers: int, beside: tuple[str, ...], after_attention: tuple[str, ...] = ()) -> Stages:
        def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
            return [Stage("bring_all", layer, after), *(Stage(kind, layer, after) for kind in beside)]

        return (layer_ahead if self.ahead else own_layer)(fetch, "bring_all", layers)


@dataclass(frozen=True, kw_only=True)
class Everything(Unscored):
    """A Selector of all KV blocks."""

    ahead: bool = True


def chosen_stages(ahead: bool, layers: int, beside: tuple[str, ...]) -> Stages:
    """One decoding step in which every layer chooses: select, look up what is there already, move the rest."""

    def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
        known = (("look_up", layer),)
        return [
            Stage("select", layer, after, awaited=True),
            Stage("look_up", layer),
            Stage("bring", layer, known),
            *(Stage(kind, layer, known) for kind in beside),
        ]

    return (layer_ahead if ahead else own_layer)(fetch, "bring", layers)

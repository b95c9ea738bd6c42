"""Selectors: which KV blocks attention wants, from which query, and when that is asked.

A selector says what the machine must keep in memory to score KV blocks with (its index), what to ask it, what to make
of the answer, and in which order a decoding step runs.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.ranked import Ranked
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.stages import Key, Stage, Stages, layer_ahead, own_layer
from kvferry.specs.units import Tokens


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


class Selector:
    """Base of all selectors; without changes it takes all KV blocks that there are, in the order in which they lie, and
    scores nothing. A row is a sequence, or a part of its KV heads that chooses for itself.

    ``clusters``: it chooses among clusters. ``for_all_layers``: one choice serves all layers, whose KV blocks share
    their places in memory. ``per_head``: every KV head chooses, and is read, for itself. ``fixed``: the memory of its
    index does not depend on the budget. ``evicts``: KV of tokens that are not kept is gone for good, wherever the rest
    lies. ``ahead``: a layer's KV moves while the layer before computes.
    """

    clusters: ClassVar[bool] = False
    for_all_layers: ClassVar[bool] = False
    evicts: ClassVar[bool] = False
    per_head: bool = False
    ahead: bool = True

    @property
    def fixed(self) -> bool:
        return True

    def selected(self, block_tokens: int, stored_blocks: int) -> int | None:
        """Returns the number of blocks that each row selects of those stored. None: all, and nothing is asked."""
        return None

    def wanted_tokens(self, stored_tokens: int) -> float:
        """Returns how many of a row's stored tokens are wanted at least."""
        return stored_tokens

    def kept_tokens(self, stored_tokens: int) -> int:
        """Returns how many of a sequence's stored tokens keep their KV; that of the others is gone for good."""
        return stored_tokens

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        """Returns what is kept to score with; `reserved_bytes` of the budget are taken. None: nothing is scored.
        ValueError for parameters that cannot be."""
        return None

    def ask(self, index: IndexSpec, stored_blocks: int) -> Ask:
        """Returns the question about the stored blocks."""
        raise AssertionError("nothing is asked where everything is read")

    def take(self, ranked: Ranked) -> BlockRows:
        """Returns the blocks that are wanted, given the machine's answer: fewer of them, others, or more. Each block is
        one of those stored, and comes once in a row; `ranked.most_blocks` limits a row."""
        return ranked.blocks

    def stages(self, layers: int, beside: tuple[str, ...], after_attention: tuple[str, ...] = ()) -> Stages:
        """Returns one decoding step. Stages of the kinds `beside` run while a layer's KV moves, those of
        `after_attention` once it has attended, where clusters need them."""

        def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
            return [Stage("bring_all", layer, after), *(Stage(kind, layer, after) for kind in beside)]

        return (layer_ahead if self.ahead else own_layer)(fetch, "bring_all", layers)


@dataclass(frozen=True, kw_only=True)
class Everything(Selector):
    """A Selector of all KV blocks."""

    ahead: bool = True


def chosen_stages(ahead: bool, layers: int, beside: tuple[str, ...]) -> Stages:
    """Returns one decoding step in which every layer chooses: select, look up what is there already, move the rest."""

    def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
        known = (("look_up", layer),)
        return [
            Stage("select", layer, after, awaited=True),
            Stage("look_up", layer),
            Stage("bring", layer, known),
            *(Stage(kind, layer, known) for kind in beside),
        ]

    return (layer_ahead if ahead else own_layer)(fetch, "bring", layers)


@dataclass(frozen=True, kw_only=True)
class Window(Selector):
    """Attention over all that is kept: the newest ``window_tokens`` (a sliding window), and the first ``sink_tokens``,
    which attention sinks into (StreamingLLM). Nothing is scored."""

    evicts = True
    window_tokens: Annotated[Tokens, Field(ge=1)] = 2048
    sink_tokens: Annotated[Tokens, Field(ge=0)] = 0

    def kept_tokens(self, stored_tokens: int) -> int:
        return min(stored_tokens, self.sink_tokens + self.window_tokens)

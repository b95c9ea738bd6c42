"""Indexes over arrays: what is kept of keys, and how KV blocks are scored with it. One class serves both worlds."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, make_dataclass, replace
from inspect import Parameter, signature
from typing import Any

import numpy as np

from kvferry.policies.decode.head_choice import agreed
from kvferry.policies.decode.index import IndexSpec
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.top_blocks import TopByOwnQuery
from kvferry.specs.errors import KvferryError


@dataclass(frozen=True, kw_only=True)
class IndexShape:
    """Sizes of one run: ``heads`` parts of the ``kv_heads`` choose for themselves, KV blocks have ``block_tokens``
    tokens, and a sequence has ``room_blocks`` of them at most."""

    layers: int
    sequences: int
    heads: int
    kv_heads: int
    query_heads: int
    head_dim: int
    block_tokens: int
    room_blocks: int


class KeyIndex(ABC):
    """Scores the KV blocks of a run from what it keeps of their keys: float32 arrays, in every world.

    A real machine hands it the model's own keys and queries, with their rotary embedding. The modelled world draws
    them (``workload.keys``, ``workload.recorded_keys``): there every part that chooses for itself has one KV head, and
    layers further behind are each like one of the first four. Nothing is drawn for an index that keeps no vectors: its
    keys and queries have a ``head_dim`` of 0.
    """

    def __init__(self, shape: IndexShape) -> None:
        self.shape = shape

    @staticmethod
    def price(block_tokens: int, key_width: int) -> tuple[int, int]:
        """Returns what is kept and scored of a KV block in a layer: how many vectors, and the numbers of each, all KV
        heads together. Memory and the time of scoring follow from it. By default one key."""
        return 1, key_width

    def keep(self, layer: int, block: int, keys: np.ndarray) -> None:  # noqa: B027
        """Takes in keys [sequences, KV heads, tokens, head_dim] of whole KV blocks, the first with number
        `block`. They come in order, those of the prompts at once."""

    @abstractmethod
    def scores(self, layer: int, queries: np.ndarray, blocks: int) -> np.ndarray:
        """Returns [sequences, query heads, blocks], the more, the better, for the queries [sequences, query heads,
        head_dim] of one token and the first `blocks` blocks. Query heads that choose together are agreed on behind it;
        an answer [sequences, shape.heads, blocks] is taken as it is."""

    def attended(self, layer: int, ids: np.ndarray, weights: np.ndarray) -> None:  # noqa: B027
        """Learn which blocks attention took in, int[sequences, heads, k], and which share of it each got, summed over
        the query heads that choose together. Not called unless a class has this method."""

    @property
    def attends(self) -> bool:
        """Returns whether it learns what attention took in."""
        return type(self).attended is not KeyIndex.attended

    @property
    def n_bytes(self) -> int:
        """Returns the bytes that are kept, of numbers of four bytes."""
        shape = self.shape
        vectors, rank = self.price(shape.block_tokens, shape.kv_heads * shape.head_dim)
        return 4 * shape.layers * shape.sequences * shape.room_blocks * vectors * rank

    def chosen_scores(self, layer: int, queries: np.ndarray, blocks: int, spec: IndexSpec) -> np.ndarray:
        """Returns [sequences, heads, blocks]: ``scores``, with one score for the query heads that choose together.
        Raises KvferryError for a number of query heads that does not fall into these parts."""
        found = np.asarray(self.scores(layer, queries, blocks))
        if found.shape[1] == spec.heads:
            return found
        if found.shape[1] % spec.heads:
            what = f"index {spec.kind!r}: scores of {found.shape[1]} heads for {spec.heads} parts that choose"
            raise KvferryError(f"{what}; {self.shape.query_heads} heads, or {spec.heads}, would do")
        shares: np.ndarray = agreed(found, spec.heads, spec.scores, max(1, queries.shape[-1]) ** -0.5)
        return shares


class TokenKeys(KeyIndex):
    """All keys are kept; a block scores as its best token does."""

    def __init__(self, shape: IndexShape) -> None:
        super().__init__(shape)
        tokens = shape.room_blocks * shape.block_tokens
        self._keys = np.zeros((shape.layers, shape.sequences, shape.kv_heads, tokens, shape.head_dim), np.float32)

    @staticmethod
    def price(block_tokens: int, key_width: int) -> tuple[int, int]:
        return block_tokens, key_width

    def keep(self, layer: int, block: int, keys: np.ndarray) -> None:
        begin = block * self.shape.block_tokens
        self._keys[layer, :, :, begin : begin + keys.shape[2]] = keys

    def scores(self, layer: int, queries: np.ndarray, blocks: int) -> np.ndarray:
        shape = self.shape
        by_head = queries.reshape(shape.sequences, shape.kv_heads, -1, shape.head_dim)
        products = np.einsum("bknd,bkgd->bkgn", self._keys[layer, :, :, : blocks * shape.block_tokens], by_head)
        return products.reshape(shape.sequences, -1, blocks, shape.block_tokens).max(-1)


# Indexes that score arrays of keys, by the kind that an IndexSpec calls them; plugins add theirs.
KEY_INDEXES: dict[str, Callable[..., KeyIndex]] = {"keys": TokenKeys}


def keeps_keys(spec: IndexSpec) -> bool:
    """Returns whether an index of this kind keeps any vectors, and so has a use for keys."""
    price: tuple[int, int] = KEY_INDEXES[spec.kind].price(spec.block_tokens, 1)  # type: ignore[attr-defined]
    return price[0] > 0


@dataclass(frozen=True, kw_only=True)
class ByIndex(TopByOwnQuery):
    """The blocks that the index of this ``kind`` scores best, with the layer's own query. Fields that a subclass adds
    and the index takes are the index's parameters."""

    def index(self, room: Room, reserved_bytes: float) -> Index | None:
        model = room.model
        vectors, rank = self._price(room.block_tokens, model.key_width)
        n_bytes = model.layers * room.blocks * vectors * rank * model.kv_value_bytes
        given = tuple((name, getattr(self, name)) for name in parameters_of(KEY_INDEXES[self.kind]))
        return Index(replace(self.spec(room, rank), parameters=given), n_bytes)

    def vectors(self, block_tokens: int, stored_blocks: int) -> int:
        return stored_blocks * self._price(block_tokens, 1)[0]

    def _price(self, block_tokens: int, key_width: int) -> tuple[int, int]:
        price: tuple[int, int] = KEY_INDEXES[self.kind].price(block_tokens, key_width)  # type: ignore[attr-defined]
        return price


def parameters_of(index: Callable[..., KeyIndex]) -> dict[str, Parameter]:
    """Returns the parameters of an index besides its shape, all with a default."""
    _, *more = signature(index, eval_str=True).parameters.values()
    return {one.name: one for one in more}


def selector_by(kind: str, index: Callable[..., KeyIndex]) -> type[ByIndex]:
    """Returns the selector of an index of this kind, whose fields are the index's parameters as well. ValueError for a
    parameter without a default, or by the name of a selector's own."""
    own = parameters_of(index)
    for one in own.values():
        if one.default is one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            raise ValueError(f"takes (shape), and more with a default alone: {one.name} has none")
        if one.name in {field.name for field in fields(ByIndex)}:
            raise ValueError(f"its parameter {one.name} is one of every selector; another name would do")
    declared: list[Any] = [
        (one.name, Any if one.annotation is one.empty else one.annotation, one.default) for one in own.values()
    ]
    named = getattr(index, "__name__", kind)
    return make_dataclass(named, declared, bases=(ByIndex,), namespace={"kind": kind}, frozen=True, kw_only=True)

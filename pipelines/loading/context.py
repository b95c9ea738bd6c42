"""A stored context as the pipeline needs it: its units as ops to submit and chunks to fetch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from kvferry.machine.ops import Advance, Chunks, KvRef, Op, PrefillHead, Project
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.specs.model import ModelSpec

# The very same op where one takes as much: nine of ten do, and their price is found sooner.
_op_of_head = lru_cache(65_536)(PrefillHead)


@dataclass(frozen=True, kw_only=True)
class Context:
    """The KV of one context: the size and the compute work of each chunk (t, l, h).

    ``tokens[t]``: tokens of each token chunk. ``active_blocks[t, l, h]``: 128 x 64 attention blocks that hold
    98 % of the mass (SparKV IV-C). ``encoded_bytes[t, l, h]``: size in the store at level 0, with the other
    levels' sizes relative to it in ``level_scale``. ``before[t]``: tokens in front of each chunk; None: those of the
    chunks before it, of which none is missing. ``numbers[t]``: of each chunk in what is stored; None: in their order.
    """

    sequence: int
    model: ModelSpec
    coupling: Coupling
    tokens: np.ndarray
    active_blocks: np.ndarray
    encoded_bytes: np.ndarray
    level_scale: tuple[float, ...] = (1.0,)
    # False: fetched chunks are usable as they are, without decompression.
    entropy_coded: bool = True
    before: np.ndarray | None = None
    numbers: np.ndarray | None = None

    @property
    def total_tokens(self) -> int:
        return int(self.tokens.sum())

    @cached_property
    def stream_bytes(self) -> np.ndarray:
        """Encoded size of every unit [T, L, C]."""
        if self.coupling == "per_head":
            return self.encoded_bytes
        return self.encoded_bytes.sum(axis=2, keepdims=True)

    @cached_property
    def values(self) -> np.ndarray:
        """How many key and value numbers every unit [T, L, C] holds."""
        heads = 1 if self.coupling == "per_head" else self.model.kv_heads
        return np.broadcast_to(2 * self.model.head_dim * heads * self.tokens[:, None, None], self.stream_bytes.shape)

    @cached_property
    def _ops(self) -> tuple[Op, ...]:
        """The ops of all units, with arrays [T, L, C] as counts: planners price them at once, single ops are slices."""
        layers = self.model.layers
        tokens = np.broadcast_to(self.tokens[:, None, None], self.stream_bytes.shape)
        before = np.broadcast_to(self._context_tokens[:, None, None], tokens.shape)
        if self.coupling == "per_head":
            final = np.broadcast_to((np.arange(layers) == layers - 1)[None, :, None], tokens.shape)
            return (PrefillHead(tokens, self.active_blocks, final, before),)
        below = self.active_blocks.sum(axis=2, keepdims=True)[:, :-1]
        return (Advance(tokens[:, 1:], below, before[:, 1:]), Project(tokens))

    def problem(self, estimate_s: Callable[[Op], Any]) -> LoadProblem:
        """The loading problem under a cost estimate: `estimate_s` prices an op of arrays."""
        if self.coupling == "per_head":
            compute_s = np.asarray(estimate_s(self._ops[0]), dtype=float)
        else:
            advance, project = self._ops
            compute_s = np.array(estimate_s(project), dtype=float)
            compute_s[:, 1:] += estimate_s(advance)
        return LoadProblem(
            compute_s=compute_s,
            stream_bytes=self.stream_bytes.astype(float),
            coupling=self.coupling,
            level_scale=self.level_scale,
        )

    def ops_of(self, t: int, l: int, c: int) -> tuple[Op, ...]:
        """The ops, in order, that compute the KV of unit (t, l, c)."""
        tokens, before = self._token_list[t], self._context_token_list[t]
        if self.coupling == "per_head":
            return (_op_of_head(tokens, self._blocks_of_heads[t][l][c], l == self.model.layers - 1, before),)
        n_bytes = self._layer_kv_bytes[t]
        number = self.number_of(t)
        project = Project(tokens, KvRef(self.sequence, number, l, None, n_bytes))
        if l == 0:
            return (project,)
        below = KvRef(self.sequence, number, l - 1, None, n_bytes)
        return (Advance(tokens, self._blocks_of_all_heads[t][l - 1], before, below), project)

    def number_of(self, t: int) -> int:
        """Returns the number of a token chunk in what is stored."""
        return t if self.numbers is None else int(self.numbers[t])

    @cached_property
    def _layer_kv_bytes(self) -> list[float]:
        """Memory bytes of one layer's KV, for each token chunk."""
        per_token = self.model.kv_bytes_per_token / self.model.layers
        return [tokens * per_token for tokens in self._token_list]

    @cached_property
    def _blocks_of_heads(self) -> list[list[list[int]]]:
        return self.active_blocks.tolist()

    @cached_property
    def _blocks_of_all_heads(self) -> list[list[int]]:
        return self.active_blocks.sum(axis=2).tolist()

    def chunks_of(self, units: tuple[int, ...], level: int) -> Chunks:
        """The chunks (t, l, h) behind these units, as one transfer at an encoding level."""
        sizes = self._unit_bytes
        n_bytes = sum(sizes[u] for u in units) * self.level_scale[level]
        if self.numbers is not None:
            each = self.stream_bytes.shape[1] * self.stream_bytes.shape[2]
            units = tuple(self.number_of(u // each) * each + u % each for u in units)
        if self.coupling == "all_heads":
            heads = self.model.kv_heads
            units = tuple(u * heads + h for u in units for h in range(heads))
        return Chunks(self.sequence, units, n_bytes, level)

    def bytes_of(self, units: Sequence[int], level: int) -> list[float]:
        """Encoded size of each of these units at a level."""
        sizes, scale = self._unit_bytes, self.level_scale[level]
        return [sizes[u] * scale for u in units]

    def values_of(self, units: Sequence[int]) -> int:
        """How many key and value numbers these units hold, which decompression must produce."""
        each, per_chunk = self._values_of_chunks, self._units_per_chunk
        if len(units) == 1:
            return each[units[0] // per_chunk]
        return sum([each[u // per_chunk] for u in units])

    @cached_property
    def _values_of_chunks(self) -> list[int]:
        """How many numbers a unit of each token chunk holds."""
        heads = 1 if self.coupling == "per_head" else self.model.kv_heads
        return [2 * self.model.head_dim * heads * tokens for tokens in self._token_list]

    @cached_property
    def _units_per_chunk(self) -> int:
        return self.stream_bytes.shape[1] * self.stream_bytes.shape[2]

    @cached_property
    def _unit_bytes(self) -> list[float]:
        return self.stream_bytes.ravel().tolist()

    @cached_property
    def _context_tokens(self) -> np.ndarray:
        return np.cumsum(self.tokens) - self.tokens if self.before is None else self.before

    @cached_property
    def _context_token_list(self) -> list[int]:
        return [int(n) for n in self._context_tokens]

    @cached_property
    def _token_list(self) -> list[int]:
        return [int(n) for n in self.tokens]

"""How a token chunk's queries attend to everything up to them: dense, or only the blocks that matter.

Blocks are 128 queries x 64 keys and shared by the query heads of a KV head. Those kept hold 98 % of the
attention mass of their row (SparKV IV-C), found from real attention by ``Recorder`` when the context is stored: that
costs as much as dense attention and is not what a device would do at run time. The masks are small (16 KB per
layer of 8 heads at 16K tokens) and can travel with the stored KV.
"""

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from kvferry.model.block_masks import BlockMasks
from kvferry.model.kv import SessionKv
from kvferry.specs.errors import InputError
from kvferry.traces.chunks import KEY_BLOCK, QUERY_BLOCK

ACTIVE_MASS = 0.98


class Attention(Protocol):
    def __call__(self, queries: torch.Tensor, kv: SessionKv, t: int, l: int) -> torch.Tensor:
        """What the queries [1, query heads, tokens, head_dim] of chunk t attend in layer l, causally; same shape.

        Raises NotReady while KV of the layer is missing up to t.
        """
        ...


def dense(queries: torch.Tensor, kv: SessionKv, t: int, l: int) -> torch.Tensor:
    """Every key up to the query: the reference."""
    keys, values = kv.attended(t, l)
    causal = causal_lower_right(queries.shape[2], keys.shape[2])
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=causal, enable_gqa=True)


class Recorder:
    """Dense attention that notes which blocks hold `mass` of it."""

    def __init__(self, mass: float = ACTIVE_MASS) -> None:
        self._mass = mass
        # active[t, l]: bool[KV heads, query blocks, key blocks].
        self.active: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, queries: torch.Tensor, kv: SessionKv, t: int, l: int) -> torch.Tensor:
        keys, _ = kv.attended(t, l)
        self.active[t, l] = active_blocks(block_mass(queries, keys), queries.shape[2], keys.shape[2], self._mass)
        return dense(queries, kv, t, l)


def block_mass(queries: torch.Tensor, keys: torch.Tensor) -> np.ndarray:
    """float64[KV heads, query blocks, key blocks]: causal softmax mass, summed over a block and its query heads.

    The last queries are those of the last keys. A row's mass is its queries times its query heads.
    """
    heads, end, tokens = keys.shape[1], keys.shape[2], queries.shape[2]
    start = end - tokens
    by_kv_head = queries[0].unflatten(0, (heads, -1)).float() * queries.shape[-1] ** -0.5
    mass = np.zeros((heads, -(-tokens // QUERY_BLOCK), -(-end // KEY_BLOCK)))
    # Row by row: the scores of all queries at once would not fit at long contexts.
    for h in range(heads):
        head_keys = keys[0, h].float()
        for row in range(mass.shape[1]):
            first, last = row * QUERY_BLOCK, min((row + 1) * QUERY_BLOCK, tokens)
            scores = by_kv_head[h, :, first:last] @ head_keys[: start + last].T
            scores += torch.full_like(scores[0], -torch.inf).triu(start + first + 1)
            by_key = scores.softmax(-1).sum((0, 1), dtype=torch.float64)
            by_block = F.pad(by_key, (0, -len(by_key) % KEY_BLOCK)).unflatten(0, (-1, KEY_BLOCK)).sum(-1)
            mass[h, row, : len(by_block)] = by_block.cpu().numpy()
    return mass


def active_blocks(mass: np.ndarray, tokens: int, end: int, share: float = ACTIVE_MASS) -> np.ndarray:
    """bool like `mass`: per row the fewest blocks that hold `share` of it, and those on the diagonal.

    The diagonal keeps every query its own key: a query that attended nothing at all would have no result.
    """
    order = np.argsort(-mass, axis=-1, kind="stable")
    sorted_mass = np.take_along_axis(mass, order, -1)
    before = np.cumsum(sorted_mass, axis=-1) - sorted_mass
    active = np.empty(mass.shape, dtype=bool)
    np.put_along_axis(active, order, before < share * mass.sum(-1, keepdims=True), -1)
    first, last = _rows(tokens, end)
    blocks = np.arange(mass.shape[-1])
    return active | ((blocks >= first[:, None] // KEY_BLOCK) & (blocks <= last[:, None] // KEY_BLOCK))


class BlockSparse:
    """Attention over recorded blocks alone, by FlexAttention.

    Compiled on first use (some ten seconds). Where that does not work, and with compiled=False, the same mask is
    written out for dense attention, which is right and saves nothing; `compiled` then says False.
    """

    def __init__(self, masks: BlockMasks, *, compiled: bool = True) -> None:
        self._masks = masks
        self.compiled = compiled

    def __call__(self, queries: torch.Tensor, kv: SessionKv, t: int, l: int) -> torch.Tensor:
        keys, _ = kv.attended(t, l)
        active = self._masks.active(t, l)
        tokens, end = queries.shape[2], keys.shape[2]
        wanted = (kv.heads, -(-tokens // QUERY_BLOCK), -(-end // KEY_BLOCK))
        if active.shape != wanted or kv.starts[t] % KEY_BLOCK:
            raise InputError(
                f"the block mask of token chunk {t}, layer {l} is {active.shape}, this context needs {wanted} "
                f"and chunks that begin at multiples of {KEY_BLOCK} tokens; record it with this model and context"
            )
        if self.compiled:
            try:
                return self._flex(queries, kv, t, l, active)
            except RuntimeError as error:  # whatever dynamo, inductor or the C++ compiler met
                self.compiled = False
                reason = str(error).strip().split("\n", 1)[0][:200]
                warnings.warn(
                    f"FlexAttention does not compile here ({reason}): block-sparse attention is computed densely "
                    "under a mask and saves nothing",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return masked(queries, kv, t, l, active)

    def _flex(self, queries: torch.Tensor, kv: SessionKv, t: int, l: int, active: np.ndarray) -> torch.Tensor:
        # One shape for all chunks, hence one compilation: queries padded to those of the longest chunk, keys with
        # the whole room behind them. No block beyond the chunk is listed, so neither costs anything.
        rows, tokens = -(-max(kv.tokens) // QUERY_BLOCK), queries.shape[2]
        padded = F.pad(queries, (0, 0, 0, rows * QUERY_BLOCK - tokens))
        group = queries.shape[1] // kv.heads
        mask = block_mask(active, kv.starts[t], tokens, rows, kv.capacity // KEY_BLOCK, group, kv.device)
        attended: torch.Tensor = _compiled_flex()(padded, kv.keys[l], kv.values[l], block_mask=mask, enable_gqa=True)
        return attended[:, :, :tokens]


def block_mask(
    active: np.ndarray, start: int, tokens: int, rows: int, columns: int, group: int, device: torch.device
) -> BlockMask:
    """bool[KV heads, query blocks, key blocks] for a chunk that begins at `start`, as FlexAttention wants it.

    `rows` x `columns` blocks, at least as many as are active; `group` query heads share a KV head's.
    """
    heads, used_rows, used_columns = active.shape
    listed = np.zeros((heads, rows, columns), dtype=bool)
    listed[:, :used_rows, :used_columns] = active
    first, _ = _rows(tokens, start + tokens)
    # Whole blocks before a row's first query need no look at single positions.
    before = np.zeros((rows, columns), dtype=bool)
    before[:used_rows] = (np.arange(columns) + 1) * KEY_BLOCK <= first[:, None] + 1
    position = torch.tensor(start, device=device)

    def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return query + position >= key

    return BlockMask.from_kv_blocks(
        *_lists(listed & ~before, group, device),
        *_lists(listed & before, group, device),
        BLOCK_SIZE=(QUERY_BLOCK, KEY_BLOCK),
        mask_mod=causal,
        seq_lengths=(rows * QUERY_BLOCK, columns * KEY_BLOCK),
        compute_q_blocks=False,
    )


def masked(queries: torch.Tensor, kv: SessionKv, t: int, l: int, active: np.ndarray) -> torch.Tensor:
    """The same attention with the mask written out position by position."""
    keys, values = kv.attended(t, l)
    tokens, end = queries.shape[2], keys.shape[2]
    by_head = torch.from_numpy(active.repeat(queries.shape[1] // kv.heads, axis=0)).to(kv.device)
    by_position = by_head.repeat_interleave(QUERY_BLOCK, 1)[:, :tokens].repeat_interleave(KEY_BLOCK, 2)[:, :, :end]
    causal = torch.ones(tokens, end, dtype=torch.bool, device=kv.device).tril(end - tokens)
    return F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=(by_position & causal)[None], enable_gqa=True
    )


def _lists(blocks: np.ndarray, group: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Per row how many blocks, and which: int32[1, query heads, rows] and [1, query heads, rows, columns]."""
    counts = blocks.sum(-1, dtype=np.int32)
    which = np.argsort(~blocks, axis=-1, kind="stable").astype(np.int32)
    return tuple(torch.from_numpy(part.repeat(group, axis=0)[None]).to(device) for part in (counts, which))


def _rows(tokens: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the first and last query of every query block of the last `tokens` tokens."""
    first = np.arange(0, tokens, QUERY_BLOCK)
    return end - tokens + first, end - tokens + np.minimum(first + QUERY_BLOCK, tokens) - 1


@lru_cache(maxsize=1)
def _compiled_flex() -> Callable[..., Any]:
    # fullgraph: rather an error than a quiet return to the uncompiled one, which knows no blocks.
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)

"""Head-level selection, by the model's kind of attention (SpeContext 4.3): which heads choose, and how heads that share
what is cached agree. Both worlds take it from here."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from kvferry.policies.decode.index import Scores
from kvferry.specs.model import ModelSpec

# Ways of query heads to share what is cached: each has its own, groups share, all share; or all read a latent vector.
AttentionKind = Literal["mha", "gqa", "mqa", "mla"]


def attention_kind(model: ModelSpec) -> AttentionKind:
    if model.latent is not None:
        return "mla"
    if model.kv_heads == model.query_heads:
        return "mha"
    return "mqa" if model.kv_heads == 1 else "gqa"


def choosing_heads(model: ModelSpec) -> int:
    """Returns the rows of one layer's KV that choose, and are read, for themselves: every head of "mha", every group of
    "gqa", and one for all heads of "mqa" and "mla", as these share each entry of the cache. (Of MLA the paper says that
    its heads choose as those of MHA do; what has to be loaded then is the union of their choices.)"""
    return {"mha": model.query_heads, "gqa": model.kv_heads, "mqa": 1, "mla": 1}[attention_kind(model)]


def agreed(
    scores: Any,
    heads: int,
    how: Scores,
    scale: float,
    softmax: Callable[[Any, int], Any] | None = None,
    largest: Callable[[Any, int], Any] = np.max,
) -> Any:
    """Returns [sequences, heads, scored]: one score for the query heads of each of `heads` parts, from those of every
    query head, [sequences, query heads, scored]. `scale` belongs in the softmax. `softmax` and `largest` are the array
    library's: torch.softmax and torch.amax for tensors."""
    softmax = softmax or _softmax
    if how == "best_head":
        return group_weights(softmax(scores * scale, -1), heads, largest)
    by_choice = scores.reshape((scores.shape[0], heads, -1, scores.shape[-1]))
    return by_choice.sum(2) if how == "summed" else softmax(by_choice * scale, -1).sum(2)


def _softmax(scores: np.ndarray, axis: int) -> np.ndarray:
    weights: np.ndarray = np.exp(scores - scores.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def group_weights(weights: Any, heads: int, largest: Callable[[Any, int], Any] = np.max) -> Any:
    """Returns [..., heads, tokens] of attention weights [..., query heads, tokens]: the query heads of each of `heads`
    groups choose together, by the element-wise maximum. `largest` takes it along an axis; torch.amax for tensors.

    ValueError for a number of groups into which the query heads do not fall evenly."""
    queries, tokens = weights.shape[-2:]
    if heads < 1 or queries % heads:
        raise ValueError(f"{queries} query heads cannot choose as {heads} groups; a divisor of {queries} would do")
    return largest(weights.reshape((*weights.shape[:-2], heads, queries // heads, tokens)), -2)

"""Head-level selection from a retrieval head's attention weights, by the model's kind of attention (SpeContext 4.3)."""

from typing import Literal

import numpy as np

# How query heads share what is cached: each has its own, groups share, all share; or all read a latent vector.
AttentionKind = Literal["mha", "gqa", "mqa", "mla"]


def group_weights(weights: np.ndarray, kv_heads: int, kind: AttentionKind) -> np.ndarray:
    """float[heads that choose, tokens] of weights [query heads, tokens].

    With "mha" and "mla" every query head chooses for itself: MLA has one latent cache, from which each head brings up
    what it has chosen. With "gqa" and "mqa" the heads of a group choose together, by the element-wise maximum.
    ValueError for a number of KV heads that is not this kind's.
    """
    heads = len(weights)
    fitting = {"mha": kv_heads == heads, "gqa": heads % kv_heads == 0, "mqa": kv_heads == 1, "mla": kv_heads == 1}
    if kv_heads < 1 or not fitting[kind]:
        needs = {"mha": f"{heads}", "gqa": f"a divisor of {heads}", "mqa": "1", "mla": "1 (the latent cache)"}[kind]
        raise ValueError(f"{kind} of {heads} query heads has {needs} for KV heads, not {kv_heads}")
    if kind in ("mha", "mla"):
        return weights
    best: np.ndarray = weights.reshape(kv_heads, -1, weights.shape[1]).max(axis=1)
    return best


def best_tokens(weights: np.ndarray, budget: int) -> np.ndarray:
    """int32[heads, min(budget, tokens)]: of each head the tokens of the largest weights, ascending; of equal ones the
    first. ValueError for a budget of nothing."""
    if budget < 1:
        raise ValueError(f"a budget is a token at least, got {budget}")
    best = np.argsort(-weights, axis=1, kind="stable")[:, :budget]
    return np.sort(best, axis=1).astype(np.int32)

"""How far back layers attend: the one place that says how many tokens a layer takes in, and how many it keeps.

Engines keep as much of a windowed layer's KV as its window holds: llama.cpp's SWA cache (`llama_kv_cache_iswa`, without
`--swa-full`) and vLLM's hybrid KV cache manager. Tokens of a prompt's chunk that stand beside it are part of the
workspace.
"""

from typing import Any, NamedTuple

import numpy as np


class LayersAlike(NamedTuple):
    """Layers that attend equally far back: to the newest ``window`` tokens, or to all (None)."""

    layers: int
    window: int | None = None


def seen(tokens: Any, window: int | None) -> Any:
    """Returns how many of so many tokens a new one attends to, itself among them, and a layer keeps: a number or an
    array."""
    return tokens if window is None else _least(tokens, window)


def pairs(tokens: Any, context: Any, window: int | None) -> Any:
    """Returns the pairs of query and key of a prompt of `tokens` behind a context, in one layer."""
    # Queries before which the window is not full yet, and those that attend to a full one.
    growing = tokens if window is None else _least(tokens, _most(window - context, 0))
    before = growing * context + growing * (growing + 1) / 2
    return before if window is None else before + (tokens - growing) * window


def _least(one: Any, other: Any) -> Any:
    return np.minimum(one, other) if isinstance(one, np.ndarray) or isinstance(other, np.ndarray) else min(one, other)


def _most(one: Any, other: Any) -> Any:
    return np.maximum(one, other) if isinstance(one, np.ndarray) else max(one, other)

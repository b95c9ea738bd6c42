"""The index that a selector scores KV blocks with: said once, kept by the modelled machine and the real one."""

from dataclasses import dataclass
from typing import Any, Literal

# Ways to join the scores of query heads that choose together. `summed`: they are added as they are. `by_head`: each
# head's scores are softmaxed over what it scores, then added. `best_head`: softmaxed, and the largest counts.
Scores = Literal["summed", "by_head", "best_head"]
# Kinds of what KV blocks are scored by, as IndexSpec has it.
INDEX_KINDS = (
    "low-rank-keys",
    "partial-keys",
    "principal-keys",
    "landmarks",
    "page-bounds",
    "centroids",
    "keys",
    "retrieval-head",
)


@dataclass(frozen=True, kw_only=True)
class IndexSpec:
    """Describes what a selector needs the machine to keep in memory, to score KV blocks.

    ``kind``: "low-rank-keys" (KVSwap), "partial-keys" (InfiniGen), "principal-keys" (Loki), "landmarks" (ShadowKV),
    "page-bounds" (Quest), "centroids" (DynaKV), "keys" (every token's own) or "retrieval-head" (SpeContext:
    keys that a draft model's projection makes, one cache for all layers).
    ``heads``: parts of the KV heads that choose for themselves; 1: one choice for all. ``rank``: numbers per scored
    vector, all heads together. ``block_tokens``: tokens per KV block.
    ``clusters``: KV blocks are clusters of like keys, which new keys join one by one; the best is answered first.
    Otherwise blocks are those of consecutive tokens, and answers are in the order of the file. ``for_all_layers``: one
    choice serves them all. ``parameters``: of an index of one's own, by name (policies/decode/key_index.py).
    """

    kind: str
    heads: int
    rank: int
    block_tokens: int
    scores: Scores = "summed"
    clusters: bool = False
    for_all_layers: bool = False
    parameters: tuple[tuple[str, Any], ...] = ()

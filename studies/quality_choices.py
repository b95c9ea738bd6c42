"""How well one choice before the pass finds what every layer wants.

A bundled model reads real texts and texts with needles in them. At some of their steps it decodes a token by what is
selected alone; the KV of all tokens before is that of full attention. Ways to select as many tokens in every KV head:

retrieval-head   SpeContext: a distilled head, from token ids alone, one choice for all layers (the bundled head)
quest            every layer by its own query and bounds of the keys of pages of 16 tokens
shadowkv         every layer by its own query and mean keys of chunks of 8
clusterkv        every layer by its own query and the means of clusters of like keys
best per layer   every layer the tokens with most true attention mass
best for all     one choice for all layers: the tokens with most true mass in their mean. No head can do better
window           the newest tokens

Of a page, chunk or cluster that the budget has room for in part, the first tokens are selected; what
is too new for them counts in the budget, and comes first. Columns, in the mean over texts, KV heads, layers and steps:

hits       of the k tokens with most true attention mass, the share that was selected
mass       share of a KV head's true attention mass on what was attended
agree      next tokens that are the same as with full attention
KL         mean divergence of the next-token distribution from full attention's, in nats
needles    bytes of answers that were most likely, of texts with needles alone

Then, of steps one after the other, the share of the head's choice that the step before had, too.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch
from full_attention import APART, heading, means, show
from quality_clusters import Tended, chosen
from transformers import PreTrainedModel

from kvferry.backends.live.decoding.indexes.block_vectors import BlockVectors, Landmarks, PageBounds
from kvferry.backends.live.quality.full_attention import Told, apart, next_token, told
from kvferry.backends.live.quality.tasks import needles
from kvferry.model.decoder import Decoder
from kvferry.model.prompts import Prompts
from kvferry.model.retrieval_head import RetrievalHead, load_head
from kvferry.policies.decode.head_choice import agreed
from kvferry.policies.decode.index import IndexSpec

COLUMNS = ("hits", "mass", "agree", "KL", "needles")
# Tokens between two steps.
_EVERY = 11
# What is selected in a layer at a step, bool[KV heads, tokens before]: of the layer, the number of the step, the
# queries [query heads, head_dim] of the token and the budget.
Selects = Callable[[int, int, torch.Tensor, int], torch.Tensor]


def top(scores: torch.Tensor, k: int) -> torch.Tensor:
    """bool: the k largest of scores [KV heads, tokens]."""
    best = scores.topk(min(k, scores.shape[-1]), -1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)


def in_blocks(scores: torch.Tensor, block_tokens: int, position: int, k: int) -> torch.Tensor:
    """bool[KV heads, position]: tokens behind the last whole block, then those of the blocks with the best scores [KV
    heads, blocks], k in all."""
    order = scores.argsort(dim=-1, descending=True)
    tokens = (order[..., None] * block_tokens + torch.arange(block_tokens)).flatten(1)
    newest = torch.arange(scores.shape[-1] * block_tokens, position).expand(len(scores), -1)
    selected = torch.cat([newest, tokens], 1)[:, :k]
    return torch.zeros(len(scores), position, dtype=torch.bool).scatter(1, selected, True)


class Whole(BlockVectors):
    """Vectors of a whole text; only those before a step are scored."""

    before = 0

    def blocks(self, layer: int) -> int:
        return self.before // self.spec.block_tokens


class Bounds(Whole, PageBounds):
    """Quest's."""


class Means(Whole, Landmarks):
    """ShadowKV's."""


def by_blocks(kind: type[Whole], block_tokens: int, decoder: Decoder, text: Told) -> Selects:
    spec = IndexSpec(kind="whole", heads=decoder.heads, rank=0, block_tokens=block_tokens, scores="best_head")
    index = kind(
        spec,
        layers=decoder.layers,
        kv_heads=decoder.heads,
        head_dim=decoder.head_dim,
        sequences=1,
        room_tokens=len(text.ids),
    )
    whole = index.room_tokens
    for layer, keys in enumerate(text.recording.keys):
        index.append(layer, torch.from_numpy(keys[None, :, :whole]))

    def selects(layer: int, step: int, queries: torch.Tensor, k: int) -> torch.Tensor:
        index.before = text.steps[step]
        scores = index.scores(layer, queries[None, :, None], decoder.heads)[0]
        return in_blocks(scores, block_tokens, index.before, k)

    return selects


def by_clusters(model: PreTrainedModel, text: Told) -> Selects:
    kept = Tended("clusterkv", {"group_tokens": 16}, text, model)
    heads, at = text.mass.shape[1], -1

    def selects(layer: int, step: int, queries: torch.Tensor, k: int) -> torch.Tensor:
        nonlocal at
        if step != at:
            at = step
            kept.go_to(text.steps[step])
        rows = slice(layer * heads, (layer + 1) * heads)
        by_kv_head = queries.unflatten(0, (heads, -1)).float()
        choice = chosen(kept, rows, by_kv_head, queries.shape[-1] ** -0.5)
        # What waits in memory comes first, then cluster by cluster.
        order = np.argsort(np.where(choice.size == 0, -1, choice.before), axis=1, kind="stable")
        return torch.zeros(order.shape, dtype=torch.bool).scatter(1, torch.from_numpy(order[:, :k]), True)

    return selects


@torch.no_grad()
def head_scores(head: RetrievalHead, text: Told, steps: Sequence[int]) -> list[torch.Tensor]:
    """By step, float[KV heads, tokens before it]: the share of the head's attention."""
    queries, keys = head.projected(head.inputs(text.ids[None], len(text.ids)), text.rotary)
    found = []
    for position in steps:
        by_kv_head = queries[0, :, position].unflatten(0, (head.kv_heads, -1))
        scores = (by_kv_head @ keys[0, :, :position].mT).flatten(0, 1)[None]
        found.append(agreed(scores, head.kv_heads, "best_head", head.head_dim**-0.5, torch.softmax, torch.amax)[0])
    return found


def ways(model: PreTrainedModel, heads: dict[str, RetrievalHead], text: Told) -> dict[str, Selects]:
    decoder = Decoder(model)

    def one_for_all(scores: Sequence[torch.Tensor]) -> Selects:
        return lambda layer, step, queries, k: top(scores[step], k)

    def true(layer: int, step: int, queries: torch.Tensor, k: int) -> torch.Tensor:
        return top(text.mass[layer, :, step, : text.steps[step]], k)

    means = [text.mass[:, :, step, :position].mean(0) for step, position in enumerate(text.steps)]
    newest = [torch.arange(position).expand(decoder.heads, -1).float() for position in text.steps]
    return {name: one_for_all(head_scores(head, text, text.steps)) for name, head in heads.items()} | {
        "quest": by_blocks(Bounds, 16, decoder, text),
        "shadowkv": by_blocks(Means, 8, decoder, text),
        "clusterkv": by_clusters(model, text),
        "best per layer": true,
        "best for all": one_for_all(means),
        "window": one_for_all(newest),
    }


@torch.no_grad()
def figures(decoder: Decoder, text: Told, selects: Selects, step: int, k: int) -> dict[str, float]:
    position = text.steps[step]
    hits, mass = [], []

    def measured(layer: int, queries: torch.Tensor) -> torch.Tensor:
        selected = selects(layer, step, queries, k)
        assert int(selected.sum(1).max()) <= k
        true, own = text.mass[layer, :, step, :position], text.mass[layer, :, step, position]
        hits.append(float(selected.gather(1, true.topk(k, -1).indices).float().mean()))
        mass.append(float((((true * selected).sum(1) + own) / (true.sum(1) + own)).mean()))
        return selected

    own = next_token(decoder, text, step, measured)
    figures = {"said": float(own.argmax()), **apart(own, text.logits[step].log_softmax(-1))}
    return figures | {"hits": float(np.mean(hits)), "mass": float(np.mean(mass))}


def overlap(head: RetrievalHead, text: Told, first: int, steps: int, k: int) -> float:
    """Mean share of what is chosen that was chosen in the step before, by the same KV head."""
    chosen_ids = [top(scores, k) for scores in head_scores(head, text, range(first, first + steps))]
    pairs = zip(chosen_ids[1:], chosen_ids, strict=False)
    return float(np.mean([float((now[:, :-1] & before).sum() / now.sum()) for now, before in pairs]))


def measure(asked: Namespace, model: PreTrainedModel, prompts: Prompts) -> dict[str, Any]:
    decoder, heads = Decoder(model), {"retrieval-head": load_head(model)}
    for one in asked.head:
        name, _, model.config.name_or_path = one.partition("=")
        heads[name] = load_head(model)
    given: list[tuple[list[int], list[int], bool]] = []
    for n in range(asked.texts):
        ids = sum(prompts.tokens(n, asked.context, asked.steps * _EVERY + 1, APART), ())
        given.append((list(ids), [asked.context + _EVERY * step for step in range(asked.steps)], False))
    for task in needles(prompts, asked.context, asked.needles):
        # Steps whose next token belongs to an answer.
        at = [asked.context + one - 1 for begin, end in task.answers for one in range(begin, end)]
        given.append((task.context + task.said, at, True))
    found: dict[int, dict[str, list[dict[str, float]]]] = {k: {} for k in asked.budgets}
    overlaps: dict[int, list[float]] = {k: [] for k in asked.budgets}
    for n, (ids, steps, answers) in enumerate(given):
        text = told(model, ids, asked.context, steps)
        for k in [] if answers else asked.budgets:
            most = min(64, len(ids) - asked.context)
            overlaps[k].append(overlap(heads["retrieval-head"], text, asked.context, most, k))
        for name, selects in ways(model, heads, text).items():
            began_s = perf_counter()
            for step, position in enumerate(steps):
                for k in asked.budgets:
                    row = figures(decoder, text, selects, step, k)
                    said = row.pop("said")
                    row = {"needles": float(said == ids[position + 1])} if answers else row
                    found[k].setdefault(name, []).append(row)
            print(f"text {n}, {name}: {perf_counter() - began_s:.0f} s", file=sys.stderr, flush=True)
    heading(COLUMNS)
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for k, by_name in found.items():
        for name, of in by_name.items():
            rows.setdefault(name, {})[str(k)] = row = means(of, COLUMNS)
            show(f"{k} tokens, {name}", row, COLUMNS)
    shared = {str(k): float(np.mean(of)) for k, of in overlaps.items()}
    print("shared with the step before:", ", ".join(f"{k}: {share:.3f}" for k, share in shared.items()))
    return {"ways": rows, "overlap": shared}

"""How well clusters find what attention wants as decoding goes on.

The bundled model reads real texts; the first tokens of each are the prompt, the rest is decoded. Full attention over
each text is known. Clusters of its keys are kept by the very upkeeps and tables that runs decode with, token by token,
each way of keeping them by itself:

adaptive    DynaKV's Algorithm 1
static      new keys join the nearest of the prompt's clusters (PQCache)
local       every window of new tokens is clustered by itself (ClusterKV)
global      all keys are clustered again every 128 tokens, into clusters of the prompt's mean size
none        no clusters, every key is scored by itself: what selecting costs at best

At some steps the model decodes once with attention to what is selected alone, the KV of all tokens before being that
of full attention. Columns, by decoded tokens, in the mean over texts, layers, KV heads and steps:

hits        of the k tokens with most true attention mass in a KV head, the share among k tokens that are read, where of
            the last cluster that is read the part counts that they have room for; k is a share of all tokens. Tokens
            that wait in memory, or are too new for a cluster, are there without being read
older       hits among those of them that are older than a window, which every way has to read
attended    hits, where tokens in memory count among the k: k tokens are attended in all
mass        share of a KV head's true attention mass on what is attended, k tokens being read as for hits
agree, KL   next tokens alike, and divergence of next-token distributions in nats, between full attention and one that
            sees what is selected, whole clusters being read
read        tokens read in a KV head of a layer, over k, whole clusters being read
clusters    in a row, a KV head of a layer
squared     mean squared distance of its keys to their cluster's mean
memory      bytes that a row takes: of its means, in single precision, and of the tokens that its upkeep reserves room
            for, a window or a buffer, in bfloat16

With --sweep, each way with as many clusters as its parameter makes of it: what the same memory and the same reads give.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from full_attention import APART
from transformers import PreTrainedModel

from kvferry.backends.live.quality.full_attention import Told, apart, next_token, told
from kvferry.model.decoder import Decoder
from kvferry.model.models import spec_of
from kvferry.model.prompts import Prompts
from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.policies.decode.head_choice import agreed
from kvferry.policies.decode.kept_clusters import clusters_of
from kvferry.policies.decode.splits import Clustered
from kvferry.traces.clustered_keys import ClusteredKeys
from kvferry.traces.drawn_clusters import DrawnClusters

# Bundled models are trained in bfloat16, and their KV is in it when they run; here they compute in single precision.
_KV_VALUE_BYTES = 2
_GLOBAL = {"name": "global-clusters", "every_tokens": 128}
# ClusterKV's, beyond which no way has a token for nothing.
_WINDOW_TOKENS = 128


class Kept(Protocol):
    """Clusters of all keys so far, rows layer by layer, KV head by KV head: ``labels`` int[rows, tokens] (-1: in none),
    ``in_memory`` bool, like them, and ``means`` [rows, clusters, width]. ``labels`` None: there are no clusters."""

    labels: np.ndarray | None
    in_memory: np.ndarray
    means: np.ndarray
    # Tokens of a row that there is room for in memory, besides clusters.
    reserved: int

    def go_to(self, tokens: int) -> None: ...


class Tended:
    """As a system of the table keeps them."""

    def __init__(self, system: str, policies: Mapping[str, Any], text: Told, model: PreTrainedModel) -> None:
        roles = DECODE_SYSTEMS[system].with_policies(policies).roles
        lengths = {"context": text.context, "output": len(text.ids) - text.context}
        plan = plan_of(roles, spec_of(model), sequences=1, **lengths, budget_bytes=1e12)
        shape = {"layers": plan.model.layers, "sequences": 1, "heads": plan.choice.heads}
        self._keys = ClusteredKeys(text.recording, **shape, **lengths, most=plan.layout.blocks, seed=0)
        self._kept = clusters_of(roles.upkeep.start(text.context, plan.choice.group_tokens, plan.layout.start()))
        clusters = DrawnClusters(self._keys)
        for layer in range(plan.model.layers):
            made = clusters.prompts(layer, plan.choice.blocks)
            self._kept.filled(layer, Clustered(made.tokens, made.variances))
        self._wanted, self._at = roles.selector.wanted_tokens, text.context
        self.reserved = getattr(roles.upkeep, "window_tokens", getattr(roles.upkeep, "buffer_tokens", 0))

    def go_to(self, tokens: int) -> None:
        self._kept.skip(tokens - self._at, self._at, self._keys, self._wanted)
        self._at = tokens

    @property
    def labels(self) -> np.ndarray:
        return self._keys.members.labels[:, : self._at]

    @property
    def in_memory(self) -> np.ndarray:
        return self._keys.members.waits[:, : self._at] | (self.labels < 0)

    @property
    def means(self) -> np.ndarray:
        return self._keys.table.means


class Apart:
    """No clusters."""

    labels = None
    reserved = 0

    def __init__(self, text: Told) -> None:
        vectors, _ = text.recording.drawn(len(text.ids), len(text.recording.keys), 1, text.mass.shape[1], 0)
        self._vectors = vectors
        self.go_to(text.context)

    def go_to(self, tokens: int) -> None:
        self.means = self._vectors[:, :tokens]
        self.in_memory = np.zeros(self.means.shape[:2], bool)


@dataclass(frozen=True)
class Choice:
    """Of some rows: what order tokens would be read in. ``before`` int[rows, tokens]: tokens of better clusters that
    are read first, and ``size``: the ones that are read along with a token; 0 for what is in memory."""

    before: np.ndarray
    size: np.ndarray

    def share(self, wanted: np.ndarray | float) -> np.ndarray:
        """float[rows, tokens]: the part of each token's cluster that `wanted` read tokens have room for."""
        return np.clip((wanted - self.before) / np.maximum(self.size, 1), self.size == 0, 1)

    def whole(self, wanted: float) -> np.ndarray:
        """bool: clusters are read as a whole until they hold this many."""
        return (self.before < wanted) | (self.size == 0)


def chosen(kept: Kept, rows: slice, queries: torch.Tensor, scale: float) -> Choice:
    """Of these rows, by queries [KV heads, query heads of each, head_dim] of one token."""
    means = torch.from_numpy(np.ascontiguousarray(kept.means[rows])).float()
    products = queries @ means.mT
    heads = len(means)
    if kept.labels is None:
        scores = agreed(products.flatten(0, 1)[None], heads, "best_head", scale, torch.softmax, torch.amax)[0].numpy()
        order = np.argsort(-scores, axis=1, kind="stable")
        before = np.empty_like(order)
        np.put_along_axis(before, order, np.arange(order.shape[1])[None], 1)
        return Choice(before, np.ones_like(before))
    labels, late = kept.labels[rows], kept.in_memory[rows]
    clusters = means.shape[1]
    at = np.where(labels < 0, clusters, labels) + (np.arange(heads) * (clusters + 1))[:, None]
    n = heads * (clusters + 1)
    there = np.bincount(at.ravel(), minlength=n).reshape(heads, -1)[:, :clusters] > 0
    sizes = np.bincount(at.ravel(), (~late).ravel(), n).reshape(heads, -1)[:, :clusters].astype(int)
    masked = products.masked_fill(~torch.from_numpy(there)[:, None], -torch.inf)
    scores = agreed(masked.flatten(0, 1)[None], heads, "best_head", scale, torch.softmax, torch.amax)[0].numpy()
    order = np.argsort(-np.where(there, scores, -np.inf), axis=1, kind="stable")
    in_order = np.take_along_axis(sizes, order, 1)
    before = np.empty_like(sizes)
    np.put_along_axis(before, order, np.cumsum(in_order, axis=1) - in_order, 1)
    of_token = np.where(labels < 0, 0, labels)
    read = np.where(late, 0, np.take_along_axis(sizes, of_token, 1))
    return Choice(np.take_along_axis(before, of_token, 1), read)


class Measured:
    """A way of keeping the clusters of a text, step by step."""

    def __init__(self, model: PreTrainedModel, text: Told, share: float) -> None:
        self._decoder, self._text, self._share = Decoder(model), text, share
        self._entry_bytes = 2 * self._decoder.head_dim * _KV_VALUE_BYTES
        self._scale = self._decoder.head_dim**-0.5

    def at(self, kept: Kept, step: int) -> dict[str, float]:
        """Figures of one step, whose keys have been taken in up to it."""
        text, position = self._text, self._text.steps[step]
        wanted = self._share * position
        heads = self._decoder.heads
        figures: dict[str, list[float]] = {"hits": [], "older": [], "attended": [], "mass": [], "read": []}
        for layer in range(self._decoder.layers):
            queries = torch.from_numpy(text.recording.queries[layer, :, :, position])
            choice = chosen(kept, slice(layer * heads, (layer + 1) * heads), queries, self._scale)
            mass = text.mass[layer, :, step, :position]
            best = mass.topk(round(wanted), dim=-1).indices.numpy()
            here = (choice.size == 0).sum(1, keepdims=True)
            for key, room in (("hits", wanted), ("attended", np.maximum(wanted - here, 0))):
                figures[key].append(float(np.take_along_axis(choice.share(room), best, 1).mean()))
            old = best < position - _WINDOW_TOKENS
            shares = np.take_along_axis(choice.share(wanted), best, 1)
            figures["older"].append(float((shares * old).sum() / max(old.sum(), 1)))
            own = float(text.mass[layer, :, step, position].sum())
            there = float((mass.numpy() * choice.share(wanted)).sum())
            figures["mass"].append((there + own) / (float(mass.sum()) + own))
            figures["read"].append(float((choice.whole(wanted) & (choice.size > 0)).sum(1).mean() / wanted))

        def whole(layer: int, queries: torch.Tensor) -> torch.Tensor:
            rows = slice(layer * heads, (layer + 1) * heads)
            by_kv_head = queries.unflatten(0, (heads, -1)).float()
            return torch.from_numpy(chosen(kept, rows, by_kv_head, self._scale).whole(wanted))

        own = next_token(self._decoder, text, step, whole)
        return {
            **{key: float(np.mean(of)) for key, of in figures.items()},
            **apart(own, text.logits[step].log_softmax(-1)),
            **self._sizes(kept, position),
        }

    def _sizes(self, kept: Kept, position: int) -> dict[str, float]:
        if kept.labels is None:
            return {"memory": float(kept.means.shape[1] * kept.means.shape[2] * 4)}
        vectors = self._text.recording.keys.reshape(len(kept.labels), -1, self._text.recording.width)[:, :position]
        rows, inside = np.arange(len(kept.labels))[:, None], kept.labels >= 0
        apart = ((vectors - kept.means[rows, np.maximum(kept.labels, 0)]) ** 2).sum(-1)
        counts = [len(np.unique(row[row >= 0])) for row in kept.labels]
        clusters = float(np.mean(counts))
        return {
            "clusters": clusters,
            "squared": float((apart * inside).sum() / inside.sum()),
            "memory": clusters * vectors.shape[2] * 4 + kept.reserved * self._entry_bytes,
        }


Make = Callable[[Told, PreTrainedModel], Kept]


def ways(block_tokens: int, share: float, threshold: float | None) -> dict[str, Make]:
    """By name, what keeps clusters of a text."""
    own = {} if threshold is None else {"threshold": threshold}
    return {
        "adaptive": _system("dynakv", share, block_tokens, **own),
        "static": _system("pqcache", share, block_tokens),
        "local": _system("clusterkv", share, block_tokens),
        "global": _system("pqcache", share, block_tokens, upkeep=_GLOBAL),
        "none": lambda text, model: Apart(text),
    }


def swept(share: float) -> dict[str, Make]:
    """The same, with parameters that make more or fewer clusters."""
    thresholds, blocks, clusters = (0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5), (2, 4, 8, 16, 32), (2, 4, 8, 12, 16)
    return {
        **{f"adaptive, {one}": _system("dynakv", share, 16, threshold=one) for one in thresholds},
        **{f"static, {one}": _system("pqcache", share, one) for one in blocks},
        **{f"local, {one}": _system("clusterkv", share, 16, window_clusters=one) for one in clusters},
        **{f"global, {one}": _system("pqcache", share, one, upkeep=_GLOBAL) for one in (32,)},
    }


def _system(name: str, share: float, block_tokens: int, **policies: Any) -> Make:
    # Where clusters lie makes no difference here; there is room for all that any way makes.
    layout = {"name": "cluster-pools", "group_tokens": block_tokens, "room": 16}
    return lambda text, model: Tended(name, {"selected_share": share, "layout": layout, **policies}, text, model)


def measure(asked: Namespace, model: PreTrainedModel, prompts: Prompts) -> dict[str, Any]:
    steps = range(asked.context + asked.every, asked.context + asked.decoded + 1, asked.every)
    # By way, text and step.
    found: dict[str, list[list[dict[str, float]]]] = {}
    for n in range(asked.texts):
        began_s = perf_counter()
        ids = sum(prompts.tokens(n, asked.context, asked.decoded + 1, APART), ())
        text = told(model, ids, asked.context, steps)
        print(f"text {n}: full attention in {perf_counter() - began_s:.0f} s", file=sys.stderr)
        made = swept(asked.share) if asked.sweep else ways(asked.block, asked.share, asked.threshold)
        for name, make in made.items():
            if asked.ways and name.partition(",")[0] not in asked.ways:
                continue
            began_s = perf_counter()
            kept, measured = make(text, model), Measured(model, text, asked.share)
            series = []
            for step, position in enumerate(steps):
                kept.go_to(position)
                series.append(measured.at(kept, step))
            found.setdefault(name, []).append(series)
            last = series[len(series) // 2 :]
            shown = {key: round(float(np.mean([one[key] for one in last])), 3) for key in last[0]}
            print(f"text {n}, {name}: {perf_counter() - began_s:.0f} s, second half {shown}", file=sys.stderr)
    means = {
        name: {key: np.mean([[one[key] for one in text] for text in of], axis=0).round(5).tolist() for key in of[0][0]}
        for name, of in found.items()
    }
    by_text = {name: [float(np.mean([one["hits"] for one in text])) for text in of] for name, of in found.items()}
    return {"decoded": [position - asked.context for position in steps], "ways": means, "hits_by_text": by_text}

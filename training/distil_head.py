"""Distil a retrieval head from a bundled model: a one-layer draft model whose embedding and QK projection are kept.

    python training/distil_head.py byte-large --output model/bundled/byte-large --minutes 12

The draft model reads the same tokens as the model and learns its distribution of the next one (Kullback-Leibler
divergence, SpeContext Eq. 2). With --attention its attention also learns that of the model: the mean over the model's
layers, head by head, at drawn places. Then everything but the embedding and the QK projection is thrown away
(SpeContext 4.3). Sequences have at most 2,048 tokens, half of them with positions that skip ahead; the rotary
embedding is the model's, YaRN included. The learning rate follows the minutes of processor time spent.
"""

import argparse
import json
import sysconfig
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from corpus import corpus
from torch import nn
from train import MIXED, Batches

from kvferry.model.decoder import Decoder, Rotary
from kvferry.model.models import load_model
from kvferry.model.retrieval_head import RetrievalHead

LENGTHS = {512: 0.25, 1024: 0.35, 2048: 0.4}
PLACES = 96  # queries per sequence whose attention is learnt
REUSES, KEPT = 4, 150
HELD_OUT_BYTES, HELD_OUT_WINDOWS, TOP = 2048, 8, 64


class Draft(nn.Module):
    """The draft model: the head, and what is thrown away of it."""

    def __init__(self, head: RetrievalHead, hidden: int, ffn: int) -> None:
        super().__init__()
        self.head = head
        inputs = len(head.norm)
        self.v_proj = nn.Linear(inputs, head.kv_heads * head.head_dim, bias=False)
        self.o_proj = nn.Linear(head.query_heads * head.head_dim, hidden, bias=False)
        self.skip = nn.Linear(inputs, hidden, bias=False)
        self.ffn_norm, self.last_norm = nn.RMSNorm(hidden, 1e-6), nn.RMSNorm(hidden, 1e-6)
        self.gate, self.up = nn.Linear(hidden, ffn, bias=False), nn.Linear(hidden, ffn, bias=False)
        self.down = nn.Linear(ffn, hidden, bias=False)
        self.lm_head = nn.Linear(hidden, len(head.embedding), bias=False)
        self.lm_head.weight.data.copy_(head.embedding)

    def forward(self, ids: torch.Tensor, rotary: Rotary) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits [sequences, tokens, vocabulary], queries and keys."""
        inputs = self.head.inputs(ids, ids.shape[1])
        queries, keys = self.head.projected(inputs, rotary)
        normed = inputs * torch.rsqrt(inputs.pow(2).mean(-1, keepdim=True) + 1e-6) * self.head.norm
        values = self.v_proj(normed).unflatten(-1, (-1, self.head.head_dim)).transpose(1, 2)
        groups = self.head.query_heads // self.head.kv_heads
        attended = F.scaled_dot_product_attention(
            queries.to(values.dtype),
            keys.to(values.dtype).repeat_interleave(groups, 1),
            values.repeat_interleave(groups, 1),
            is_causal=True,
        )
        x = self.skip(normed) + self.o_proj(attended.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return self.lm_head(self.last_norm(x)), queries, keys


class Taught(NamedTuple):
    """What the model says of a batch: log-probabilities [sequences, tokens, vocabulary] of the next token, and per KV
    head the attention [layers, sequences, KV heads, places, tokens] of the queries at `places` [sequences, places]."""

    log_shares: torch.Tensor
    attention: torch.Tensor


@torch.no_grad()
def taught(decoder: Decoder, ids: torch.Tensor, rotary: Rotary, places: torch.Tensor) -> Taught:
    hidden, by_layer = decoder.embed(ids), []
    for layer in range(decoder.layers):
        keys, values = decoder.keys_values(layer, hidden, rotary)
        queries = decoder.queries(layer, hidden, rotary)
        by_layer.append(attention_at(queries, keys, places).mean(2))
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        hidden = decoder.above(layer, hidden, attended)
    return Taught(decoder.logits(hidden).float().log_softmax(-1), torch.stack(by_layer))


def attention_at(queries: torch.Tensor, keys: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """float[sequences, KV heads, query heads of each, places, tokens]: attention of the queries at `places`."""
    at = places[:, None, :, None].expand(-1, queries.shape[1], -1, queries.shape[-1])
    few = queries.gather(2, at).unflatten(1, (keys.shape[1], -1)).float()
    scores = few @ keys[:, :, None].float().mT * queries.shape[-1] ** -0.5
    later = torch.arange(keys.shape[2]) > places[:, None, None, :, None]
    return scores.masked_fill(later, -torch.inf).softmax(-1)


class Lesson(NamedTuple):
    """A batch and what the model says of it, in half the numbers; attention is the mean over layers."""

    ids: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor
    log_shares: torch.Tensor
    attention: torch.Tensor


class Lessons:
    """Lessons that are drawn again every REUSES-th time, otherwise one of the last KEPT again: asking the model costs
    several times what learning from its answer does."""

    def __init__(self, decoder: Decoder, text: np.ndarray, seed: int) -> None:
        self._decoder, self._batches = decoder, Batches(text, seed)
        self._random = np.random.default_rng(seed)
        self._kept: list[Lesson] = []
        self._given = 0

    def next(self) -> Lesson:
        self._given += 1
        if self._given % REUSES == 1:
            self._kept = [*self._kept[-KEPT + 1 :], self._new()]
            return self._kept[-1]
        return self._kept[int(self._random.integers(len(self._kept)))]

    def _new(self) -> Lesson:
        length = int(self._random.choice(list(LENGTHS), p=list(LENGTHS.values())))
        ids, _, weights, positions = self._batches.draw(length, MIXED)
        # Half of the places where something is to be known, the others anywhere.
        likely = weights + weights.mean(1, keepdim=True) + 1e-6
        places = likely.multinomial(PLACES).sort(-1).values
        halves = tuple(side.to(self._decoder.dtype) for side in rotations(self._decoder, positions))
        found = taught(self._decoder, ids, (halves[0], halves[1]), places)
        return Lesson(ids, positions, places, found.log_shares.bfloat16(), found.attention.mean(0).bfloat16())


def rotations(decoder: Decoder, positions: torch.Tensor) -> Rotary:
    cos, sin = decoder.model.model.rotary_emb(torch.empty(0), position_ids=positions)
    return cos[:, None], sin[:, None]


def losses(draft: Draft, decoder: Decoder, lesson: Lesson) -> tuple[torch.Tensor, torch.Tensor]:
    """The divergence of the next token's distribution and of the attention, both in nats."""
    with torch.autocast("cpu", torch.bfloat16):
        logits, queries, keys = draft(lesson.ids, rotations(decoder, lesson.positions))
    own, wanted = logits.float().log_softmax(-1), lesson.log_shares.float()
    divergence = (wanted.exp() * (wanted - own)).sum(-1).mean()
    target = lesson.attention.float()
    seen = attention_at(queries.float(), keys.float(), lesson.places).mean(2).clamp(min=1e-9)
    distance = (target * (target.clamp(min=1e-9).log() - seen.log())).sum(-1).mean()
    return divergence, distance


@torch.no_grad()
def measured(draft: Draft, decoder: Decoder, windows: torch.Tensor, top: int = TOP) -> dict[str, float]:
    """Over held-out text: of each layer's `top` keys the share that the head's `top` hold, the attention mass that
    they hold, and what `top` keys can hold at most, per KV head; means over layers."""
    tokens = windows.shape[1]
    whole = rotations(decoder, torch.arange(tokens)[None])
    halves = whole[0].to(decoder.dtype), whole[1].to(decoder.dtype)
    places = torch.arange(tokens // 2, tokens, 29)[None]
    found: dict[str, list[float]] = {"hits": [], "mass": [], "most": []}
    divergences, agreed = [], []
    for row in windows:
        wanted = taught(decoder, row[None], halves, places)
        logits, queries, keys = draft(row[None], whole)
        own = logits.float().log_softmax(-1)
        divergences.append(float((wanted.log_shares.exp() * (wanted.log_shares - own)).sum(-1).mean()))
        agreed.append(float((own.argmax(-1) == wanted.log_shares.argmax(-1)).float().mean()))
        chosen = attention_at(queries, keys, places).amax(2).topk(top, -1).indices
        for layer in wanted.attention:
            best = layer.topk(top, -1)
            picked = torch.zeros_like(layer).scatter_(-1, chosen, 1.0)
            found["hits"].append(float(picked.gather(-1, best.indices).mean()))
            found["mass"].append(float((picked * layer).sum(-1).mean()))
            found["most"].append(float(best.values.sum(-1).mean()))
    return {key: float(np.mean(values)) for key, values in found.items()} | {
        "divergence_nats": float(np.mean(divergences)),
        "same_next_token": float(np.mean(agreed)),
    }


def new_draft(decoder: Decoder, window: int, width: int, seed: int) -> Draft:
    torch.manual_seed(seed)
    config = decoder.model.config
    head = RetrievalHead(
        decoder.model.model.embed_tokens.weight.float(),
        window=window,
        width=width,
        query_heads=config.num_attention_heads,
        kv_heads=decoder.heads,
        head_dim=decoder.head_dim,
    )
    return Draft(head, config.hidden_size, config.intermediate_size)


def distil(given: Any) -> dict[str, Any]:
    decoder = Decoder(load_model(given.name, "bfloat16"))
    text = corpus(given.stdlib, given.documentation)
    draft = new_draft(decoder, given.window, given.width, given.seed)
    matrices = [w for w in draft.parameters() if w.ndim == 2 and w is not draft.lm_head.weight]
    others = [w for w in draft.parameters() if not any(w is m for m in matrices)]
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=given.rate, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=given.rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    lessons = Lessons(decoder, text.learnt, given.seed)
    random = np.random.default_rng(given.seed)
    windows = np.stack(
        [text.held_out[i : i + HELD_OUT_BYTES] for i in random.integers(len(text.held_out) - 2048, size=8)]
    )
    held_out = torch.from_numpy(windows.astype(np.int64))
    began_s, steps, curve = time.process_time(), 0, []
    seen: list[tuple[float, float]] = []
    while (done := (time.process_time() - began_s) / (60 * given.minutes)) < 1:
        divergence, distance = losses(draft, decoder, lessons.next())
        (divergence + given.attention * distance).backward()
        nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = given.rate * min(1.0, (steps + 1) / 50) * 0.5 * (1 + np.cos(np.pi * done))
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        steps += 1
        seen.append((float(divergence.detach()), float(distance.detach())))
        if steps % 100 == 0:
            means = np.mean(seen, axis=0).round(4).tolist()
            curve.append([steps, round(done * given.minutes, 2), *means])
            seen = []
            print(
                f"step {steps}  {done * given.minutes:.1f} min  divergence {means[0]}  attention {means[1]}", flush=True
            )
        if steps % 400 == 0:
            print(measured(draft, decoder, held_out[:2]), flush=True)
    given.output.mkdir(parents=True, exist_ok=True)
    draft.head.save(given.output)
    of_draft = sum(w.numel() for w in draft.parameters())
    return {
        "model": given.name,
        "minutes": given.minutes,
        "steps": steps,
        "attention": given.attention,
        "draft_parameters": of_draft + draft.head.embedding.numel(),
        "head_parameters": draft.head.parameter_count,
        "embedding_parameters": draft.head.embedding.numel(),
        "held_out": measured(draft, decoder, held_out),
        "curve": curve,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a bundled model, or a folder")
    parser.add_argument("--stdlib", type=Path, default=Path(sysconfig.get_path("stdlib")))
    parser.add_argument("--documentation", type=Path, default=Path("no-documentation"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--figures", type=Path)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--attention", type=float, default=1.0, help="weight of the attention's term in the loss")
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = distil(given)
    print(json.dumps({key: value for key, value in found.items() if key != "curve"}, indent=1))
    if given.figures is not None:
        given.figures.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

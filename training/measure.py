"""Measures a byte-level model: loss, copying, needles, and its attention's sparsity, entropy and overlap.

A needle is looked for in four ways with the same KV. Each lets a step that decodes (the question's tokens and the
answer's) see all of the context, or 256 of its tokens: the last ones, four blocks of 64 drawn at random, or the four
blocks with most attention mass of that step, layer and KV head. Steps always see each other. The context itself is
always prefilled with all of it: what is measured is the selection of a decoder, not a sparse prefill.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from tasks import Template, fact
from transformers import PreTrainedModel

from kvferry.codecs.quantise import per_channel
from kvferry.model.attention import active_blocks, block_mass, dense
from kvferry.model.decoder import Decoder
from kvferry.model.kv import SessionKv
from kvferry.model.recording import record_selections
from kvferry.model.session import Session
from kvferry.traces.chunks import KEY_BLOCK, QUERY_BLOCK

KEPT_BLOCKS = 4
CHUNK = 512
# float[KV heads, steps, context tokens] attention mass to bool of that shape: what may be seen.
See = Callable[[torch.Tensor, np.random.Generator], torch.Tensor]


def bits_per_byte(model: PreTrainedModel, windows: np.ndarray) -> float:
    """Mean over all bytes but the first of each row of [windows, bytes]."""
    nats = [_nats(model, row).mean() for row in windows]
    return float(np.mean(nats) / math.log(2))


def repeat_accuracy(model: PreTrainedModel, length: int, trials: int, random: np.random.Generator) -> float:
    """Share of bytes right when `length` random bytes come again; the first byte of the copy is given."""
    right = []
    for _ in range(trials):
        said = random.integers(256, size=length)
        ids = np.concatenate([said, said])
        guesses = _logits(model, ids).argmax(-1).numpy()
        right.append((guesses[length:-1] == said[1:]).mean())
    return float(np.mean(right))


def everything(mass: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    return torch.ones_like(mass, dtype=torch.bool)


def window(mass: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    seen = torch.zeros_like(mass, dtype=torch.bool)
    seen[..., -KEPT_BLOCKS * KEY_BLOCK :] = True
    return seen


def random_blocks(mass: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    heads, steps, tokens = mass.shape
    scores = torch.from_numpy(random.random((heads, steps, -(-tokens // KEY_BLOCK))))
    return _best(scores, tokens)


def top_blocks(mass: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    by_block = torch.nn.functional.pad(mass, (0, -mass.shape[-1] % KEY_BLOCK)).unflatten(-1, (-1, KEY_BLOCK)).sum(-1)
    return _best(by_block, mass.shape[-1])


WAYS: dict[str, See] = {
    "full": everything,
    "window": window,
    "random blocks": random_blocks,
    "top blocks": top_blocks,
}


def needles_found(
    model: PreTrainedModel,
    text: np.ndarray,
    length: int,
    facts: list[Template],
    random: np.random.Generator,
    ways: dict[str, See] = WAYS,
) -> dict[str, list[bool]]:
    """Per way, whether the answer of each fact was right to its last byte; the facts stand in one context.

    The context has `length` bytes, the facts strewn at random into what the window does not reach. Greedy: every byte
    of the answer must be the likeliest after the right ones before it.
    """
    stated = [(template, *fact(random)) for template in facts]
    lines = [t.fact % {b"key": key, b"value": value} for t, key, value in stated]
    begin = int(random.integers(len(text) - length))
    hay = text[begin : begin + length - sum(len(line) + 2 for line in lines)].tobytes()
    places = np.sort(random.integers(0, max(1, len(hay) - KEPT_BLOCKS * KEY_BLOCK), size=len(lines)))
    parts = np.split(np.frombuffer(hay, np.uint8), places)
    context = parts[0].tobytes()
    for line, part in zip(lines, parts[1:]):
        context += b"\n" + line + b"\n" + part.tobytes()
    session = Session(model, list(context), chunk_tokens=CHUNK, room=0)
    session.prefill()
    found: dict[str, list[bool]] = {way: [] for way in ways}
    for template, key, value in stated:
        question = b"\n" + template.question % {b"key": key}
        steps = list(question + value)
        for way, see in ways.items():
            guesses = _stepped(session, steps, see, random).argmax(-1).tolist()
            found[way].append(guesses[len(question) - 1 : -1] == list(value))
    return found


def _stepped(session: Session, steps: list[int], see: See, random: np.random.Generator) -> torch.Tensor:
    """Logits [steps, vocabulary] of tokens behind the context that see what `see` lets them."""
    decoder, kv, past = session.decoder, session.kv, session.kv.total_tokens
    with torch.no_grad():
        cos, sin = decoder.rotary(past + len(steps))
        rotary = cos[:, :, past:], sin[:, :, past:]
        hidden = decoder.embed(torch.tensor([steps]))
        causal = torch.ones(len(steps), len(steps), dtype=torch.bool).tril()
        for l in range(decoder.layers):
            own_keys, own_values = decoder.keys_values(l, hidden, rotary)
            keys = torch.cat([kv.keys[l, :, :, :past], own_keys], 2)[0].float()
            values = torch.cat([kv.values[l, :, :, :past], own_values], 2)[0].float()
            queries = decoder.queries(l, hidden, rotary)[0].unflatten(0, (kv.heads, -1)).float()
            scores = queries @ keys[:, None].transpose(-1, -2) * queries.shape[-1] ** -0.5
            scores[..., past:].masked_fill_(~causal, -torch.inf)
            seen = see(scores.softmax(-1)[..., :past].sum(1), random)
            scores[..., :past].masked_fill_(~seen[:, None], -torch.inf)
            attended = (scores.softmax(-1) @ values[:, None]).flatten(0, 1)[None]
            hidden = decoder.above(l, hidden, attended.to(decoder.dtype))
        return decoder.model.lm_head(decoder.model.model.norm(hidden))[0].float()


def _best(by_block: torch.Tensor, tokens: int) -> torch.Tensor:
    seen = torch.zeros_like(by_block, dtype=torch.bool)
    seen.scatter_(-1, by_block.topk(min(KEPT_BLOCKS, by_block.shape[-1]), -1).indices, True)
    return seen.repeat_interleave(KEY_BLOCK, -1)[..., :tokens]


class Shares:
    """Attention that records, per (layer, KV head), the share of causal blocks that holds a given part of the mass."""

    def __init__(self, masses: tuple[float, ...]) -> None:
        self.masses = masses
        self.counted: dict[float, dict[int, np.ndarray]] = {mass: {} for mass in masses}
        self.causal: dict[int, int] = {}

    def __call__(self, queries: torch.Tensor, kv: SessionKv, t: int, l: int) -> torch.Tensor:
        keys, _ = kv.attended(t, l)
        tokens, end = queries.shape[2], keys.shape[2]
        mass = block_mass(queries, keys)
        last = np.minimum(end - tokens + (np.arange(mass.shape[1]) + 1) * QUERY_BLOCK, end) - 1
        self.causal[l] = self.causal.get(l, 0) + int((last // KEY_BLOCK + 1).sum())
        for share in self.masses:
            active = active_blocks(mass, tokens, end, share).sum((1, 2))
            self.counted[share][l] = self.counted[share].get(l, 0) + active
        return dense(queries, kv, t, l)

    def shares(self, mass: float) -> np.ndarray:
        """float[layers, KV heads]."""
        return np.stack([self.counted[mass][l] / self.causal[l] for l in sorted(self.causal)])


def block_shares(model: PreTrainedModel, context: np.ndarray, masses: tuple[float, ...]) -> Shares:
    shares = Shares(masses)
    session = Session(model, context.tolist(), chunk_tokens=CHUNK, attention=shares)
    session.prefill()
    for t in range(len(session.kv.tokens)):
        session.advance(t, session.kv.layers - 1)
    return shares


def entropies(model: PreTrainedModel, context: np.ndarray) -> np.ndarray:
    """float[layers, KV heads]: bits per KV number after 5-bit quantisation, uniform per channel; over all tokens.

    A chunk trace has quarters of a deviation for the least step and ends at 4 bits; here the 32 levels always span
    all of a channel's range.
    """
    session = Session(model, context.tolist(), chunk_tokens=len(context), room=0)
    session.prefill()
    bits = np.empty((session.kv.layers, session.kv.heads))
    for l, h in np.ndindex(*bits.shape):
        numbers = torch.cat(session.kv.chunk(0, l, h), 1).float().numpy()
        counts = np.bincount(per_channel(numbers, 31)[0].ravel())
        shares = counts[counts > 0] / numbers.size
        bits[l, h] = -(shares * np.log2(shares)).sum()
    return bits


def overlap(model: PreTrainedModel, context: np.ndarray, steps: int, k: int, group_tokens: int) -> float:
    """Mean share of critical groups that the step before had too, while the last `steps` bytes are decoded."""
    ids = context.tolist()
    stream = record_selections(model, ids[:-steps], ids[-steps:], k=k, group_tokens=group_tokens)
    return float(stream.overlaps().mean())


def retrieving_heads(model: PreTrainedModel, text: np.ndarray, length: int, random: np.random.Generator) -> np.ndarray:
    """float[layers, query heads]: attention mass on a needle's value while its first byte is to be said, mean of 20."""
    decoder = Decoder(model)
    total = np.zeros((decoder.layers, model.config.num_attention_heads))
    for _ in range(20):
        key, value = fact(random)
        begin = int(random.integers(len(text) - length))
        hay = text[begin : begin + length].tobytes()
        line = b"\nThe secret code of %s is %s.\n" % (key, value)
        place = int(random.integers(0, len(hay) // 2))
        context = hay[:place] + line + hay[place:] + b"\nThe secret code of %s is " % key
        at = place + len(line) - len(value) - 2
        total += _last_mass(decoder, list(context))[:, :, at : at + len(value)].sum(-1)
    return total / 20


@torch.no_grad()
def _last_mass(decoder: Decoder, ids: list[int]) -> np.ndarray:
    """float[layers, query heads, tokens]: the attention of the last token."""
    session = Session(decoder.model, ids, chunk_tokens=len(ids), room=0)
    session.prefill()
    masses = []
    hidden = decoder.embed(torch.tensor([ids]))
    rotary = decoder.rotary(len(ids))
    for l in range(decoder.layers):
        queries = decoder.queries(l, hidden, rotary)
        keys = session.kv.keys[l, 0, :, : len(ids)].float()
        last = queries[0, :, -1:].unflatten(0, (len(keys), -1)).float()
        scores = last @ keys[:, None].transpose(-1, -2) * queries.shape[-1] ** -0.5
        masses.append(scores.softmax(-1).flatten(0, 1)[:, 0].numpy())
        hidden = decoder.above(l, hidden, dense(queries, session.kv, 0, l))
    return np.stack(masses)


@torch.no_grad()
def _logits(model: PreTrainedModel, ids: np.ndarray) -> torch.Tensor:
    return model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].float()


def _nats(model: PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    targets = torch.from_numpy(ids.astype(np.int64))[1:]
    return torch.nn.functional.cross_entropy(_logits(model, ids)[:-1], targets, reduction="none").numpy()

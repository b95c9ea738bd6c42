"""Full attention over token ids, which decoding that leaves some of them out is measured against."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from kvferry.backends.live.quality.tasks import Task
from kvferry.model.decoder import Decoder, Rotary
from kvferry.model.decoders import decoder_of
from kvferry.model.whole_prefill import PrefilledLayer, prefill_layer
from kvferry.traces.key_recording import KeyRecording


def layer_by_layer(
    decoder: Decoder, ids: Sequence[int], steps: Sequence[int]
) -> Iterator[tuple[PrefilledLayer, torch.Tensor]]:
    """Yields what each layer makes of the ids, and the attention mass float[KV heads, steps, tokens] of the tokens at
    the positions `steps`."""
    rotary, hidden = decoder.rotary(len(ids)), decoder.embed(decoder.token_ids([ids]))
    at = torch.as_tensor(steps, dtype=torch.long, device=decoder.device)
    for layer in range(decoder.layers):
        made = prefill_layer(decoder, layer, hidden, rotary)
        hidden = made.hidden
        yield made, attention_mass(decoder, made.queries[:, :, at], made.keys, at)


def attention_mass(decoder: Decoder, queries: torch.Tensor, keys: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Returns float[KV heads, steps, tokens]: what the query heads of a KV head give to each token, from queries [1,
    query heads, steps, head_dim] of the tokens `steps`."""
    by_kv_head = queries[0].unflatten(0, (decoder.heads, -1)).float() * decoder.head_dim**-0.5
    later = torch.arange(keys.shape[2], device=keys.device) > steps[:, None]
    scores = by_kv_head @ keys[0].float()[:, None].mT
    return scores.masked_fill(later, -torch.inf).softmax(-1).sum(1)


@dataclass(frozen=True)
class Exact:
    """Full attention over a Task: `logits` float[said, vocabulary] before each said token, attention `mass`
    float[layers, KV heads, steps, tokens] of the steps that decode, and what the context leaves in each layer."""

    logits: torch.Tensor
    mass: torch.Tensor
    prefilled: tuple[PrefilledLayer, ...]


@torch.no_grad()  # type: ignore[untyped-decorator]
def exact(model: PreTrainedModel, task: Task) -> Exact:
    """Returns what full attention makes of a task."""
    decoder, ids, begin = decoder_of(model), task.context + task.said, len(task.context)
    masses, left = [], []
    for made, mass in layer_by_layer(decoder, ids, range(begin, len(ids) - 1)):
        of_context = (side[:, :, :begin].clone() for side in (made.queries, made.keys, made.values))
        left.append(PrefilledLayer(made.hidden[:, :begin].clone(), *of_context))
        masses.append(mass)
    return Exact(decoder.logits(made.hidden[0, begin - 1 : -1]).float(), torch.stack(masses), tuple(left))


@dataclass(frozen=True)
class Told:
    """A text under full attention: ids int64[tokens], the first `context` of them the prompt; keys and queries of
    all layers, values [KV heads, tokens, head_dim] by layer; and of `steps`, the positions that are measured: true
    attention ``mass`` float[layers, KV heads, steps, tokens] and ``logits`` float[steps, vocabulary]."""

    context: int
    ids: torch.Tensor
    recording: KeyRecording
    values: tuple[torch.Tensor, ...]
    steps: tuple[int, ...]
    mass: torch.Tensor
    logits: torch.Tensor
    rotary: Rotary


@torch.no_grad()  # type: ignore[untyped-decorator]
def told(model: PreTrainedModel, ids: Sequence[int], context: int, steps: Sequence[int]) -> Told:
    """Returns a text as full attention sees it."""
    decoder = decoder_of(model)
    keys, queries, values, masses = [], [], [], []
    for made, mass in layer_by_layer(decoder, list(ids), steps):
        masses.append(mass)
        keys.append(made.keys[0].float().numpy())
        queries.append(made.queries[0].unflatten(0, (decoder.heads, -1)).float().numpy())
        values.append(made.values[0])
    logits = decoder.logits(made.hidden[0, torch.tensor(steps)]).float()
    recording = KeyRecording(np.stack(keys), np.stack(queries))
    whole, rotary = torch.tensor(list(ids)), decoder.rotary(len(ids))
    return Told(context, whole, recording, tuple(values), tuple(steps), torch.stack(masses), logits, rotary)


def next_token(
    decoder: Decoder, text: Told, step: int, selects: Callable[[int, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Returns log probabilities of the next token, KV of all tokens before being that of full attention: every layer
    attends to what `selects`, of the layer and its own queries [query heads, head_dim], bool[KV heads, tokens
    before]."""
    position, (cos, sin) = text.steps[step], text.rotary
    rotary = cos[:, :, position : position + 1], sin[:, :, position : position + 1]
    hidden = decoder.embed(text.ids[None, position : position + 1])
    for layer in range(decoder.layers):
        queries = decoder.queries(layer, hidden, rotary)[0, :, 0]
        new_key, new_value = decoder.keys_values(layer, hidden, rotary)
        keys = torch.cat([torch.from_numpy(text.recording.keys[layer, :, :position]), new_key[0]], 1)
        values = torch.cat([text.values[layer][:, :position], new_value[0]], 1)
        there = F.pad(selects(layer, queries), (0, 1), value=True)
        by_kv_head = queries.unflatten(0, (decoder.heads, -1))
        attended = F.scaled_dot_product_attention(by_kv_head, keys, values, attn_mask=there[:, None])
        hidden = decoder.above(layer, hidden, attended.flatten(0, 1)[None, :, None])
    return decoder.logits(hidden[0, 0]).float().log_softmax(-1)


def same_token(own: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    """Returns bool[...]: whether log probabilities [..., vocabulary] have the same most likely token."""
    return own.argmax(-1) == full.argmax(-1)


def divergence(own: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    """Returns the KL divergence [...] of the first from full attention's log probabilities [..., vocabulary], in
    nats."""
    return (full.exp() * (full - own)).sum(-1)


def apart(own: torch.Tensor, full: torch.Tensor) -> dict[str, float]:
    """Returns the share of next tokens alike, and the divergence in nats, in the mean over log probabilities [...,
    vocabulary]."""
    return {"agree": float(same_token(own, full).float().mean()), "KL": float(divergence(own, full).mean())}

"""Full attention over texts, which approximations are measured against."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from kvferry.model.decoder import Decoder, Rotary
from kvferry.model.prompts import Prompts
from kvferry.model.whole_prefill import PrefilledLayer, prefill_layer
from kvferry.traces.key_recording import KeyRecording

NEEDLES = 8
FACT, QUESTION = "The secret code of {} is {}.\n", "The secret code of {} is "
# Text further on in the library, that models were not trained with at its beginning.
APART = 1 << 19


@dataclass(frozen=True)
class Task:
    """A context, what is said after it, and which of these tokens answer needles: [begin, end) each."""

    context: list[int]
    said: list[int]
    answers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Exact:
    """Full attention over a Task: `logits` float[said, vocabulary] before each said token, attention `mass`
    float[layers, KV heads, steps, tokens] of the steps that decode, and what the context leaves in each layer."""

    logits: torch.Tensor
    mass: torch.Tensor
    prefilled: tuple[PrefilledLayer, ...]


@torch.no_grad()
def exact(model: PreTrainedModel, task: Task) -> Exact:
    decoder = Decoder(model)
    ids = torch.tensor([task.context + task.said], device=decoder.device)
    n, begin = ids.shape[1], len(task.context)
    rotary, hidden = decoder.rotary(n), decoder.embed(ids)
    steps = torch.arange(begin, n - 1)
    masses, left = [], []
    for layer in range(decoder.layers):
        hidden, queries, keys, values = prefill_layer(decoder, layer, hidden, rotary)
        of_context = (side[:, :, :begin].clone() for side in (queries, keys, values))
        left.append(PrefilledLayer(hidden[:, :begin].clone(), *of_context))
        masses.append(attention_mass(decoder, queries[:, :, steps], keys, steps))
    return Exact(decoder.logits(hidden[0, begin - 1 : -1]).float(), torch.stack(masses), tuple(left))


def attention_mass(decoder: Decoder, queries: torch.Tensor, keys: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """float[KV heads, steps, tokens]: what the query heads of a KV head give to each token, from queries [1, query
    heads, steps, head_dim] of the tokens `steps`."""
    by_kv_head = queries[0].unflatten(0, (decoder.heads, -1)).float() * decoder.head_dim**-0.5
    later = torch.arange(keys.shape[2]) > steps[:, None]
    scores = by_kv_head @ keys[0].float()[:, None].mT
    return scores.masked_fill(later, -torch.inf).softmax(-1).sum(1)


def texts(prompts: Prompts, context: int, how_many: int, said: int = 128) -> Iterator[Task]:
    for n in range(how_many):
        ids, rest = prompts.tokens(n, context, said)
        yield Task(list(ids), list(rest))


def needles(prompts: Prompts, context: int, how_many: int) -> Iterator[Task]:
    """Facts strewn evenly into text, asked for in another order."""
    for n in range(how_many):
        random = np.random.default_rng([7, n])
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        facts = [("".join(random.choice(letters, 7)), str(random.integers(10**5, 10**6))) for _ in range(NEEDLES)]
        sentences = [FACT.format(*fact).encode() for fact in facts]
        text = bytes(prompts.tokens(100 + n, context, 0)[0])
        room = context - sum(map(len, sentences))
        cuts = np.linspace(0, room, NEEDLES + 2).astype(int)
        parts = [text[a:b] for a, b in itertools.pairwise(cuts)]
        whole = b"".join(part + fact for part, fact in zip(parts, [*sentences, b""], strict=True))
        said, answers = b"\n", []
        for asked in random.permutation(NEEDLES):
            key, value = facts[asked]
            said += QUESTION.format(key).encode()
            answers.append((len(said), len(said) + len(value)))
            said += value.encode() + b".\n"
        yield Task(list(whole), list(said), tuple(answers))


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


@torch.no_grad()
def told(model: PreTrainedModel, ids: Sequence[int], context: int, steps: Sequence[int]) -> Told:
    decoder, text = Decoder(model), torch.tensor([list(ids)])
    rotary, hidden = decoder.rotary(len(ids)), decoder.embed(text)
    at = torch.tensor(steps)
    keys, queries, values, masses = [], [], [], []
    for layer in range(decoder.layers):
        of_layer = prefill_layer(decoder, layer, hidden, rotary)
        hidden = of_layer.hidden
        masses.append(attention_mass(decoder, of_layer.queries[:, :, at], of_layer.keys, at))
        keys.append(of_layer.keys[0].float().numpy())
        queries.append(of_layer.queries[0].unflatten(0, (decoder.heads, -1)).float().numpy())
        values.append(of_layer.values[0])
    logits = decoder.logits(hidden[0, at]).float()
    recording = KeyRecording(np.stack(keys), np.stack(queries))
    return Told(context, text[0], recording, tuple(values), tuple(steps), torch.stack(masses), logits, rotary)


def next_token(
    decoder: Decoder, text: Told, step: int, selects: Callable[[int, torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Log probabilities of the next token, KV of all tokens before being that of full attention: every layer attends to
    what `selects`, of the layer and its own queries [query heads, head_dim], bool[KV heads, tokens before]."""
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


def apart(own: torch.Tensor, full: torch.Tensor) -> dict[str, float]:
    """Next tokens alike, and divergence in nats, of log probabilities [..., vocabulary], in the mean."""
    agree = (own.argmax(-1) == full.argmax(-1)).float().mean()
    return {"agree": float(agree), "KL": float((full.exp() * (full - own)).sum(-1).mean())}


def means(rows: Iterable[Mapping[str, float]], columns: Sequence[str]) -> dict[str, float]:
    """The mean of each column over the rows that have it; none of a column that no row has."""
    listed = list(rows)
    values = {key: [row[key] for row in listed if key in row] for key in columns}
    return {key: float(np.mean(of)) for key, of in values.items() if of}


def show(name: str, row: Mapping[str, float], columns: Sequence[str]) -> None:
    """Prints a line of a table."""
    print(f"| {name} |", " | ".join(f"{row[key]:.3f}" if key in row else "" for key in columns), "|", flush=True)


def heading(columns: Sequence[str]) -> None:
    print("| |", " | ".join(columns), "|\n|---|", "---|" * len(columns), sep="")

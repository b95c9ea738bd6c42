"""A context on a real model turned into what the simulator and block-sparse attention feed on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from kvferry.codecs.quantise import per_channel
from kvferry.model.attention import ACTIVE_MASS, Recorder, dense
from kvferry.model.block_masks import BlockMasks
from kvferry.model.kv import SessionKv
from kvferry.model.session import Session
from kvferry.specs.errors import InputError
from kvferry.traces.chunks import CHUNK_TOKENS, KEY_BLOCK, MAX_ENTROPY_BITS, ChunkTrace
from kvferry.traces.keys import KeyStream
from kvferry.traces.selections import SelectionStream

Entropy = Callable[[torch.Tensor, torch.Tensor], float]


@dataclass(frozen=True)
class Recording:
    """The trace, the masks behind its block counts, and the session, complete and ready to answer."""

    chunks: ChunkTrace
    masks: BlockMasks
    session: Session


def entropy_bits(keys: torch.Tensor, values: torch.Tensor) -> float:
    """Bits per number of one head's chunk, keys and values [tokens, head_dim], after 5-bit quantisation.

    Uniform per channel, as the huffman codec does it, in steps of no less than a quarter of the standard deviation:
    there policies.codecs has Gaussians end at 4 bits. All symbols share one histogram, as they share one code. What
    is over 4 bits (a little, where channels are skewed) is cut off: a chunk trace has no room for it.
    """
    symbols, _, _ = per_channel(torch.cat([keys, values], dim=1).float().cpu().numpy(), 31, 0.25)
    counts = np.bincount(symbols.ravel())
    shares = counts[counts > 0] / symbols.size
    return min(float(-(shares * np.log2(shares)).sum()) + 0.0, MAX_ENTROPY_BITS)


def record(
    model: PreTrainedModel,
    context: Sequence[int],
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    room: int = 256,
    mass: float = ACTIVE_MASS,
    entropy: Entropy = entropy_bits,
) -> Recording:
    """Prefill the context densely and note, per chunk (t, l, h), its active blocks and its entropy.

    `entropy` may be a codec's own. Raises InputError unless chunks are whole key blocks.
    """
    if chunk_tokens % KEY_BLOCK:
        raise InputError(f"chunks to record must be multiples of {KEY_BLOCK} tokens, not {chunk_tokens}")
    recorder = Recorder(mass)
    session = Session(model, context, chunk_tokens=chunk_tokens, room=room, attention=recorder)
    session.prefill()
    kv = session.kv
    for t in range(len(kv.tokens)):
        session.advance(t, kv.layers - 1)  # no load does this, a trace has its blocks all the same
    masks = BlockMasks.of(recorder.active, np.array(kv.tokens))
    entropies = [
        [[entropy(*kv.chunk(t, l, h)) for h in range(kv.heads)] for l in range(kv.layers)]
        for t in range(len(kv.tokens))
    ]
    return Recording(ChunkTrace(np.array(entropies), masks.counts, np.array(kv.tokens)), masks, session)


class Selector:
    """Dense attention that notes, for each step behind the context, the groups of the context with most mass.

    Steps are the tokens from `context_tokens` on; groups are `group_tokens` long, and a shorter last one does not
    count. A KV head's mass is that of the query heads which share it.
    """

    def __init__(self, context_tokens: int, k: int, group_tokens: int) -> None:
        self._groups, self._k, self._group_tokens = context_tokens // group_tokens, k, group_tokens
        self._context_tokens = context_tokens
        # chosen[t, l]: int32[steps, KV heads, k].
        self.chosen: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, queries: torch.Tensor, kv: SessionKv, t: int, l: int) -> torch.Tensor:
        steps = min(kv.starts[t] + kv.tokens[t] - self._context_tokens, kv.tokens[t])
        if steps > 0:
            keys, _ = kv.attended(t, l)
            by_kv_head = queries[0, :, -steps:].unflatten(0, (kv.heads, -1)).float() * queries.shape[-1] ** -0.5
            scores = by_kv_head @ keys[0, :, None].float().transpose(-1, -2)
            scores += torch.full_like(scores[0, 0], -torch.inf).triu(scores.shape[-1] - steps + 1)
            mass = scores.softmax(-1).sum(1)[..., : self._groups * self._group_tokens]
            best = mass.unflatten(-1, (self._groups, -1)).sum(-1).topk(self._k, dim=-1).indices.sort(-1).values
            self.chosen[t, l] = best.transpose(0, 1).to(torch.int32).cpu().numpy()
        return dense(queries, kv, t, l)


def record_selections(
    model: PreTrainedModel,
    context: Sequence[int],
    answer: Sequence[int],
    *,
    k: int,
    group_tokens: int = KEY_BLOCK,
    chunk_tokens: int = CHUNK_TOKENS,
) -> SelectionStream:
    """Which groups of the context each step finds critical, by true attention mass, while it says `answer`.

    The answer is given, so that a text's own continuation can be followed as well as what `generate` said. Raises
    InputError unless the context has k groups and the answer a token.
    """
    if not answer or not 1 <= k <= len(context) // group_tokens:
        raise InputError(
            f"selections need an answer and {k} groups of {group_tokens} tokens in the context, "
            f"not {len(context) // group_tokens} and {len(answer)} tokens of answer"
        )
    selector = Selector(len(context), k, group_tokens)
    session = Session(model, [*context, *answer], chunk_tokens=chunk_tokens, room=0, attention=selector)
    session.prefill()
    for t in range(len(session.kv.tokens)):
        session.advance(t, session.kv.layers - 1)
    chunks = sorted({t for t, _ in selector.chosen})
    by_layer = [np.concatenate([selector.chosen[t, l] for t in chunks]) for l in range(session.kv.layers)]
    return SelectionStream(np.stack(by_layer, axis=1), len(context) // group_tokens)


def record_keys(model: PreTrainedModel, context: Sequence[int], *, chunk_tokens: int = CHUNK_TOKENS) -> KeyStream:
    """The keys that a context leaves in the cache: of all layers and KV heads, with their rotary embedding."""
    session = Session(model, context, chunk_tokens=chunk_tokens, room=0)
    session.prefill()
    return KeyStream(session.kv.keys[:, 0, :, : len(context)].float().cpu().numpy())

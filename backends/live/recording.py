"""A context on a real model turned into what the simulator and block-sparse attention feed on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from kvferry.backends.live.attention import ACTIVE_MASS, Recorder
from kvferry.backends.live.block_masks import BlockMasks
from kvferry.backends.live.quantise import per_channel
from kvferry.backends.live.session import Session
from kvferry.specs.errors import InputError
from kvferry.traces.chunks import CHUNK_TOKENS, KEY_BLOCK, MAX_ENTROPY_BITS, ChunkTrace

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

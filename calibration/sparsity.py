"""What block-sparse attention takes in a session, by what comes before a chunk and how many of its blocks are active;
and what the rest of a layer takes. SparKV's perceptron is fitted to it (``perceptron.py``).

Attention is timed inside the session's own Advance. Every layer of a column has blocks of its own: a column measures
as many points as it has layers. Masks are drawn at random; deriving them from attention is not part of it.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch

from kvferry.calibration.masks import drawn_masks
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement, repeated
from kvferry.calibration.settings import Settings
from kvferry.calibration.task import Task
from kvferry.machine.ops import Advance, KvRef, Op, Project
from kvferry.model.attention import Attention, BlockSparse
from kvferry.model.kv import SessionKv
from kvferry.traces.chance import Source, generator
from kvferry.traces.chunks import CHUNK_TOKENS

# Layers of a column at most: more points between one session and the next.
_LAYERS = 4
# Where a chunk shorter than the others ends a context, and the shares of its blocks.
_SHORT_AFTER, _SHORT_SHARE = CHUNK_TOKENS, 0.25
# By how much the heads of a held-out layer differ: the sigma of a log-normal factor of its share.
_HEAD_SPREAD = 0.5
_MOST_CONTEXTS = 9


def shares_of(settings: Settings) -> tuple[float, ...]:
    """Shares of the causal blocks that are active; where the diagonal needs more, a point has the diagonal's share."""
    return (0.1, 0.3, 0.6, 1.0) if settings.quick else (0.02, 0.04, 0.08, 0.15, 0.25, 0.4, 0.65, 1.0)


def held_out_contexts(settings: Settings) -> tuple[int, ...]:
    """Tokens before a chunk: whole token chunks up to the longest context; some are no grid point."""
    chunks = settings.context // CHUNK_TOKENS
    picked = np.unique(np.linspace(0, chunks, min(chunks + 1, _MOST_CONTEXTS)).round().astype(int))
    return tuple((picked * CHUNK_TOKENS).tolist())


class TimedAttention:
    """An attention whose calls are timed, on the device's own clock where it has one."""

    def __init__(self, attention: Attention, on_cuda: bool) -> None:
        self._attention, self._on_cuda = attention, on_cuda
        self._calls: list[tuple[Any, Any]] = []

    def __call__(self, queries: torch.Tensor, kv: SessionKv, t: int, l: int) -> torch.Tensor:
        began = self._now()
        attended = self._attention(queries, kv, t, l)
        self._calls.append((began, self._now()))
        return attended

    def taken(self) -> list[float]:
        """Seconds of the calls since this was asked last; the device must be done with them."""
        calls, self._calls = self._calls, []
        return [began.elapsed_time(end) / 1e3 if self._on_cuda else end - began for began, end in calls]

    def _now(self) -> Any:
        if not self._on_cuda:
            return perf_counter()
        mark = torch.cuda.Event(enable_timing=True)
        mark.record(torch.cuda.current_stream())
        return mark


def tasks(rig: Rig) -> Iterator[Task]:
    """By context, so that what is held out was measured when its neighbours of the grid were."""
    settings = rig.settings
    layers, shares = min(rig.spec.layers, _LAYERS), shares_of(settings)
    for before in sorted({*settings.contexts, *held_out_contexts(settings)}):
        for n in range(0, len(shares) if before in settings.contexts else 0, layers):
            some = shares[n : n + layers]
            name = f"sparsity: {', '.join(f'{share:.0%}' for share in some)} of the blocks after {before} tokens"
            yield Task(name, lambda b=before, s=some: grid(rig, b, s))  # type: ignore[misc]
        if before in held_out_contexts(settings):
            name = f"sparsity: drawn shares of the blocks after {before} tokens, held out"
            yield Task(name, lambda b=before: held_out(rig, b))  # type: ignore[misc]
    for tokens in settings.chunk_tokens:
        if tokens != CHUNK_TOKENS:
            yield Task(f"sparsity: chunks of {tokens} tokens", lambda n=tokens: shorter(rig, n))  # type: ignore[misc]


def grid(rig: Rig, before: int, shares: Sequence[float]) -> list[Measurement]:
    """A whole token chunk, each layer with one of these shares of its blocks, all heads alike."""
    even = np.repeat(np.array(shares)[:, None], rig.spec.kv_heads, axis=1)
    return column(rig, before, CHUNK_TOKENS, even, "")


def held_out(rig: Rig, before: int) -> list[Measurement]:
    """The same with shares, drawn for each layer and head, that no grid has: what a fit is judged by."""
    rng = generator(Source.MEASURED_SHARES, 0, before)
    layers, least = min(rig.spec.layers, _LAYERS), min(shares_of(rig.settings))
    share = np.exp(rng.uniform(np.log(least), 0, (layers, 1)))
    by_head = share * np.exp(rng.normal(0, _HEAD_SPREAD, (layers, rig.spec.kv_heads)))
    return column(rig, before, CHUNK_TOKENS, np.minimum(by_head, 1.0), " held out")


def shorter(rig: Rig, tokens: int) -> list[Measurement]:
    """A chunk as contexts end with, in one layer."""
    return column(rig, _SHORT_AFTER, tokens, np.full((1, rig.spec.kv_heads), _SHORT_SHARE), " of a shorter chunk")


def column(rig: Rig, before: int, tokens: int, shares: np.ndarray, kind: str) -> list[Measurement]:
    """Attention, all of Advance, and Advance without its attention, of a chunk after `before` tokens that are there as
    if they had been streamed; `shares` of its causal blocks are active, [layers, KV heads]."""
    t, layers = before // CHUNK_TOKENS, len(shares)
    masks = drawn_masks(rig.spec, before, tokens, shares)
    blocks = [int(masks.active(t, l).sum()) for l in range(layers)]
    sparse = BlockSparse(masks)
    attention = TimedAttention(sparse, rig.on_cuda)
    ops: list[Op] = []
    for l in range(layers):
        kv = KvRef(0, t, l, None, 0.0)
        ops += [Project(tokens, kv), Advance(tokens, blocks[l], before, kv)]
    with rig.running(before + tokens, attention=attention) as running:

        def once() -> list[float]:
            request, _ = running.loaded(t)
            advance_s = running.seconds(ops, request)[1::2]
            return [*attention.taken(), *advance_s]

        once()  # is compiled, which takes longer than all repetitions
        seconds = layers * rig.settings.point_s / rig.settings.passes
        rows = np.array(repeated(once, least=2 * layers, seconds=seconds)).reshape(-1, 2, layers)
    attended, advanced = rows[:, 0], rows[:, 1]
    found = []
    for l in range(layers):
        at = {"context": float(before), "tokens": float(tokens), "density": float(shares[l].mean())}
        at["blocks"] = float(blocks[l])
        found.append(
            Measurement(what=f"sparse_attention{kind}", unit="s", values=tuple(attended[:, l].tolist()), at=at)
        )
        found.append(Measurement(what=f"sparse_advance{kind}", unit="s", values=tuple(advanced[:, l].tolist()), at=at))
    rest = tuple((advanced - attended).ravel().tolist())
    found.append(Measurement(what="dense_operators", unit="s", values=rest, at={"tokens": float(tokens)}))
    if not sparse.compiled:
        found.append(Measurement(what="attention_written_out", unit="", values=(1.0,)))
    return found

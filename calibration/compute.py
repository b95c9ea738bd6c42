"""Seconds that ops of a model session take on the idle device, by context, tokens and attended blocks."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from kvferry.calibration.measured_model import Rig, block_sparse
from kvferry.calibration.measurement import Measurement, repeated
from kvferry.calibration.task import Task
from kvferry.machine.ops import Advance, DecodeStep, KvRef, Op, Prefill, Project
from kvferry.model.attention import BlockSparse, dense
from kvferry.traces.chunks import CHUNK_TOKENS, causal_blocks

# Tokens that are decoded: their contexts lie around the grid point. As many as an answer has: the steps of answers of
# eight took up to a tenth longer than those of forty.
_ANSWERED = 32
# A session has at least some context.
LEAST_CONTEXT = 64


def tasks(rig: Rig) -> Iterator[Task]:
    yield Task("compute: peaks", lambda: peaks(rig))
    settings = rig.settings
    for density in settings.densities:
        for tokens in settings.chunk_tokens:
            for before in settings.contexts:
                name = f"compute: column of {tokens} tokens after {before}, {density:.0%} of the blocks"
                yield Task(name, lambda b=before, n=tokens, d=density: column(rig, b, n, d))  # type: ignore[misc]
    for before, tokens in settings.checks:
        for density in settings.densities:
            name = f"compute: check of {tokens} tokens after {before}, {density:.0%} of the blocks"
            yield Task(name, lambda b=before, n=tokens, d=density: check(rig, b, n, d))  # type: ignore[misc]
    contexts = [max(before, LEAST_CONTEXT) for before in settings.contexts]
    for question in settings.question_tokens:
        for before in contexts:
            name = f"compute: question of {question} tokens after {before}"
            yield Task(name, lambda b=before, q=question: questions(rig, b, q))  # type: ignore[misc]
    for before in contexts:
        yield Task(f"compute: decoding after {before}", lambda b=before: answers(rig, b))  # type: ignore[misc]


def column(rig: Rig, before: int, tokens: int, density: float) -> list[Measurement]:
    """Project and Advance of a chunk of `tokens` after `before` others, layer by layer; the last is only projected.

    All that comes before is there, as if it had been streamed.
    """
    layers = min(rig.spec.layers, rig.settings.layers)
    attention = dense if rig.settings.attention == "dense" else block_sparse(rig, before, tokens, density)
    ops: list[Op] = []
    t = before // CHUNK_TOKENS
    blocks = round(density * causal_blocks(tokens, before) * rig.spec.kv_heads)
    for l in range(layers):
        ops.append(Project(tokens, KvRef(0, t, l, None, 0.0)))
        if l < layers - 1 or layers == 1:
            ops.append(Advance(tokens, blocks, before, KvRef(0, t, l, None, 0.0)))
    with rig.running(before + tokens, attention=attention) as running:

        def once() -> list[float]:
            request, _ = running.loaded(before // CHUNK_TOKENS)
            return running.seconds(ops, request)

        if isinstance(attention, BlockSparse):
            once()  # the first call compiles, which takes longer than all repetitions
        rows = np.array(repeated(once, least=len(ops), seconds=rig.settings.point_s / rig.settings.passes)).reshape(
            -1, len(ops)
        )
    kinds = np.array([type(op).__name__ for op in ops])
    at = {"context": float(before), "density": density, "tokens": float(tokens)}
    written_out = isinstance(attention, BlockSparse) and not attention.compiled
    return [
        *([Measurement(what="mask_written_out", unit="", values=(1.0,), at=at)] if written_out else []),
        Measurement(what="project", unit="s", values=_flat(rows[:, kinds == "Project"]), at=at),
        Measurement(what="advance", unit="s", values=_flat(rows[:, kinds == "Advance"]), at=at),
    ]


def check(rig: Rig, before: int, tokens: int, density: float) -> list[Measurement]:
    """A column off the grid, which no table has."""
    return [replace(m, what=f"check {m.what}") for m in column(rig, before, tokens, density)]


def questions(rig: Rig, before: int, question: int) -> list[Measurement]:
    """Prefill of a question over a context that is complete."""
    with rig.running(before, question=question, output=2) as running:

        def once() -> list[float]:
            request, _ = running.loaded()
            return running.seconds([Prefill(question, before)], request)

        values = repeated(once, least=3, seconds=rig.settings.point_s / rig.settings.passes)
    return [Measurement(what="prefill", unit="s", values=values, at={"context": before, "tokens": question})]


def answers(rig: Rig, before: int) -> list[Measurement]:
    """Decoding, token by token, around a context of this many tokens."""
    context = before - _ANSWERED // 2 - 1
    with rig.running(context, output=1 + _ANSWERED) as running:

        def once() -> list[float]:
            request, _ = running.loaded()
            running.seconds([Prefill(1, context)], request)
            steps = [DecodeStep(1, context + 1 + n) for n in range(_ANSWERED)]
            # One after the other, as a token is known only when it is decoded.
            return [seconds for step in steps for seconds in running.seconds([step], request)]

        values = repeated(once, least=_ANSWERED, seconds=rig.settings.point_s / rig.settings.passes)
    return [Measurement(what="decode_step", unit="s", values=values, at={"context": before})]


def peaks(rig: Rig) -> list[Measurement]:
    """The device's largest rates: a large matrix product and a large copy."""
    device, dtype = rig.model.device, rig.model.dtype
    # A GPU has neither its peak with small matrices nor its memory's rate with what its cache holds.
    size, n_bytes = (8192, 2**30) if rig.on_cuda else (512, 2**23) if rig.settings.quick else (2048, 2**27)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    copied = torch.zeros(n_bytes, dtype=torch.uint8, device=device)
    into = torch.empty_like(copied)
    flop = [2 * size**3 / s for s in rig.seconds_of(lambda: left @ right, least=3)]
    moved = [2 * copied.nbytes / s for s in rig.seconds_of(lambda: into.copy_(copied), least=3)]
    return [
        Measurement(what="matrix_product", unit="flop/s", values=tuple(flop), at={"rows": float(size)}),
        Measurement(what="memory_copy", unit="byte/s", values=tuple(moved), at={"bytes": float(copied.nbytes)}),
    ]


def _flat(rows: np.ndarray) -> tuple[float, ...]:
    return tuple(rows.ravel().tolist())

"""How much of a selection a reuse buffer still holds, by its size: generated selections, looked up step by step."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.rows import BlockRows
from kvferry.specs.workload import DecodeSpec
from kvferry.traces.critical_tokens import CriticalTokens

# Layers, sequences, and the most steps; the first steps fill the buffer, and a longer output goes on like the others.
_LAYERS, _SEQUENCES, _STEPS, _FILLING = 2, 2, 160, 60


def reuse_rates(
    workload: DecodeSpec, seed: int, *, context: int, groups: int, group_tokens: int, slots: Sequence[int]
) -> np.ndarray:
    """Returns the mean share of `groups` selected at a time that a buffer of each number of slots holds already, over
    the steps of the workload's output: at first it is empty."""
    how, steps = (workload.reach, workload.persistence, workload.lasting), max(1, workload.output - 1)
    found = _held(how, seed, context, groups, group_tokens, tuple(slots), min(steps, _STEPS))
    rest = (steps - len(found)) * found[_FILLING:].mean(axis=0) if steps > len(found) else 0.0
    rates: np.ndarray = (found.sum(axis=0) + rest) / steps
    return rates


@lru_cache(maxsize=256)
def _held(
    how: tuple[int, float, float],
    seed: int,
    context: int,
    groups: int,
    group_tokens: int,
    slots: tuple[int, ...],
    steps: int,
) -> np.ndarray:
    """Returns the share of each of so many steps [steps, slots]."""
    reach, persistence, lasting = how
    stream = CriticalTokens(
        layers=_LAYERS,
        sequences=_SEQUENCES,
        context=context,
        selected=groups * group_tokens,
        group_tokens=group_tokens,
        reach=reach,
        persistence=persistence,
        lasting=lasting,
        seed=seed,
    )
    rows = _LAYERS * _SEQUENCES
    buffers = [ReuseBuffer(rows, stream.context_groups, min(n, stream.context_groups)) for n in slots]
    hits = np.zeros((steps, len(buffers)))
    for step in range(steps):
        stream.advance(step)
        wanted = BlockRows(stream.selected().reshape(rows, groups))
        hits[step] = [buffer.look_up(wanted).hits for buffer in buffers]
    return hits / (rows * groups)

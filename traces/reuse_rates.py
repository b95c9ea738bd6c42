"""How much of a selection a reuse buffer still holds, by its size: generated selections, looked up step by step."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.rows import BlockRows
from kvferry.specs.workload import DecodeSpec
from kvferry.traces.critical_tokens import CriticalTokens

# Layers, sequences, and steps; the first steps fill the buffer.
_LAYERS, _SEQUENCES, _STEPS, _FILLING = 2, 2, 160, 60


def reuse_rates(
    workload: DecodeSpec, seed: int, *, context: int, groups: int, group_tokens: int, slots: Sequence[int]
) -> np.ndarray:
    """Returns the mean share of `groups` selected at a time that a buffer of each number of slots holds already."""
    how = workload.reach, workload.persistence, workload.lasting
    return _reuse_rates(how, seed, context, groups, group_tokens, tuple(slots)).copy()


@lru_cache(maxsize=256)
def _reuse_rates(
    how: tuple[int, float, float], seed: int, context: int, groups: int, group_tokens: int, slots: tuple[int, ...]
) -> np.ndarray:
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
    hits = np.zeros(len(buffers))
    for step in range(_STEPS):
        stream.advance(step)
        wanted = BlockRows(stream.selected().reshape(rows, groups))
        found = [buffer.look_up(wanted).hits for buffer in buffers]
        if step >= _FILLING:
            hits += found
    rates: np.ndarray = hits / ((_STEPS - _FILLING) * rows * groups)
    return rates

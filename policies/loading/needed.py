"""Which units the link must bring before the processor can go on."""

import numpy as np

from kvferry.policies.loading.problem import LoadProblem


def needed_streams(problem: LoadProblem, planned: np.ndarray, absent: np.ndarray) -> np.ndarray:
    """Units to stream first, so that what is planned to be computed finds the KV that it attends to.

    ``planned`` and ``absent`` are masks [T, L, C] of the units to compute, and of those neither present nor being
    fetched. Returns flat indices of the absent units that are not planned, in every column that a planned unit of a
    later token chunk waits for: by token chunk, each column from its top down. So if the link fails, the layers below
    can still be computed, and no unit was streamed in vain.
    """
    tokens, layers, columns = planned.shape
    layer = np.arange(layers)[None, :, None]
    depths = np.where(planned, layer + 1, 0).max(axis=1)
    # How deep later token chunks are planned to be computed, and which layer attends to each layer.
    later = np.zeros((tokens, 1, columns), dtype=int)
    later[:-1, 0] = np.maximum.accumulate(depths[:0:-1])[::-1]
    attending = np.full(layers, layers)
    for l in range(layers):
        attended = problem.attended_layer(l)
        if attended is not None:
            attending[attended] = l
    streamed = absent & ~planned
    waited_for = (streamed & (attending[None, :, None] < later)).any(axis=1, keepdims=True)
    units = np.flatnonzero(streamed & waited_for)
    chunk, height, column = np.unravel_index(units, planned.shape)
    return units[np.lexsort((-height, column, chunk))]

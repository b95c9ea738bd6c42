"""The split: each column is computed as deep as is best for it alone; the link first brings what that needs.

Where token chunks differ much, the chain is slow, as it never computes a unit whose predecessors are streamed. The
split does, and nearly meets the bound if the rate is known beforehand. It depends on that rate, so a load whose rate
varies solves it again for what is left (``split_stage``).
"""

import numpy as np

from kvferry.policies.loading.bound import column_labels
from kvferry.policies.loading.plan import Plan, Stage, ordered_stage
from kvferry.policies.loading.problem import LoadProblem


def split_plan(problem: LoadProblem, bytes_per_s: float) -> Plan:
    """One stage for the whole problem."""
    nothing_done = np.zeros((problem.token_chunks, problem.columns_per_chunk), dtype=np.int64)
    absent = np.ones(problem.compute_s.shape, dtype=bool)
    return Plan((split_stage(problem, column_labels(problem), bytes_per_s, absent=absent, depths=nothing_done),))


def split_stage(
    problem: LoadProblem,
    labels: np.ndarray,
    bytes_per_s: float,
    *,
    absent: np.ndarray,
    depths: np.ndarray,
    compute_speed: float = 1.0,
) -> Stage:
    """The best division of what is left, at these speeds; labels from ``column_labels``, once per problem.

    ``absent`` [T, L, C]: neither there nor on its way. ``depths`` [T, C]: layers computed in each column.
    Left out: computing through a unit that came over the link (all_heads), so such a unit ends its column.
    """
    layers = np.arange(problem.layers).reshape(1, -1, 1)
    streamed = ~absent & (layers >= depths[:, None, :])
    computable = absent & ~np.logical_or.accumulate(streamed, axis=1)

    # Compute from the lowest label up, until both paths end together.
    order = np.flatnonzero(computable)
    order = order[np.argsort(labels.ravel()[order], kind="stable")]
    work_s = np.append(0.0, problem.start_s + np.cumsum(problem.compute_s.ravel()[order])) / compute_speed
    n_bytes = problem.stream_bytes[absent].sum() - np.append(0.0, np.cumsum(problem.stream_bytes.ravel()[order]))
    cut = int(np.argmin(np.maximum(work_s, n_bytes / bytes_per_s)))

    computed = np.zeros(problem.compute_s.shape, dtype=bool)
    computed.ravel()[order[:cut]] = True
    return ordered_stage(problem, computed, absent & ~computed, labels)

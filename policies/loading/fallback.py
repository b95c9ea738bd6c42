"""What can still be done when the link is gone for good."""

from kvferry.policies.loading.loader import Compute
from kvferry.policies.loading.progress import LoadProgress


def compute_without_link(progress: LoadProgress) -> Compute | None:
    """The next unit on the way to one that is missing, earliest token chunk first; None: no way is left.

    Under all_heads there always is one: a column is computed on from where it was left, through what the link
    had brought. Under per_head a column that was streamed anywhere ends there (Eq. 2).
    """
    problem = progress.problem
    for t in range(problem.token_chunks):
        for c in range(problem.columns_per_chunk):
            above = range(progress.depth[t][c], problem.layers)
            if all(progress.present[problem.unit(t, l, c)] for l in above):
                continue
            unit = problem.unit(t, above[0], c)
            if progress.computable(unit):
                return Compute((unit,))
    return None

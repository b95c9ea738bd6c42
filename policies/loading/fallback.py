"""How a load goes on when the link no longer brings some units."""

from collections.abc import Container

from kvferry.policies.loading.loader import Compute
from kvferry.policies.loading.progress import LoadProgress


def compute_without_link(progress: LoadProgress, lost: Container[int] | None = None) -> Compute | None:
    """The next unit on the way to one that is missing, earliest token chunk first; None: no way is left, or none yet.

    `lost` are the units that a working link does not bring; None means that the link is down for good and brings no
    unit. Under all_heads there always is a next unit: a column is computed further, through what the link had
    brought. Under per_head a column ends at its first streamed unit (Eq. 2).
    """
    problem = progress.problem
    for t in range(problem.token_chunks):
        for c in range(problem.columns_per_chunk):
            above = range(progress.depth[t][c], problem.layers)
            missing = (unit for l in above if not progress.present[unit := problem.unit(t, l, c)])
            if not any(lost is None or unit in lost for unit in missing):
                continue
            unit = problem.unit(t, above[0], c)
            if progress.computable(unit):
                return Compute((unit,))
    return None

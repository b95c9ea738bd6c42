"""Which units have become computable, found from what changed: checking all units each time is too slow."""

from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress


class Ready:
    """Finds the units that have become computable since the last call.

    A unit is returned once, when it becomes computable; check ``progress.computable`` again before using it later,
    since it may have been streamed meanwhile.
    """

    def __init__(self, problem: LoadProblem) -> None:
        self._problem = problem
        # serves[l]: the layer whose units attend to layer l of earlier token chunks, None where none does.
        attends = [problem.attended_layer(l) for l in range(problem.layers)]
        self._serves = [attends.index(l) if l in attends else None for l in range(problem.layers)]
        # As in LoadProgress, when last looked at.
        self._first_missing = [[0] * problem.columns_per_chunk for _ in range(problem.layers)]
        # How much of the progress's records has been read.
        self._handed_over = 0
        self._delivered = 0
        self._begun = False

    def news(self, progress: LoadProgress) -> list[int]:
        """Units that have become computable since the last call; the first call returns all that are."""
        if not self._begun:
            return self._all(progress)
        handed_over, delivered = len(progress.handed_over), len(progress.delivered)
        if handed_over == self._handed_over and delivered == self._delivered:
            return []
        found: dict[int, None] = {}  # in order, each once
        places = self._problem.places
        for unit in progress.handed_over[self._handed_over :]:
            t, l, c = places[unit]
            self._look_at_column(progress, t, c, found)
            self._look_at_row(progress, l, c, found)
        was, now = self._first_missing, progress.first_missing
        for unit in progress.delivered[self._delivered :]:
            _, l, c = places[unit]
            if was[l][c] != now[l][c]:
                self._look_at_row(progress, l, c, found)
        self._handed_over, self._delivered = handed_over, delivered
        return list(found)

    def _all(self, progress: LoadProgress) -> list[int]:
        self._begun = True
        self._handed_over, self._delivered = len(progress.handed_over), len(progress.delivered)
        self._first_missing = [list(row) for row in progress.first_missing]
        found: dict[int, None] = {}  # in order, each once
        for t in range(self._problem.token_chunks):
            for c in range(self._problem.columns_per_chunk):
                self._look_at_column(progress, t, c, found)
        return list(found)

    def _look_at_column(self, progress: LoadProgress, t: int, c: int, found: dict[int, None]) -> None:
        l = progress.depth[t][c]
        if l < self._problem.layers:
            unit = self._problem.unit(t, l, c)
            if progress.computable(unit):
                found[unit] = None

    def _look_at_row(self, progress: LoadProgress, l: int, c: int, found: dict[int, None]) -> None:
        """Find the token chunks that waited for KV of this layer and can go on."""
        was, now = self._first_missing[l][c], progress.first_missing[l][c]
        if now == was:
            return
        self._first_missing[l][c] = now
        serves = self._serves[l]
        if serves is not None:
            for t in range(was + 1, min(now + 1, self._problem.token_chunks)):
                if progress.depth[t][c] == serves:
                    self._look_at_column(progress, t, c, found)

"""Ferry over three paths: the processor, the link and local storage."""

from math import log

import numpy as np

from kvferry.policies.loading.computable import Computable
from kvferry.policies.loading.loader import WIDE, Compute, LoadFacts, Read, Stream
from kvferry.policies.loading.path_rates import PathRates
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.three_way import Divisions, three_way_stage

# A division is made again when the exchange rate of two paths has changed by this factor.
_REPLAN_FACTOR = 1.1
# Units that are read together, as storage is faster with several commands under way; fewer towards the end of a part.
_READ_TOGETHER = 4

COMPUTE, STREAM, READ = range(3)


class ThreeWayFerry:
    """Each path works through its part of a division that lets all end together (``three_way_stage``). It is made
    again for what is absent when a rate has changed. A path without a part left helps the one that would end last: it
    takes that path's last unit, under way or not, if it would have it sooner."""

    window = WIDE

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        self._problem = problem
        self._divisions = Divisions(problem)
        self._computable = Computable(problem)
        self._rates = PathRates(facts)
        # What each unit asks of each path; infinite where a path does not lead to it.
        self._asks = [part.ravel().tolist() for part in (problem.compute_s, problem.stream_bytes, problem.stored_bytes)]
        # Units that a path has taken and not finished, in order.
        self._taken: list[list[int]] = [[], [], []]
        self._divide(LoadProgress(problem), facts)

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        unit = self._next(COMPUTE, progress, facts)
        return None if unit is None else Compute((unit,))

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        unit = self._next(STREAM, progress, facts)
        return None if unit is None else Stream((unit,))

    def next_read(self, progress: LoadProgress, facts: LoadFacts) -> Read | None:
        unit = self._next(READ, progress, facts)
        if unit is None:
            return None
        units = [unit]
        most = min(_READ_TOGETHER, 1 + len(self._parts[READ]) // _READ_TOGETHER**2)
        while len(units) < most and (further := self._own_part(READ, progress)) is not None:
            units.append(further)
        self._taken[READ] += units[1:]
        return Read(tuple(units))

    def _next(self, path: int, progress: LoadProgress, facts: LoadFacts) -> int | None:
        self._look(progress, facts)
        unit = self._own_part(path, progress)
        if unit is None and self._never_computable(progress):
            self._divide(progress, facts)
            unit = self._own_part(path, progress)
        if unit is None:
            unit = self._from_the_last(path, progress, facts)
        if unit is not None:
            self._taken[path].append(unit)
        return unit

    # --- the division -----------------------------------------------------------------------------------------------

    def _look(self, progress: LoadProgress, facts: LoadFacts) -> None:
        """Update observed rates and computable units; divide again if an exchange rate has changed."""
        self._computable.look(progress)
        if not self._rates.look(progress, facts):
            return
        drift = [log(now / then) for now, then in zip(self._rates.seconds(), self._divided_at, strict=True)]
        if max(drift) - min(drift) > log(_REPLAN_FACTOR):
            self._divide(progress, facts)

    def _divide(self, progress: LoadProgress, facts: LoadFacts) -> None:
        problem, shape = self._problem, self._problem.compute_s.shape
        self._divided_at = self._rates.seconds()
        absent = np.zeros(shape, bool)
        absent.ravel()[progress.absent_units()] = True
        # A unit that came by another path ends its column (under all_heads a column may go on: left to the helpers).
        height = np.arange(problem.layers)[None, :, None]
        blocked = ~absent & (height >= np.array(progress.depth)[:, None, :])
        stage = three_way_stage(
            problem,
            self._divisions,
            np.array(self._divided_at),
            absent=absent,
            computable=absent & ~np.logical_or.accumulate(blocked, axis=1),
            ahead_s=np.array(self._rates.ahead_s(progress, facts)),
        )
        # Each part from its end: the next unit is the last of the list.
        self._parts = [list(part[::-1]) for part in (stage.compute, stage.stream, stage.read)]
        self._computable.follow(stage.compute, progress)

    # --- what a path takes ------------------------------------------------------------------------------------------

    def _own_part(self, path: int, progress: LoadProgress) -> int | None:
        if path == COMPUTE:
            return self._computable.first(progress)
        part = self._parts[path]
        while part:
            unit = part.pop()
            if progress.absent(unit):
                return unit
        return None

    def _never_computable(self, progress: LoadProgress) -> bool:
        """Whether the processor's part holds a unit whose column ended below it, as another path won a race there."""
        problem = self._problem
        if problem.coupling == "all_heads":
            return False
        for unit in self._parts[COMPUTE]:
            t, l, c = problem.place(unit)
            below = (problem.unit(t, lower, c) for lower in range(progress.depth[t][c], l))
            if progress.absent(unit) and any(progress.present[lower] for lower in below):
                return True
        return False

    def _from_the_last(self, path: int, progress: LoadProgress, facts: LoadFacts) -> int | None:
        """The last unit of the path that would end last, if this path would have it sooner; None if there is none."""
        ahead_s, seconds = self._rates.ahead_s(progress, facts), self._rates.seconds()
        ends_s = [ahead + self._left(other, progress) * seconds[other] for other, ahead in enumerate(ahead_s)]
        for other in sorted(range(3), key=lambda other: -ends_s[other]):
            if other == path:
                continue
            unit = self._last_of(other, path, progress)
            if unit is not None and ahead_s[path] + self._asks[path][unit] * seconds[path] < ends_s[other]:
                return unit
        return None

    def _left(self, path: int, progress: LoadProgress) -> float:
        self._parts[path] = part = [unit for unit in self._parts[path] if progress.absent(unit)]
        return sum(self._asks[path][unit] for unit in part)

    def _last_of(self, other: int, path: int, progress: LoadProgress) -> int | None:
        """The last unit of the other path that this path can take: of its part, else of what it has under way."""
        under_way = (progress.computing, progress.streaming, progress.reading)
        self._taken[other] = taken = [unit for unit in self._taken[other] if under_way[other][unit]]
        for unit in (*self._parts[other], *reversed(taken)):
            # One that is there stays under way as long as its transfer carries others.
            if progress.present[unit] or under_way[path][unit] or self._asks[path][unit] == np.inf:
                continue
            if path != COMPUTE or progress.computable(unit):
                return unit
        return None

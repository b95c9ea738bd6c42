"""The progress of a load: units present, being fetched or queued, and which can be computed now."""

import numpy as np

from kvferry.policies.loading.problem import LoadProblem


class LoadProgress:
    """The state that loaders read. Only the pipeline (and a planner that rehearses) writes it. Byte strings and lists,
    not arrays: single units are looked up thousands of times in a load."""

    def __init__(self, problem: LoadProblem) -> None:
        self.problem = problem
        # Per unit, 1 or 0: its KV is there; a transfer of it is under way; local storage reads it; the processor has
        # it in its queue.
        self.present = bytearray(problem.units)
        self.streaming = bytearray(problem.units)
        self.reading = bytearray(problem.units)
        self.computing = bytearray(problem.units)
        # depth[t][c]: layers computed or handed over in this column, hence the layer that comes next. The
        # processor works in order, so what was handed over is done before what is handed over later.
        self.depth = [[0] * problem.columns_per_chunk for _ in range(problem.token_chunks)]
        # first_missing[l][c]: the smallest t whose KV at layer l is neither there nor handed to the processor.
        self.first_missing = [[0] * problem.columns_per_chunk for _ in range(problem.layers)]
        # Units in the order in which the processor was given them, and in which link and storage had delivered them.
        self.handed_over: list[int] = []
        self.delivered: list[int] = []
        self.remaining = problem.units
        self.streamed_bytes = 0.0
        self.read_bytes = 0.0
        self.computed_s = 0.0
        # Units handed over but not finished, with their bytes and nominal seconds of compute. Only the
        # counts tell whether a path is busy: sums of floats that are added and taken away do not return to zero.
        self.units_streaming = 0
        self.units_reading = 0
        self.units_computing = 0
        self.streaming_bytes = 0.0
        self.reading_bytes = 0.0
        self.computing_s = 0.0
        self._compute_s: list[float] = problem.compute_s.ravel().tolist()
        # Copied from the problem, as every unit is looked up many times.
        self._place = problem.places
        self._attends = [problem.attended_layer(l) for l in range(problem.layers)]
        self._per_head = problem.coupling == "per_head"
        self._to_next_chunk = problem.layers * problem.columns_per_chunk

    @property
    def complete(self) -> bool:
        return self.remaining == 0

    def absent(self, unit: int) -> bool:
        """Whether the unit is neither present nor being fetched."""
        return not (self.present[unit] or self.streaming[unit] or self.computing[unit] or self.reading[unit])

    def absent_units(self) -> np.ndarray:
        """Flat indices of all units that are neither present nor being fetched, ascending."""
        states = (self.present, self.streaming, self.reading, self.computing)
        return np.flatnonzero(np.bitwise_or.reduce([np.frombuffer(state, np.uint8) for state in states]) == 0)

    def computable(self, unit: int) -> bool:
        """Whether the processor can compute it now: the layers below in its column and earlier tokens' KV are there.

        A unit that is being streamed may be computed (a race). One that is already there may be computed too
        under all_heads: a wasted stream, worthwhile for the layers above. Under per_head a streamed unit ends
        its column (Eq. 2: each chunk exactly once).
        """
        t, l, c = self._place[unit]
        if self.depth[t][c] != l or self.computing[unit] or (self._per_head and self.present[unit]):
            return False
        attended = self._attends[l]
        return attended is None or self.first_missing[attended][c] >= t

    def missing_before(self, t: int, l: int, c: int) -> int | None:
        """The first earlier token chunk whose KV keeps (t, l, c) from being computed; None: nothing does."""
        attended = self._attends[l]
        first = t if attended is None else self.first_missing[attended][c]
        return first if first < t else None

    def hand_over_compute(self, unit: int) -> None:
        t, l, c = self._place[unit]
        self.handed_over.append(unit)
        self.computing[unit] = 1
        self.units_computing += 1
        self.computing_s += self._compute_s[unit]
        self.depth[t][c] = l + 1
        if self.first_missing[l][c] == t:
            self._advance_first_missing(unit)

    def hand_over_stream(self, unit: int, n_bytes: float) -> None:
        self.streaming[unit] = 1
        self.units_streaming += 1
        self.streaming_bytes += n_bytes

    def hand_over_read(self, unit: int, n_bytes: float) -> None:
        self.reading[unit] = 1
        self.units_reading += 1
        self.reading_bytes += n_bytes

    def read(self, unit: int, n_bytes: float) -> None:
        """The unit has been read from local storage and put where attention can read it."""
        self.reading[unit] = 0
        self.units_reading -= 1
        self.reading_bytes = self.reading_bytes - n_bytes if self.units_reading else 0.0
        self.read_bytes += n_bytes
        self.delivered.append(unit)
        self._arrive(unit)

    def computed(self, unit: int) -> None:
        """The processor has emitted this unit."""
        self._left_processor(unit)
        self.computed_s += self._compute_s[unit]
        self._arrive(unit)

    def streamed(self, unit: int, n_bytes: float) -> None:
        """The unit has been delivered, decompressed and put where attention can read it."""
        self.link_left(unit, n_bytes)
        self.streamed_bytes += n_bytes
        self.delivered.append(unit)
        self._arrive(unit)

    def compute_cancelled(self, unit: int) -> None:
        """The unit was removed from the processor's queue, as all units queued after it must be."""
        t, l, c = self._place[unit]
        self._left_processor(unit)
        self.depth[t][c] = min(self.depth[t][c], l)
        if not self.present[unit]:
            self.first_missing[l][c] = min(self.first_missing[l][c], t)

    def link_left(self, unit: int, n_bytes: float) -> None:
        """The link no longer brings the unit."""
        self.streaming[unit] = 0
        self.units_streaming -= 1
        self.streaming_bytes = self.streaming_bytes - n_bytes if self.units_streaming else 0.0

    def _left_processor(self, unit: int) -> None:
        self.computing[unit] = 0
        self.units_computing -= 1
        self.computing_s = self.computing_s - self._compute_s[unit] if self.units_computing else 0.0

    def _arrive(self, unit: int) -> None:
        if self.present[unit]:
            return
        self.present[unit] = 1
        self.remaining -= 1
        t, l, c = self._place[unit]
        if self.first_missing[l][c] == t:
            self._advance_first_missing(unit)

    def _advance_first_missing(self, unit: int) -> None:
        """The first missing unit of a row was missing until now: go to the next one."""
        t, l, c = self._place[unit]
        present, computing = self.present, self.computing
        while unit < len(present) and (present[unit] or computing[unit]):
            unit += self._to_next_chunk
            t += 1
        self.first_missing[l][c] = t

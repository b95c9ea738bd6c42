"""Ferry: both paths work towards each other from the two ends of one order, which is used at every rate."""

from math import log

import numpy as np

from kvferry.policies.loading.bound import column_labels
from kvferry.policies.loading.chain import chain_order
from kvferry.policies.loading.computable import Computable
from kvferry.policies.loading.loader import WIDE, Compute, LoadFacts, Stream
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.throughput import Throughput


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


# Time constant of the observed rate: about as long as a wireless link keeps its rate.
_LINK_MEMORY_S = 0.5
_PROCESSOR_MEMORY_S = 1.0
# A plan is made again when the exchange rate between the paths has changed by this factor.
_REPLAN_FACTOR = 1.1
# Plans assume a link slower than observed by this factor: a unit needed even then is needed in any case. Where token
# chunks differ, this lowers the 95th percentile of regret by up to a quarter, at the same median (studies/regret.py).
_CAUTION = 0.85
# The slowest rate to plan with.
_LEAST_SHARE = 1e-4


class Ferry:
    """Orders units by how much computing them pays. The processor takes the first computable unit from the front, the
    link takes from the back, and they meet wherever their rates let them. A path that has nothing else left races
    the other path for the unit that it took last.

    The order is that of the bound's frontier (``column_labels``), where columns ignore each other. Its price:
    a unit near the front may wait for KV of earlier tokens that lies near the back. So the link first brings
    what units before the expected meeting point need. The expectation follows the observed rates; if it is wrong,
    some units were streamed earlier than necessary, and nothing else happens.

    With `needed_first` False the order is the chain's, whose every prefix is closed under dependencies: it needs no
    expectation, but is slow where token chunks differ strongly.
    """

    window = WIDE

    def __init__(self, needed_first: bool = True) -> None:
        self.needed_first = needed_first

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        self._problem = problem
        worth_first = np.argsort(column_labels(problem).ravel(), kind="stable")
        self._order = worth_first if self.needed_first else chain_order(problem)
        self._units: list[int] = self._order.tolist()
        self._compute_s: list[float] = problem.compute_s.ravel().tolist()
        self._bytes: list[float] = problem.stream_bytes.ravel().tolist()
        planned_per_s = facts.planned_bytes_per_s
        self._link = Throughput(planned_per_s, _LINK_MEMORY_S, _LEAST_SHARE * planned_per_s)
        self._processor = Throughput(facts.planned_speed, _PROCESSOR_MEMORY_S, _LEAST_SHARE)
        self._computable = Computable(problem, self._units)
        # What the link takes: first these, from the end of the list; then the order before `_back`.
        self._needed: list[int] = []
        self._back = problem.units
        # Units that the link and the processor have taken and not finished, in order.
        self._sent: list[int] = []
        self._computing: list[int] = []
        if self.needed_first:
            self._plan(LoadProgress(problem), facts)

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        self._look(progress, facts)
        unit = self._computable.first(progress)
        if unit is None:
            unit = self._streamed_too_late(progress, facts)
        if unit is None:
            return None
        self._computing.append(unit)
        return Compute((unit,))

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        self._look(progress, facts)
        unit = self._next_needed(progress, facts)
        if unit is None:
            unit = self._last_in_order(progress)
        if unit is None:
            unit = self._computed_too_late(progress, facts)
        if unit is None:
            return None
        self._sent.append(unit)
        return Stream((unit,))

    def _next_needed(self, progress: LoadProgress, facts: LoadFacts) -> int | None:
        while self._needed:
            unit = self._needed.pop()
            if progress.absent(unit):
                return unit
        return None

    def _last_in_order(self, progress: LoadProgress) -> int | None:
        while self._back:
            self._back -= 1
            unit = self._units[self._back]
            if progress.absent(unit):
                return unit
        return None

    # --- the guess --------------------------------------------------------------------------------------------------

    def _look(self, progress: LoadProgress, facts: LoadFacts) -> None:
        """Update the computable units and observed rates; plan again if the exchange rate changed."""
        self._computable.look(progress)
        if not self._link.due(facts.now_s):
            return  # both rates are as they were
        self._link.look(facts.now_s, progress.streamed_bytes, progress.units_streaming > 0)
        works = progress.units_computing > 0 and not facts.starting_s
        self._processor.look(facts.now_s, progress.computed_s, works)
        if self.needed_first and abs(log(self._exchange / self._planned_exchange)) > log(_REPLAN_FACTOR):
            self._plan(progress, facts)

    @property
    def _exchange(self) -> float:
        """Bytes that the link carries while the processor does one nominal second of work."""
        return self._link.per_s / self._processor.per_s

    def _plan(self, progress: LoadProgress, facts: LoadFacts) -> None:
        """Estimate where the paths will meet, and find what units before that point need from behind it."""
        self._planned_exchange = self._exchange
        planned, absent = self._expected(progress, facts)
        self._needed = needed_streams(self._problem, planned, absent)[::-1].tolist()

    def _expected(self, progress: LoadProgress, facts: LoadFacts) -> tuple[np.ndarray, np.ndarray]:
        """The units that the processor is expected to take, and those that nothing has taken yet: masks [T, L, C]."""
        shape = self._problem.compute_s.shape
        absent = np.zeros(self._problem.units, dtype=bool)
        absent[progress.absent_units()] = True
        left = self._order[absent[self._order]]
        begun_s = facts.starting_s * self._processor.per_s + progress.computing_s
        work_s = begun_s + self._problem.compute_s.ravel()[left].cumsum()
        n_bytes = self._problem.stream_bytes.ravel()[left]
        behind_bytes = progress.streaming_bytes + n_bytes.sum() - n_bytes.cumsum()
        meeting = int(np.searchsorted(self._arriving_bytes(work_s, facts) - behind_bytes, 0.0))
        planned = np.zeros(self._problem.units, dtype=bool)
        planned[left[:meeting]] = True
        return planned.reshape(shape), absent.reshape(shape)

    def _arriving_bytes(self, work_s: np.ndarray, facts: LoadFacts) -> np.ndarray:
        """What the link is expected to have brought by when the processor has done so many nominal seconds."""
        return _CAUTION * self._exchange * work_s

    # --- races ------------------------------------------------------------------------------------------------------

    def _streamed_too_late(self, progress: LoadProgress, facts: LoadFacts) -> int | None:
        """The last to arrive of those units under way on the link that would be computed sooner; None if there is
        none."""
        self._sent = [unit for unit in self._sent if progress.streaming[unit]]
        arrives_bytes = progress.streaming_bytes
        for unit in reversed(self._sent):
            if progress.computable(unit):
                streamed_s = facts.rtt_s + arrives_bytes / self._link.per_s
                computed_s = facts.starting_s + (progress.computing_s + self._compute_s[unit]) / self._processor.per_s
                return unit if computed_s < streamed_s else None
            arrives_bytes -= self._bytes[unit]
        return None

    def _computed_too_late(self, progress: LoadProgress, facts: LoadFacts) -> int | None:
        """The last unit on the processor, running or waiting, that is not on the link yet, if the link would have it
        before the processor; None if there is none."""
        self._computing = [unit for unit in self._computing if progress.computing[unit]]
        ends_s = progress.computing_s
        for unit in reversed(self._computing):
            if not (progress.streaming[unit] or progress.present[unit]):
                streamed_s = facts.rtt_s + (progress.streaming_bytes + self._bytes[unit]) / self._link.per_s
                return unit if streamed_s < facts.starting_s + ends_s / self._processor.per_s else None
            ends_s -= self._compute_s[unit]
        return None

"""The potential-aware greedy of SparKV (IV-B), in the readings that its text allows.

Chunk c streams with priority w_s(c) = 1 / t_stream(c) + the sum of 1 / t_comp over the chunks that its arrival
makes ready, and computes with w_c(c) = 1 / t_comp(c) + the like sum for computing it. The two terms can be
weighted. All readings share these scores; they differ in what a stage is:

``literal``    Stages of 5 ms (IV-B names no budget): compute while the budget lasts, stream while it lasts,
               repeat. What streams unlock counts from the next stage on. Any chunk may be streamed, so cheap
               streams end columns at low layers and the processor starves.
``top-down``   As literal, but only the topmost chunk still missing in its column may be streamed.
``one-stage``  The budget is the makespan itself, found by search. It is the reading that the paper's claims
               need: close to the MILP, faster than Strong Hybrid.
``last-first`` As one-stage, but what is streamed goes from the last token chunk to the first, each from its top layer
               down. IV-B streams in descending order of w_s. The makespan of Eq. 1 is the same; what the link has not
               brought yet are then early tokens, which the controller can compute when the link falls behind.
"""

from collections.abc import Callable

import numpy as np

from kvferry.policies.loading.chain import meeting_point
from kvferry.policies.loading.plan import Plan, Stage
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.scored_units import LEAST_S, ScoredUnits
from kvferry.specs.errors import InputError, unknown_name


def greedy_plan(
    problem: LoadProblem,
    bytes_per_s: float,
    *,
    reading: str = "one-stage",
    stage_budget_s: float = 5e-3,
    own_weight: float = 1.0,
    unlock_weight: float = 1.0,
) -> Plan:
    """The greedy's plan in one of ``READINGS``; ``stage_budget_s`` is used by readings with many stages.

    A path takes chunks until its budget is used up: the last one may exceed it. The weights are those of a
    score's first and second term. Raises ``InputError`` for an unknown reading or a budget that is not positive.
    """
    if not stage_budget_s > 0.0:
        raise InputError(f"stage_budget_s: {stage_budget_s} is not a positive time; nothing fits into such a stage")
    if reading not in READINGS:
        raise unknown_name("reading of the greedy", reading, READINGS)
    queues = _Queues(problem, bytes_per_s, own_weight, unlock_weight)
    return READINGS[reading](queues, problem, bytes_per_s, stage_budget_s)


def _literal(queues: "_Queues", problem: LoadProblem, bytes_per_s: float, stage_budget_s: float) -> Plan:
    for unit in range(problem.units):
        queues.enter_stream(unit)
    return _staged(queues, stage_budget_s, problem.start_s)


def _top_down(queues: "_Queues", problem: LoadProblem, bytes_per_s: float, stage_budget_s: float) -> Plan:
    queues.top_down = True
    for unit in np.arange(problem.units).reshape(problem.compute_s.shape)[:, -1].ravel().tolist():
        queues.enter_stream(unit)
    return _staged(queues, stage_budget_s, problem.start_s)


def _one_stage(queues: "_Queues", problem: LoadProblem, bytes_per_s: float, _: float) -> Plan:
    """The budget only ends the computing, so one pass without a budget shows the makespans of all budgets.

    Nothing that this stage's streams unlock is computed, so streams are scored by their own time alone.
    """
    order = np.array(queues.take(queues.compute, float("inf")), dtype=np.int64)
    cut = meeting_point(problem, order, bytes_per_s)
    left = np.sort(order[cut:])
    streamed = left[np.argsort(problem.stream_bytes.ravel()[left], kind="stable")]
    return Plan((Stage(tuple(order[:cut].tolist()), tuple(streamed.tolist())),))


def _last_first(queues: "_Queues", problem: LoadProblem, bytes_per_s: float, budget_s: float) -> Plan:
    (stage,) = _one_stage(queues, problem, bytes_per_s, budget_s).stages
    # Flat indices ascend by token chunk, then layer.
    return Plan((Stage(stage.compute, tuple(sorted(stage.stream, reverse=True))),))


READINGS: dict[str, Callable[["_Queues", LoadProblem, float, float], Plan]] = {
    "literal": _literal,
    "top-down": _top_down,
    "one-stage": _one_stage,
    "last-first": _last_first,
}


def _staged(queues: "_Queues", stage_budget_s: float, start_s: float) -> Plan:
    """Stages until all is loaded; those in which the processor starts compute less, or nothing."""
    stages = []
    while queues.remaining:
        starting_s = min(start_s, stage_budget_s)
        start_s -= starting_s
        computed = queues.take(queues.compute, stage_budget_s - starting_s)
        streamed = queues.take(queues.stream, stage_budget_s)
        if computed or streamed:
            stages.append(Stage(tuple(computed), tuple(streamed)))
    return Plan(tuple(stages))


class _Queues:
    """The queues Q_c and Q_s, whose scores are updated as chunks are loaded. This is fast because loading a chunk
    changes the scores of a few neighbours only."""

    def __init__(self, problem: LoadProblem, bytes_per_s: float, own_weight: float, unlock_weight: float) -> None:
        tokens, layers, columns = problem.compute_s.shape
        self.tokens, self.layers, self.columns = tokens, layers, columns
        # Steps in flat indices from (t, l, c) to (t, l + 1, c) and to (t + 1, l, c).
        self.up, self.right = columns, layers * columns
        # attends[l]: the layer whose earlier KV layer l needs; serves[l]: the layer that needs that of l.
        self.attends = [problem.attended_layer(l) for l in range(layers)]
        self.serves = [self.attends.index(l) if l in self.attends else None for l in range(layers)]
        axes = np.unravel_index(np.arange(problem.units), problem.compute_s.shape)
        self.place: list[tuple[int, int, int]] = list(zip(*(axis.tolist() for axis in axes)))

        compute_s = problem.compute_s.ravel()
        self.compute = ScoredUnits(compute_s, own_weight)
        self.stream = ScoredUnits(problem.stream_bytes.ravel() / bytes_per_s, own_weight)
        self.unlocked: list[float] = (unlock_weight / np.maximum(compute_s, LEAST_S)).tolist()

        self.top_down = False
        self.remaining = problem.units
        self.loaded = bytearray(problem.units)
        # Per column t * C + c the layers computed; per row l * C + c the smallest t not loaded.
        self.depth = [0] * (tokens * columns)
        self.first = [0] * (layers * columns)
        for t in range(tokens):
            for c in range(columns):
                self._enter_compute_if_ready(problem.unit(t, 0, c))

    def take(self, queue: ScoredUnits, budget_s: float) -> list[int]:
        """Load from the top of a queue until the budget is used up; units that become ready join at once."""
        taken = []
        for unit in queue.within(budget_s):
            self._load(unit, computed=queue is self.compute)
            taken.append(unit)
        return taken

    def enter_stream(self, unit: int) -> None:
        """Add a unit to Q_s."""
        self.stream.entry[unit] = 0.0
        self._rescore(unit)

    def _enter_compute_if_ready(self, unit: int) -> bool:
        t, l, c = self.place[unit]
        if self.depth[t * self.columns + c] != l or self.loaded[unit]:
            return False
        attended = self.attends[l]
        if attended is not None and self.first[attended * self.columns + c] < t:
            return False
        self.compute.entry[unit] = 0.0
        self._rescore(unit)
        return True

    def _load(self, unit: int, *, computed: bool) -> None:
        """Mark a unit as loaded, add newly ready units, and rescore the neighbours whose gains change."""
        t, l, c = self.place[unit]
        self.remaining -= 1
        self.loaded[unit] = 1
        self.compute.entry[unit] = self.stream.entry[unit] = None
        column = t * self.columns + c
        if computed:
            self.depth[column] = l + 1
            if l + 1 < self.layers and not self._enter_compute_if_ready(unit + self.up):
                self._rescore_first(self.attends[l + 1], c)
        elif l > 0:
            self._rescore(unit - self.up)
            if self.depth[column] == l:
                self._rescore_first(self.attends[l], c)
            if self.top_down and not self.loaded[unit - self.up]:
                self.enter_stream(unit - self.up)
        serves = self.serves[l]
        if serves is not None:
            if self.first[l * self.columns + c] == t:
                self._advance_first(unit, serves)
            else:
                self._rescore_first(l, c)

    def _advance_first(self, unit: int, serves: int) -> None:
        """A row's first missing chunk was loaded: go to the next one, and add units that waited for it."""
        t, l, c = self.place[unit]
        row = l * self.columns + c
        to_waiting = (serves - l) * self.up
        while self.loaded[unit]:
            t += 1
            unit += self.right
            self.first[row] = t
            if t == self.tokens:
                return
            if not self._enter_compute_if_ready(unit + to_waiting) and serves > 0:
                self._rescore(unit + to_waiting - self.up)
        self._rescore(unit)

    def _rescore_first(self, l: int | None, c: int) -> None:
        """Rescore the first missing chunk of a row: the only one in it whose loading makes others ready."""
        if l is not None:
            t = self.first[l * self.columns + c]
            if t < self.tokens:
                self._rescore(t * self.right + l * self.up + c)

    def _rescore(self, unit: int) -> None:
        """Update a unit's entries in the queues that hold it."""
        streams, computes = self.stream.entry[unit] is not None, self.compute.entry[unit] is not None
        if not (streams or computes):
            return
        t, l, c = self.place[unit]
        gain = self._row_gain(unit, t, l, c)
        if streams:
            self.stream.put(unit, gain)
        if computes:
            above = 0.0
            if l + 1 < self.layers and not self.loaded[unit + self.up]:
                attended = self.attends[l + 1]
                if attended is None or self.first[attended * self.columns + c] >= t:
                    above = self.unlocked[unit + self.up]
            self.compute.put(unit, gain, above)

    def _row_gain(self, unit: int, t: int, l: int, c: int) -> float:
        """The score of the units of later token chunks that become ready when this unit is loaded."""
        serves = self.serves[l]
        if serves is None or self.first[l * self.columns + c] != t:
            return 0.0
        gain = 0.0
        to_waiting = (serves - l) * self.up
        for column in range((t + 1) * self.columns + c, self.tokens * self.columns, self.columns):
            unit += self.right
            if self.depth[column] == serves and not self.loaded[unit + to_waiting]:
                gain += self.unlocked[unit + to_waiting]
            if not self.loaded[unit]:
                break
        return gain

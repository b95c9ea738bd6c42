"""A plan: which units the processor computes, the link streams and local storage reads, in what order, by stage."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvferry.policies.loading.problem import LoadProblem

TokenDependency = Literal["previous", "all"]


@dataclass(frozen=True, slots=True)
class Stage:
    """The units of each path in one stage; each path works through its own in order."""

    compute: tuple[int, ...] = ()
    stream: tuple[int, ...] = ()
    read: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages that follow one another, units as flat indices (``LoadProblem.unit``)."""

    stages: tuple[Stage, ...]

    @property
    def compute(self) -> tuple[int, ...]:
        """All computed units in order."""
        return tuple(unit for stage in self.stages for unit in stage.compute)

    @property
    def stream(self) -> tuple[int, ...]:
        """All streamed units in order."""
        return tuple(unit for stage in self.stages for unit in stage.stream)

    @property
    def read(self) -> tuple[int, ...]:
        """All units read from local storage, in order."""
        return tuple(unit for stage in self.stages for unit in stage.read)

    def depths(self, problem: LoadProblem) -> np.ndarray:
        """Layers computed in each column, shape [T, C]."""
        computed = np.zeros(problem.units, dtype=np.int64)
        computed[list(self.compute)] = 1
        return computed.reshape(problem.compute_s.shape).sum(axis=1)

    def check(self, problem: LoadProblem, token_dependency: TokenDependency = "all") -> None:
        """Raise ``ValueError`` unless every unit is loaded once (Eq. 2) and computed only when ready (Eq. 3-5).

        As Eq. 4-5 sum inclusively, a stage unlocks its own work: what it streams counts from its beginning,
        what it computes counts for the units after it. Earlier tokens' KV must all be there as the text of
        IV-B says; ``token_dependency="previous"`` asks only for chunk t-1, as Eq. 4 reads.
        """
        self._check_each_once(problem)
        there = np.zeros(problem.compute_s.shape, dtype=bool)
        # From how early on a token chunk's predecessors must be there: see ``token_dependency``.
        reach = 1 if token_dependency == "previous" else problem.token_chunks
        depth = np.zeros((problem.token_chunks, problem.columns_per_chunk), dtype=np.int64)
        for k, stage in enumerate(self.stages):
            there.ravel()[list(stage.stream + stage.read)] = True
            for unit in stage.compute:
                t, l, c = problem.place(unit)
                attended = problem.attended_layer(l)
                attends = attended is None or there[max(0, t - reach) : t, attended, c].all()
                if depth[t, c] != l or not attends:
                    raise ValueError(f"stage {k} computes (t, l, c) = {(t, l, c)} before it is ready")
                depth[t, c] += 1
                there[t, l, c] = True

    def _check_each_once(self, problem: LoadProblem) -> None:
        units = np.array(self.compute + self.stream + self.read, dtype=np.int64)
        if units.size and not 0 <= units.min() <= units.max() < problem.units:
            raise ValueError(f"the plan names units outside 0..{problem.units - 1}")
        times = np.bincount(units, minlength=problem.units)
        wrong = np.flatnonzero(times != 1)
        if wrong.size:
            raise ValueError(f"(t, l, c) = {problem.place(int(wrong[0]))} is loaded {times[wrong[0]]} times, not once")
        if not np.isfinite(_read_bytes(problem, self.read)).all():
            raise ValueError("the plan reads units that do not lie on local storage")

    def stage_makespan_s(self, problem: LoadProblem, bytes_per_s: float, read_bytes_per_s: float = math.inf) -> float:
        """Eq. 1: the sum over stages of the slowest path's time, without waits inside a stage. What is left of the
        processor's start counts in the first stage that computes anything."""
        compute_s, stream_s = problem.compute_s.ravel(), problem.stream_bytes.ravel() / bytes_per_s
        ended_s = 0.0
        for stage in self.stages:
            starting_s = max(0.0, problem.start_s - ended_s) if stage.compute else 0.0
            paths_s = (
                starting_s + compute_s[list(stage.compute)].sum(),
                stream_s[list(stage.stream)].sum(),
                _read_bytes(problem, stage.read).sum() / read_bytes_per_s,
            )
            ended_s += float(max(paths_s))
        return ended_s

    def completion_s(self, problem: LoadProblem, bytes_per_s: float, read_bytes_per_s: float = math.inf) -> float:
        """When the last unit is present, at constant speeds and with each path in its order.

        Stricter than Eq. 1: a computed unit waits for the streamed KV that it attends to. Less strict: no path waits
        for the other at the end of a stage. Infinite if a unit is computed before what it needs.
        """
        there_s = np.full(problem.compute_s.shape, np.inf)
        stream = list(self.stream)
        there_s.ravel()[stream] = problem.stream_bytes.ravel()[stream].cumsum() / bytes_per_s
        there_s.ravel()[list(self.read)] = _read_bytes(problem, self.read).cumsum() / read_bytes_per_s
        now_s = problem.start_s
        for unit in self.compute:
            t, l, c = problem.place(unit)
            attended = problem.attended_layer(l)
            if attended is not None and t > 0:
                now_s = max(now_s, float(there_s[:t, attended, c].max()))
            now_s += float(problem.compute_s[t, l, c])
            there_s[t, l, c] = now_s
        return float(there_s.max(initial=0.0))


def _read_bytes(problem: LoadProblem, units: tuple[int, ...]) -> np.ndarray:
    """What local storage must read for these units; infinite where they do not lie there."""
    return problem.stored_bytes.ravel()[list(units)]


def ordered_stage(
    problem: LoadProblem,
    computed: np.ndarray,
    streamed: np.ndarray,
    labels: np.ndarray | None = None,
    sureness: np.ndarray | None = None,
) -> Stage:
    """A stage that does these units (boolean masks [T, L, C]), ordered so that computing hardly ever waits.

    ``labels`` (same shape, never falling along a column) say how much better a unit is computed than streamed:
    compute takes the lowest first that its predecessors allow, layer by layer where they are equal. The link
    brings what those computations attend to, in the order in which they will ask; then the rest, highest
    labels first, and upper layers first where they are equal. ``sureness`` (same shape) takes the labels' place there.
    """
    labels = np.zeros(problem.compute_s.shape) if labels is None else labels
    sureness = labels if sureness is None else sureness
    t, l, c = np.indices(problem.compute_s.shape).reshape(3, -1)
    compute = computing_order(problem, computed, labels)
    turn = np.full(problem.compute_s.shape, problem.units)
    turn.ravel()[compute] = np.arange(compute.size)
    stream = np.lexsort((c, t, -l, -sureness.ravel(), first_asked(problem, turn, problem.units).ravel()))
    stream = stream[streamed.ravel()[stream]]
    return Stage(tuple(compute.tolist()), tuple(stream.tolist()))


def computing_order(problem: LoadProblem, computed: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the units of the mask `computed` [T, L, C], flat: the lowest labels first that their predecessors allow,
    layer by layer where they are equal."""
    t, l, c = np.indices(problem.compute_s.shape).reshape(3, -1)
    # A unit comes no sooner than the computed ones before it in t and l, which lead to it.
    held_back = np.where(computed, labels, 0.0)
    held_back = np.maximum.accumulate(np.maximum.accumulate(held_back, axis=0), axis=1)
    order = np.lexsort((c, t, l, held_back.ravel()))
    return order[computed.ravel()[order]]


def first_asked(problem: LoadProblem, when: np.ndarray, never: float) -> np.ndarray:
    """Returns the earliest ``when`` [T, L, C] of the units that attend to each unit; `never`: none does."""
    asked = np.full_like(when, never)
    for layer in range(problem.layers):
        attended = problem.attended_layer(layer)
        if attended is not None:
            asked[:-1, attended] = np.minimum.accumulate(when[:0:-1, layer])[::-1]
    return asked


def by_storage(stage: Stage, read: np.ndarray) -> Stage:
    """The stage with those of its streamed units read from local storage that ``read`` [units] says, in their order."""
    return Stage(
        compute=stage.compute,
        stream=tuple(unit for unit in stage.stream if not read[unit]),
        read=tuple(unit for unit in stage.stream if read[unit]),
    )

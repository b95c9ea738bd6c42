"""The offline tuner (KVSwap 3.5, appendix A): grouping, compression and reuse buffer for a budget, batch and context.

A greedy search: reuse buffers from none to the largest, and for each the groups from one token on. It ends where I/O
hides behind computing and nothing that is left to try could be much faster. Quality is kept by taking groups and
compression no larger than that needs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pydantic import ConfigDict, Field

from kvferry.policies.decode.grouping import Grouping
from kvferry.policies.decode.tuning_limits import TuningLimits, most_slots
from kvferry.specs.base import Spec
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec


class ReuseTable:
    """Mean reuse rates ``rates`` [contexts, group sizes, capacities]; all three ascending, capacities in tokens per
    layer and sequence.

    The rate is linear in the capacity, and in the logarithms of context and group size; beyond the table it stays.
    A.1 has capacities alone. The same capacity, though, holds more of what is wanted again in a short context, and
    in groups more of what is wanted by chance.
    """

    def __init__(
        self,
        *,
        contexts: Sequence[int],
        group_tokens: Sequence[int],
        capacity_tokens: Sequence[float],
        rates: np.ndarray,
    ) -> None:
        """ValueError when rates do not fit the rest."""
        if rates.shape != (len(contexts), len(group_tokens), len(capacity_tokens)):
            raise ValueError(f"{rates.shape} rates for {len(contexts)} x {len(group_tokens)} x {len(capacity_tokens)}")
        self.contexts, self.group_tokens = tuple(contexts), tuple(group_tokens)
        self.capacity_tokens, self.rates = tuple(capacity_tokens), rates
        self._capacities = np.array([0.0, *capacity_tokens])
        self._curves: dict[tuple[int, int], np.ndarray] = {}

    @property
    def most_tokens(self) -> float:
        """Returns the capacity beyond which nothing is known to come."""
        return self.capacity_tokens[-1]

    def __call__(self, context: int, group_tokens: int, capacity_tokens: float) -> float:
        """0 for no buffer."""
        if not capacity_tokens:
            return 0.0
        key = context, group_tokens
        if key not in self._curves:
            self._curves[key] = np.array([0.0, *_between(self.group_tokens, group_tokens, self._in_context(context))])
        return float(np.interp(capacity_tokens, self._capacities, self._curves[key]))

    def _in_context(self, context: int) -> np.ndarray:
        """Returns [group sizes, capacities]"""
        return _between(self.contexts, context, self.rates)


def _between(known: Sequence[int], wanted: int, rates: np.ndarray) -> np.ndarray:
    """Along the first axis."""
    at = float(np.interp(np.log(wanted), np.log(known), np.arange(len(known))))
    low = min(int(at), len(known) - 2) if len(known) > 1 else 0
    high = min(low + 1, len(known) - 1)
    between: np.ndarray = rates[low] + (at - low) * (rates[high] - rates[low])
    return between


# A.1: what there are low-rank adapters for, besides the most that is allowed.
COMPRESSIONS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Seconds of one block, of its I/O alone, and of the I/O that passes while the block computes."""

    block_s: float
    io_s: float
    overlapped_s: float

    @property
    def overlap(self) -> float:
        return self.overlapped_s / self.io_s if self.io_s else 1.0

    def hides(self, limits: TuningLimits) -> bool:
        """Returns whether as much I/O passes while the block computes as the relaxation asks."""
        return self.overlapped_s >= (1 - limits.relaxation) * self.io_s


class BlockDelay(Protocol):
    def __call__(self, batch: int, context: int, grouping: Grouping, reuse_rate: float) -> BlockTimes:
        """Returns what a block takes, measured or modelled (A.3)."""
        ...


class Solution(Spec):
    """The best-found parameters for a pair. ``memory_bytes``: of the whole batch. ``overlap``: the share of I/O that
    passes while the block computes; ``hidden``: as much of it as the relaxation asks. ``prefill_s`` and
    ``tokens_per_s``: of the whole batch with these parameters, by the same prices; None where they were not asked
    for."""

    model_config = ConfigDict(strict=True)

    batch: int = Field(ge=1, le=64)
    context: int = Field(ge=1, le=10_000_000)
    grouping: Grouping
    memory_bytes: int = Field(ge=0)
    block_s: float = Field(ge=0)
    io_s: float = Field(ge=0)
    overlap: float = Field(ge=0, le=1)
    hidden: bool
    prefill_s: float | None = Field(default=None, ge=0)
    tokens_per_s: float | None = Field(default=None, ge=0)


def solution_of(
    batch: int, context: int, grouping: Grouping, times: BlockTimes, model: ModelSpec, limits: TuningLimits
) -> Solution:
    """Returns what these parameters come to for a pair, whose block takes `times`."""
    return Solution(
        batch=batch,
        context=context,
        grouping=grouping,
        memory_bytes=batch * limits.bytes_of(grouping, context, model),
        block_s=times.block_s,
        io_s=times.io_s,
        overlap=min(1.0, times.overlap),
        hidden=times.hides(limits),
    )


def tune(model: ModelSpec, limits: TuningLimits, reuse: ReuseTable, delay: BlockDelay) -> list[Solution]:
    """Returns a solution for every batch and context of the limits. Raises InputError, with the smallest budget that
    works, when the budget does not hold the longest context."""
    check_budget(model, limits)
    return [solve(b, s, model, limits, reuse, delay) for b in limits.batches() for s in limits.contexts()]


def solve(
    batch: int, context: int, model: ModelSpec, limits: TuningLimits, reuse: ReuseTable, delay: BlockDelay
) -> Solution:
    """Parameters for one pair of batch and context, within limits.each_bytes per sequence.

    The search stops at the first candidate that hides (1 - relaxation) of its I/O behind computing, and takes at most
    the tolerance longer than anything that the limits allow. Without the second condition, which is not in A.4, it
    would stop where reads, though hidden, slow computing. Where the search does not stop, the solution is, of all
    that come within the tolerance of the fastest, the first that hides its I/O, or else the one with the smallest
    groups and the least compression. Raises InputError when no selection fits.
    """
    slower = 1 + limits.tolerance

    def rate(group_tokens: int, slots: int) -> float:
        return reuse(context, group_tokens, slots * group_tokens)

    def hidden(times: BlockTimes) -> bool:
        return times.hides(limits)

    def solution(grouping: Grouping, times: BlockTimes) -> Solution:
        return solution_of(batch, context, grouping, times, model, limits)

    rooms = _rooms(context, model, limits)
    if not rooms:
        raise InputError(_too_small(context, model, limits))
    # Nothing is faster: a buffer as large as can be, with the least computing and nothing to look through.
    least_s = min(
        delay(
            batch,
            context,
            Grouping(group_tokens=room.group_tokens, compression=limits.most_compression, groups=room.groups),
            rate(room.group_tokens, room.most_slots),
        ).block_s
        for room in rooms
        if room.compression == limits.most_compression
    )
    tried: list[tuple[Grouping, BlockTimes]] = []
    for grouping in _candidates(rooms, context, limits, reuse.most_tokens):
        times = delay(batch, context, grouping, rate(grouping.group_tokens, grouping.slots))
        if hidden(times) and times.block_s <= slower * least_s:
            return solution(grouping, times)
        tried.append((grouping, times))
    enough_s = slower * min(times.block_s for _, times in tried)
    near = [(grouping, times) for grouping, times in tried if times.block_s <= enough_s]
    for grouping, times in near:
        if hidden(times):
            return solution(grouping, times)
    return solution(*min(near, key=lambda one: (one[0].group_tokens, one[0].compression, one[1].block_s)))


@dataclass(frozen=True, slots=True)
class _Room:
    """Says what fits beside keys of a compression: ``most_slots`` of a reuse buffer, 0 where a selection finds no
    place; ``preload``: whether a selection does without one."""

    group_tokens: int
    compression: float
    groups: int
    most_slots: int
    preload: bool

    def grouping(self, slots: int) -> Grouping:
        return Grouping(group_tokens=self.group_tokens, compression=self.compression, groups=self.groups, slots=slots)


def _rooms(context: int, model: ModelSpec, limits: TuningLimits) -> list[_Room]:
    """Returns the rooms that hold a selection, by group size, then by compression."""
    rooms = []
    for group_tokens in range(1, min(limits.most_group_tokens, context) + 1):
        groups = limits.groups_of(group_tokens, context)
        room = limits.room(group_tokens, context, model)
        for compression in (*(c for c in COMPRESSIONS if c < limits.most_compression), limits.most_compression):
            bare = Grouping(group_tokens=group_tokens, compression=compression, groups=groups)
            slots = most_slots(compression, groups, room)
            preload = limits.bytes_of(bare, context, model) <= limits.each_bytes
            if slots or preload:
                rooms.append(_Room(group_tokens, compression, groups, slots, preload))
    return rooms


def _candidates(rooms: list[_Room], context: int, limits: TuningLimits, most_tokens: float) -> Iterator[Grouping]:
    """Yields, in the order of A.4: no reuse buffer, one for a selection, then delta tokens more each as long as more is
    known to bring anything; at last as large as fits. For each the smallest groups first, and the least compression."""
    yield from (room.grouping(0) for room in rooms if room.preload)
    largest = max(room.most_slots * room.group_tokens for room in rooms)
    capacity = min(limits.selected_tokens, context)
    while capacity <= largest:
        for room in rooms:
            slots = max(room.groups, math.ceil(capacity / room.group_tokens))
            if slots <= room.most_slots:
                yield room.grouping(slots)
        if capacity >= most_tokens:
            return
        capacity += limits.slots_step_tokens
    yield from (room.grouping(room.most_slots) for room in rooms if room.most_slots)


def check_budget(model: ModelSpec, limits: TuningLimits) -> None:
    """Raises InputError, with the smallest that works, when the budget does not hold the longest context."""
    if not _rooms(limits.most_context, model, limits):
        raise InputError(_too_small(limits.most_context, model, limits))


def _too_small(context: int, model: ModelSpec, limits: TuningLimits) -> str:
    least = math.inf
    for group_tokens in range(1, min(limits.most_group_tokens, context) + 1):
        groups = limits.groups_of(group_tokens, context)
        for slots in (0, groups):
            grouping = Grouping(
                group_tokens=group_tokens, compression=limits.most_compression, groups=groups, slots=slots
            )
            least = min(least, limits.bytes_of(grouping, context, model))
    return (
        f"budget: {limits.budget_bytes / 1024:,.1f} KiB for {limits.most_batch} sequences hold no selection in a"
        f" context of {context:,} tokens; {math.ceil(limits.most_batch * least / 1024):,} KiB would"
    )

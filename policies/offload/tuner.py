"""The offline tuner (KVSwap 3.5, appendix A): grouping, compression and reuse buffer for a budget, batch and context.

A greedy search: the smallest reuse buffer, and with it the smallest group, at which nearly all I/O hides behind
computing. Quality is kept by taking compression and groups no larger than that needs.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from kvferry.policies.offload.grouping import Grouping, KvShape, memory_bytes, room_tokens
from kvferry.specs.errors import InputError

FORMAT, VERSION = "kvferry-tuned", 1


@dataclass(frozen=True, kw_only=True)
class TuningLimits:
    """What a user allows. The budget is for ``most_batch`` sequences: each has an equal part of it (A.4).

    ``selected_tokens`` MG is constant (A.2); ``relaxation`` alpha is how much longer than computing alone a block may
    take; ``slots_step_tokens`` delta is what the reuse buffer grows by; ``output`` tokens are decoded, whose compressed
    keys the budget holds too.
    """

    budget_bytes: float
    most_context: int
    most_batch: int
    least_context: int = 4096
    selected_tokens: int = 400
    most_group_tokens: int = 8
    most_compression: float = 32.0
    relaxation: float = 0.05
    slots_step_tokens: int = 200
    context_step: int = 2048
    output: int = 0

    def __post_init__(self) -> None:
        if self.most_batch < 1 or self.most_context < 1:
            raise InputError("tuning needs a batch and a context of 1 at least")
        if self.selected_tokens % self.most_group_tokens:
            what = f"{self.selected_tokens} selected tokens are no whole number of groups of {self.most_group_tokens}"
            raise InputError(f"{what}; choose a multiple")

    @property
    def each_bytes(self) -> float:
        """For one sequence."""
        return self.budget_bytes / self.most_batch

    def bytes_of(self, grouping: Grouping, context: int, shape: KvShape) -> int:
        """For one sequence, at the end of its output."""
        return memory_bytes(grouping, room_tokens(context, self.output, grouping.group_tokens), shape)

    def contexts(self) -> list[int]:
        """Those that are solved for: from the least in steps to the most, the most included."""
        least = min(self.least_context, self.most_context)
        return sorted({*range(least, self.most_context + 1, self.context_step), self.most_context})


class BlockDelay(Protocol):
    def __call__(self, batch: int, context: int, grouping: Grouping, reuse_rate: float) -> tuple[float, float]:
        """Seconds of one block, and of its I/O alone, measured or modelled (A.3)."""
        ...


@dataclass(frozen=True)
class ReuseTable:
    """Mean reuse rate by capacity (tokens per layer and sequence), ascending; linear in between (A.1)."""

    capacity_tokens: tuple[float, ...]
    rate: tuple[float, ...]

    def __call__(self, tokens: float) -> float:
        """0 for no buffer; beyond the last capacity the rate stays."""
        return float(np.interp(tokens, (0.0, *self.capacity_tokens), (0.0, *self.rate))) if tokens else 0.0


@dataclass(frozen=True, kw_only=True)
class Solution:
    """The best-found parameters for a pair. ``hidden``: the search ended because I/O hides behind computing."""

    batch: int
    context: int
    grouping: Grouping
    memory_bytes: int
    block_s: float
    io_s: float
    hidden: bool


def solve(
    batch: int,
    context: int,
    shape: KvShape,
    limits: TuningLimits,
    reuse: ReuseTable,
    delay: BlockDelay,
    compressions: Sequence[float] = (1, 2, 4, 8, 16, 32),
) -> Solution:
    """Parameters for one pair of batch and context, within limits.each_bytes per sequence.

    Raises InputError when not even the least selection fits; it says the smallest budget that works.
    """
    allowed = sorted(c for c in compressions if c <= limits.most_compression)
    groups = [1 << n for n in range(limits.most_group_tokens.bit_length()) if 1 << n <= context]

    def candidate(group_tokens: int, capacity: int) -> Grouping | None:
        """The least compressed that fits; None when none does."""
        selected = max(1, min(limits.selected_tokens, context) // group_tokens)
        slots = capacity // group_tokens
        if slots and slots < selected:
            return None
        for compression in allowed:
            grouping = Grouping(group_tokens=group_tokens, compression=compression, groups=selected, slots=slots)
            if limits.bytes_of(grouping, context, shape) <= limits.each_bytes:
                return grouping
        return None

    def solution(grouping: Grouping, capacity: int, hidden: bool) -> Solution:
        block_s, io_s = delay(batch, context, grouping, reuse(capacity))
        taken = batch * limits.bytes_of(grouping, context, shape)
        return Solution(
            batch=batch,
            context=context,
            grouping=grouping,
            memory_bytes=taken,
            block_s=block_s,
            io_s=io_s,
            hidden=hidden,
        )

    computing_s = _computing_s(batch, context, limits, delay, groups[-1])
    all_tried: list[Solution] = []
    capacity = 0
    while capacity <= context:
        found = [grouping for g in groups if (grouping := candidate(g, capacity)) is not None]
        if not found and capacity >= limits.selected_tokens:
            break
        for grouping in found:
            tried = solution(grouping, capacity, hidden=False)
            if tried.block_s <= (1 + limits.relaxation) * computing_s:
                return solution(grouping, capacity, hidden=True)
            all_tried.append(tried)
        capacity += limits.slots_step_tokens
    if not all_tried:
        raise InputError(_too_small(context, shape, limits, allowed, groups))
    # Nothing hides it all: the smallest groups, then the least compression, of those about as fast as the fastest.
    enough_s = (1 + limits.relaxation) * min(tried.block_s for tried in all_tried)
    near = [tried for tried in all_tried if tried.block_s <= enough_s]
    return min(near, key=lambda tried: (tried.grouping.group_tokens, tried.grouping.compression, tried.block_s))


def _computing_s(batch: int, context: int, limits: TuningLimits, delay: BlockDelay, group_tokens: int) -> float:
    """A block that reads nothing and manages as little as can be: nobody is faster."""
    selected = max(1, min(limits.selected_tokens, context) // group_tokens)
    grouping = Grouping(group_tokens=group_tokens, compression=limits.most_compression, groups=selected)
    return delay(batch, context, grouping, 1.0)[0]


def _too_small(context: int, shape: KvShape, limits: TuningLimits, allowed: Sequence[float], groups: list[int]) -> str:
    least = min(
        limits.bytes_of(
            Grouping(group_tokens=g, compression=allowed[-1], groups=max(1, min(limits.selected_tokens, context) // g)),
            context,
            shape,
        )
        for g in groups
    )
    return (
        f"budget: {limits.budget_bytes / 1024:,.1f} KiB for {limits.most_batch} sequences hold no selection in a"
        f" context of {context:,} tokens; {math.ceil(limits.most_batch * least / 1024):,} KiB would"
    )


def tune(
    shape: KvShape,
    limits: TuningLimits,
    reuse: ReuseTable,
    delay: BlockDelay,
    batches: Iterable[int] | None = None,
) -> "Solutions":
    """Solutions for every batch up to the most, and every context in steps. Raises InputError as ``solve`` does."""
    solved = [
        solve(batch, context, shape, limits, reuse, delay)
        for batch in (range(1, limits.most_batch + 1) if batches is None else batches)
        for context in limits.contexts()
    ]
    return Solutions(limits, solved)


class Solutions:
    """What a tuning found: written as JSON, looked up at run time."""

    def __init__(self, limits: TuningLimits, solved: Sequence[Solution]) -> None:
        self.limits = limits
        self.solved = {(solution.batch, solution.context): solution for solution in solved}

    def nearest(self, batch: int, context: int) -> Solution:
        """The exact pair, or the nearest. Raises InputError past the batch or context that was tuned for: the budget
        would not hold."""
        limits = self.limits
        if batch > limits.most_batch or context > limits.most_context:
            raise InputError(
                f"a batch of {batch} with {context:,} tokens each is more than was tuned for: at most"
                f" {limits.most_batch} with {limits.most_context:,}; tune again"
            )
        # Never one for a shorter context where a longer one is there: compressed keys would outgrow the budget.
        longer = [pair for pair in self.solved if pair[1] >= context]
        pair = min(
            longer,
            key=lambda pair: (
                abs(pair[0] - batch) / limits.most_batch + abs(pair[1] - context) / limits.most_context,
                pair,
            ),
        )
        return self.solved[pair]

    def to_json(self) -> str:
        rows = [asdict(solution) for solution in self.solved.values()]
        found = {"format": FORMAT, "version": VERSION, "limits": asdict(self.limits), "solutions": rows}
        return json.dumps(found, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str) -> "Solutions":
        """Raises InputError when the text is not what ``to_json`` writes."""
        try:
            found: Mapping[str, Any] = json.loads(text)
            if (found["format"], found["version"]) != (FORMAT, VERSION):
                raise ValueError(f"tagged {found['format']!r:.40} {found['version']!r:.10}")
            solved = [Solution(**{**row, "grouping": Grouping(**row["grouping"])}) for row in found["solutions"]]
            if not solved:
                raise ValueError("no solutions")
            return cls(TuningLimits(**found["limits"]), solved)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(f"{source}: not what kvferry tune writes: {error}") from None

"""Times at which the stages of a list begin and end, by what each takes: arithmetic, no events."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvferry.pipelines.decoding.prices import Parts, Queue
from kvferry.pipelines.decoding.stages import KINDS
from kvferry.policies.decode.stages import Stages
from kvferry.sim.slowing_queues import Piece, SlowingQueues

# When something begins and ends.
Interval = tuple[float, float]


class Times(NamedTuple):
    """``stages``: when each stage begins and ends, in the order of the list. ``free``: when each queue has ended all
    that it was given."""

    stages: list[Interval]
    free: dict[Queue, float]


class Step(NamedTuple):
    """A piece of work in a list: the layer whose KV it moves (None: it moves none), the places of what it comes after,
    and whether what comes next in the list is handed over once it has ended."""

    moves: int | None
    after: Sequence[int]
    awaited: bool


class Timetable:
    """Makes a list of stages ready to be timed many times. ``kinds`` are the ones that occur, ``steps`` what
    ``timed`` takes."""

    def __init__(self, stages: Stages) -> None:
        place = {stage.key: n for n, stage in enumerate(stages)}
        moving = [KINDS[stage.kind].worker == "mover" for stage in stages]
        self.stages = stages
        self.kinds = tuple(dict.fromkeys(stage.kind for stage in stages))
        # Places in the list: of all that the processor works at, of its part in each layer, and of the last move
        # to the processor.
        self.worked = tuple(n for n, moves in enumerate(moving) if not moves)
        self.last_move = max(n for n, moves in enumerate(moving) if moves and stages[n].kind != "write_back")
        self.steps = [
            Step(stage.layer if moves else None, [place[key] for key in stage.after], stage.awaited)
            for stage, moves in zip(stages, moving, strict=True)
        ]

    def worked_at(self, layer: int) -> list[int]:
        """Returns the places in the list of what the processor does for a layer."""
        return [n for n in self.worked if self.stages[n].layer == layer]


def timed(
    steps: Sequence[Step],
    parts: Sequence[Parts],
    beside: Mapping[Queue, float],
    free: Mapping[Queue, float] | None = None,
    arriving: Mapping[int, float] | None = None,
    beside_processor: Mapping[Queue, float] | None = None,
) -> Times:
    """Returns when each piece of work in a list begins and ends, by the parts of each.

    Every queue works through its parts in order; beside another queue, the processor gets on at the speed `beside`
    (up to 1, of several the product). `free`: when a queue has ended what it was given before. `arriving`: when
    what moves a layer's KV to another tier ends; the layer's own move comes after it. `beside_processor`: queues
    that the processor slows, and to what speed.
    """
    if beside_processor:
        return _together(steps, parts, beside, free or {}, arriving or {}, beside_processor)
    times: list[Interval] = []
    ends = dict(free or {})
    # Work that slows the processor, by queue, in order of time.
    busy = {queue: ([(0.0, ends[queue])] if queue in ends else [], speed) for queue, speed in beside.items()}
    handed_over = 0.0
    for stage_parts, (moves, after, awaited) in zip(parts, steps, strict=True):
        begin = handed_over
        for n in after:
            begin = max(begin, times[n][1])
        if arriving and moves is not None:
            begin = max(begin, arriving.get(moves, 0.0))
        start, end = None, begin
        for queue, seconds in stage_parts:
            now = max(end, ends.get(queue, 0.0))
            if queue == "processor":
                end = _end_beside(now, seconds, busy.values())
            else:
                end = now + seconds
                if queue in busy:
                    busy[queue][0].append((now, end))
            ends[queue] = end
            start = now if start is None else start
        times.append((begin if start is None else start, end))
        if awaited:
            handed_over = end
    return Times(times, ends)


def _together(
    steps: Sequence[Step],
    parts: Sequence[Parts],
    beside: Mapping[Queue, float],
    free: Mapping[Queue, float],
    arriving: Mapping[int, float],
    beside_processor: Mapping[Queue, float],
) -> Times:
    """Times the same where queues slow each other, so that a part's end depends on parts behind it in the list."""
    speeds: dict[str, dict[str, float]] = {q: {"processor": speed} for q, speed in beside_processor.items()}
    queues = SlowingQueues(speeds | {"processor": {str(queue): speed for queue, speed in beside.items()}})
    # The last piece that a queue is given ends last.
    last = {queue: queues.hand_over(Piece(queue, end_s)) for queue, end_s in free.items()}
    handed_over: tuple[Piece, ...] = ()
    stages: list[list[Piece]] = []
    for n, (stage_parts, (moves, after, awaited)) in enumerate(zip(parts, steps, strict=True)):
        due_s = 0.0 if moves is None else arriving.get(moves, 0.0)
        waits = (*handed_over, *(stages[one][-1] for one in after))
        pieces: list[Piece] = []
        for queue, seconds in stage_parts:
            last[queue] = queues.hand_over(Piece(queue, seconds, waits, not_before_s=due_s))
            pieces.append(last[queue])
            waits = (last[queue],)
        # One without parts is a moment in a queue of its own.
        stages.append(pieces or [queues.hand_over(Piece(f"nothing {n}", 0.0, waits, not_before_s=due_s))])
        if awaited:
            handed_over = (stages[n][-1],)
    for piece in [*last.values(), *(piece for pieces in stages for piece in pieces)]:
        queues.work_off(piece)
    ends = {queue: queues.work_off(piece) for queue, piece in last.items()}
    return Times([(pieces[0].start_s or 0.0, queues.work_off(pieces[-1])) for pieces in stages], ends)


def idle_s(during: Interval, work: Iterable[Interval]) -> float:
    """Returns the seconds of `during` in which no work is under way; `work` in order of time."""
    now, until = during
    idle_s = 0.0
    for begin, end in work:
        idle_s += max(0.0, min(begin, until) - now)
        now = max(now, min(end, until))
    return idle_s + until - now


def _end_beside(now: float, left: float, busy: Iterable[tuple[Sequence[Interval], float]]) -> float:
    """Returns when work that begins now ends: each of `busy` slows it to its speed while one of its intervals lasts."""
    while left > 0:
        speed, until = 1.0, float("inf")
        for intervals, slowed in busy:
            current = next((one for one in intervals if one[1] > now), None)
            if current is None:
                continue
            if current[0] <= now:
                speed *= slowed
                until = min(until, current[1])
            else:
                until = min(until, current[0])
        if left <= (until - now) * speed:
            return now + left / speed
        left -= (until - now) * speed
        now = until
    return now

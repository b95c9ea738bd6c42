"""When the stages of a decoding step begin and end, by what each kind of stage takes: arithmetic, no events."""

from collections.abc import Iterable, Mapping, Sequence

from kvferry.pipelines.decoding.stages import DECODING
from kvferry.policies.decode.stages import Stages

# When something begins and ends.
Interval = tuple[float, float]


class Timetable:
    """A list of stages, made ready to be timed many times. ``kinds`` are those that occur."""

    def __init__(self, stages: Stages) -> None:
        place = {stage.key: n for n, stage in enumerate(stages)}
        moving = [DECODING[stage.kind].queue == "mover" for stage in stages]
        self.stages = stages
        self.kinds = tuple(dict.fromkeys(stage.kind for stage in stages))
        # Places in the list: of all that the processor works at, of its part in each layer, and of the last move.
        self.worked = tuple(n for n, moves in enumerate(moving) if not moves)
        self.last_move = max(n for n, moves in enumerate(moving) if moves)
        self._steps = [
            (stage.kind, moves, [place[key] for key in stage.after], stage.awaited)
            for stage, moves in zip(stages, moving, strict=True)
        ]

    def worked_at(self, layer: int) -> list[int]:
        """Places in the list of what the processor does for a layer."""
        return [n for n in self.worked if self.stages[n].layer == layer]

    def times(self, seconds: Mapping[str, float], beside: float) -> list[Interval]:
        """When each stage begins and ends, by the seconds of its kind. Processor and mover work through their stages in
        order; beside a move, the processor gets on at the speed `beside` (up to 1)."""
        times: list[Interval] = []
        moves: list[Interval] = []
        handed_over = processor = mover = 0.0
        for kind, moving, after, awaited in self._steps:
            begin = max(handed_over, mover if moving else processor)
            for n in after:
                begin = max(begin, times[n][1])
            if moving:
                mover = end = begin + seconds[kind]
                moves.append((begin, end))
            else:
                processor = end = _end_beside(begin, seconds[kind], moves, beside)
            times.append((begin, end))
            if awaited:
                handed_over = end
        return times


def idle_s(during: Interval, work: Iterable[Interval]) -> float:
    """Seconds of `during` in which no work is under way; `work` in order of time."""
    now, until = during
    idle_s = 0.0
    for begin, end in work:
        idle_s += max(0.0, min(begin, until) - now)
        now = max(now, min(end, until))
    return idle_s + until - now


def _end_beside(now: float, left: float, moves: Sequence[Interval], beside: float) -> float:
    """When work that begins now ends; moves, in order, slow it."""
    for begin, end in moves:
        if end <= now:
            continue
        if now + left <= begin:
            break
        left -= max(0.0, begin - now)
        now = max(now, begin)
        if left <= (end - now) * beside:
            return now + left / beside
        left -= (end - now) * beside
        now = end
    return now + left

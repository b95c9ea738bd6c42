"""When work ends of queues that slow each other, by arithmetic: each piece gets on at a speed that depends on what else
is under way."""

from collections import deque
from collections.abc import Iterable, Mapping
from math import inf, prod


class Piece:
    """A piece of work. ``left_s``: seconds at full speed; ``fixed_s``: of them before, unslowed. It begins
    once what it comes `after` has ended, no earlier than `not_before_s`, when its queue has begun all that it was given
    before and its lane is free."""

    __slots__ = ("after", "end_s", "fixed_s", "lane", "left_s", "not_before_s", "queue", "start_s")

    def __init__(
        self,
        queue: str,
        left_s: float,
        after: Iterable["Piece"] = (),
        *,
        lane: str | None = None,
        fixed_s: float = 0.0,
        not_before_s: float = 0.0,
    ) -> None:
        self.queue, self.lane, self.left_s, self.fixed_s = queue, lane or queue, left_s, fixed_s
        self.after, self.not_before_s = tuple(after), not_before_s
        self.start_s: float | None = None
        self.end_s: float | None = None

    def may_begin(self) -> bool:
        """Returns whether all that it comes after has ended."""
        return None not in [one.end_s for one in self.after]


class SlowingQueues:
    """Queues that work through their pieces in order. ``speeds[queue][other]``: how fast (up to 1) a queue gets on
    while another one works, of several the product."""

    def __init__(self, speeds: Mapping[str, Mapping[str, float]], now_s: float = 0.0) -> None:
        self._speeds, self.now_s = speeds, now_s
        self._waiting: dict[str, deque[Piece]] = {}
        # By lane, what is under way.
        self._running: dict[str, Piece] = {}

    def hand_over(self, piece: Piece) -> Piece:
        self._waiting.setdefault(piece.queue, deque()).append(piece)
        return piece

    def work_off(self, last: Piece) -> float:
        """Goes on until `last` has ended, and returns when. What else is under way then goes on with the next call."""
        running = self._running
        while last.end_s is None:
            soonest_s = self._begin()
            passes_s, speeds = soonest_s - self.now_s, self._speeds_now()
            for piece, speed in zip(running.values(), speeds):
                needed_s = (piece.fixed_s or piece.left_s) / speed
                if needed_s < passes_s:
                    passes_s = needed_s
            assert passes_s < inf, "what is handed over waits for what is not"
            self.now_s += passes_s
            for piece, speed in zip([*running.values()], speeds):
                self._get_on(piece, speed, passes_s)
        return last.end_s

    def _begin(self) -> float:
        """Begins what can begin now, and returns when something may begin that waits for nothing but the time."""
        soonest_s, running = inf, self._running
        for waiting in self._waiting.values():
            while waiting:
                piece = waiting[0]
                if piece.lane in running or not piece.may_begin():
                    break
                if piece.not_before_s > self.now_s:
                    soonest_s = min(soonest_s, piece.not_before_s)
                    break
                waiting.popleft()
                piece.start_s = self.now_s
                running[piece.lane] = piece
        return soonest_s

    def _speeds_now(self) -> list[float]:
        """Returns how fast what is under way gets on, piece by piece."""
        running = self._running.values()
        busy = {piece.queue for piece in running}
        return [1.0 if piece.fixed_s else self._speed(piece.queue, busy) for piece in running]

    def _speed(self, queue: str, busy: set[str]) -> float:
        return prod([speed for other, speed in self._speeds.get(queue, {}).items() if other in busy])

    def _get_on(self, piece: Piece, speed: float, passes_s: float) -> None:
        done = (piece.fixed_s or piece.left_s) / speed <= passes_s
        if piece.fixed_s:
            piece.fixed_s = 0.0 if done else piece.fixed_s - passes_s
            if piece.fixed_s or piece.left_s:
                return
        elif not done:
            piece.left_s -= passes_s * speed
            return
        piece.left_s, piece.end_s = 0.0, self.now_s
        del self._running[piece.lane]

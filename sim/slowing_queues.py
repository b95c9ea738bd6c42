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
        while last.end_s is None:
            soonest_s = self._begin()
            running = list(self._running.values())
            busy = {piece.queue for piece in running}
            speeds = [1.0 if piece.fixed_s else self._speed(piece.queue, busy) for piece in running]
            needs = [(piece.fixed_s or piece.left_s) / speed for piece, speed in zip(running, speeds)]
            passes = min(min(needs, default=inf), soonest_s - self.now_s)
            assert passes < inf, "what is handed over waits for what is not"
            self.now_s = soonest_s if passes == soonest_s - self.now_s else self.now_s + passes
            for piece, speed, needed in zip(running, speeds, needs):
                self._get_on(piece, speed, passes, done=needed <= passes)
        return last.end_s

    def _begin(self) -> float:
        """Begins what can begin now, and returns when something may begin that waits for nothing but the time."""
        soonest_s = inf
        for waiting in self._waiting.values():
            while waiting:
                piece = waiting[0]
                if piece.lane in self._running or any(one.end_s is None for one in piece.after):
                    break
                if piece.not_before_s > self.now_s:
                    soonest_s = min(soonest_s, piece.not_before_s)
                    break
                waiting.popleft()
                piece.start_s = self.now_s
                self._running[piece.lane] = piece
        return soonest_s

    def _speed(self, queue: str, busy: set[str]) -> float:
        return prod(speed for other, speed in self._speeds.get(queue, {}).items() if other in busy)

    def _get_on(self, piece: Piece, speed: float, passes_s: float, *, done: bool) -> None:
        if piece.fixed_s:
            piece.fixed_s = 0.0 if done else piece.fixed_s - passes_s
            if piece.fixed_s or piece.left_s:
                return
        elif not done:
            piece.left_s -= passes_s * speed
            return
        piece.left_s, piece.end_s = 0.0, self.now_s
        del self._running[piece.lane]

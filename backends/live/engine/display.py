"""A display in wall time: each token is shown when its time has come, and when that really was is what is kept."""

from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import simpy

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.machine.instant import at


class LiveDisplay:
    """A machine.Display."""

    def __init__(self, env: WallClockEnvironment) -> None:
        self._env = env
        # Slots of tokens that are to be shown, and when others were.
        self._waiting: deque[float] = deque()
        self._shown_s: list[float] = []
        self._showing = False
        self._asked: list[simpy.Event] = []

    def show(self, ready_s: float, slot_s: float) -> None:
        self._waiting.append(slot_s)
        if not self._showing:
            self._showing = True
            self._env.process(self._show())

    def show_all(self, ready_s: Sequence[float] | np.ndarray) -> None:
        for time_s in ready_s:
            self.show(time_s, time_s)

    def keep(self, tokens: int) -> None:
        while self._waiting and len(self._shown_s) + len(self._waiting) > tokens:
            self._waiting.pop()

    def shown(self) -> simpy.Event:
        asked = self._env.event()
        self._asked.append(asked)
        if not self._showing:
            self._answer()
        return asked

    def _show(self) -> Generator[simpy.Event, Any, None]:
        while self._waiting:
            if (slot_s := self._waiting[0]) > self._env.now:
                yield at(self._env, slot_s)
                # It may have been dropped, or another is the next one now.
                continue
            self._waiting.popleft()
            self._shown_s.append(self._env.now)
        self._showing = False
        self._answer()

    def _answer(self) -> None:
        for asked in self._asked:
            asked.succeed(np.array(self._shown_s))
        self._asked.clear()

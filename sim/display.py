"""A modelled display: when tokens are shown, by arithmetic."""

from collections.abc import Sequence

import numpy as np
import simpy


class SimDisplay:
    """A machine.Display."""

    __slots__ = ("_env", "_times_s")

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        # Each token's own earliest time.
        self._times_s: list[float] = []

    def show(self, ready_s: float, slot_s: float) -> None:
        self._times_s.append(slot_s if slot_s > ready_s else ready_s)

    def show_all(self, ready_s: Sequence[float]) -> None:
        self._times_s += ready_s

    def keep(self, tokens: int) -> None:
        del self._times_s[tokens:]

    def shown(self) -> simpy.Event:
        return self._env.event().succeed(np.maximum.accumulate(np.array(self._times_s)))

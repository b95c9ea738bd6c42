"""A modelled display: when tokens are shown, by arithmetic."""

from collections.abc import Sequence

import numpy as np
import simpy


class SimDisplay:
    """A machine.Display."""

    __slots__ = ("_env", "_parts", "_times_s")

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        # Each token's own earliest time, in parts as they came; single ones go into the last.
        self._times_s: list[float] = []
        self._parts: list[Sequence[float] | np.ndarray] = [self._times_s]

    def show(self, ready_s: float, slot_s: float) -> None:
        self._times_s.append(slot_s if slot_s > ready_s else ready_s)

    def show_all(self, ready_s: Sequence[float] | np.ndarray) -> None:
        self._times_s = []
        self._parts += ready_s, self._times_s

    def keep(self, tokens: int) -> None:
        self._times_s = np.concatenate(self._parts)[:tokens].tolist()
        self._parts = [self._times_s]

    def shown(self) -> simpy.Event:
        return self._env.event().succeed(np.maximum.accumulate(np.concatenate(self._parts)))

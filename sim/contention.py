"""Paths of a device that slow each other: the decompressor uses cores that also compute, receiving takes cores too."""

from collections.abc import Callable, Mapping
from functools import partial

from kvferry.machine.busy import Busy


class Contention:
    """Which paths are busy, and how much they slow each other.

    `slowdown[path][other]`: how many times as long the work of `path` takes while `other` is busy. Several others
    multiply. Left out: how busy the other path is (one worker of the decompressor counts as much as all), what it
    works on, and the time until the slowdown sets in.
    """

    def __init__(self, slowdown: Mapping[str, Mapping[str, float]]) -> None:
        self._slowdown = slowdown
        self._changed: dict[str, Callable[[], None]] = {}
        self._working: dict[str, bool] = {}

    def watch(self, path: str, busy: Busy) -> None:
        """Follow `busy`, which records when this path works."""
        self._working[path] = False
        busy.listener = partial(self._set, path)

    def tell(self, path: str, changed: Callable[[], None]) -> bool:
        """Call `changed` whenever this path's speed may have changed. Returns False if no other path slows this one."""
        if not self._slowdown.get(path):
            return False
        self._changed[path] = changed
        return True

    def speed(self, path: str) -> float:
        """The path's speed now, as a fraction (0..1] of its speed when it is the only busy path."""
        slower = 1.0
        for other, factor in self._slowdown.get(path, {}).items():
            if self._working.get(other):
                slower *= factor
        return 1 / slower

    def _set(self, path: str, working: bool) -> None:
        self._working[path] = working
        for slowed, changed in self._changed.items():
            if path in self._slowdown[slowed]:
                changed()

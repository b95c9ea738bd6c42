"""Paths of a device that get in each other's way: a decoder on the cores that compute, a link that must be served."""

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

from kvferry.machine.busy import Busy


class Contention:
    """Who is at work, and how much that slows whom.

    `slowdown[path][other]`: how many times as long the work of `path` takes while `other` is busy. Several others
    multiply: each leaves its share of what the ones before left. Left out: how busy the other is (one worker of the
    decompressor counts as much as all), what it works on, and the time until it makes itself felt.
    """

    def __init__(self, slowdown: Mapping[str, Mapping[str, float]]) -> None:
        self._slowdown = slowdown
        self._changed: dict[str, Callable[[], None]] = {}
        self._working: dict[str, bool] = {}

    def watch(self, path: str, busy: Busy) -> None:
        """Learn from `busy` when this path works."""
        self._working[path] = False
        busy.listener = partial(self._set, path)

    def tell(self, path: str, changed: Callable[[], None]) -> bool:
        """Call `changed` whenever this path's speed may be another; False: nothing slows it."""
        if not self._slowdown.get(path):
            return False
        self._changed[path] = changed
        return True

    def speed(self, path: str) -> float:
        """The path's speed now (0..1] over that when it is alone."""
        slowdown = self._slowdown.get(path, {})
        return 1 / prod(factor for other, factor in slowdown.items() if self._working.get(other))

    def _set(self, path: str, working: bool) -> None:
        self._working[path] = working
        for slowed, changed in self._changed.items():
            if path in self._slowdown[slowed]:
                changed()

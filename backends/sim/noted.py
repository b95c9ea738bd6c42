"""What a modelled device does from some time on, noted so that it can go on in the same way."""

from collections.abc import Generator, Sequence
from typing import Any

import simpy

from kvferry.backends.sim.hardware import Queue
from kvferry.machine.span import Span, Tell


class Noted:
    """Hands spans on to `told`; from `begin` until `go_on` it notes them too."""

    def __init__(self, told: Tell) -> None:
        self._told = told
        # None: nothing is noted.
        self._spans: list[Span] | None = None
        self._since_s = 0.0

    def tell(self, span: Span) -> None:
        if self._spans is not None:
            self._spans.append(span)
        self._told(span)

    def begin(self, now_s: float) -> None:
        self._spans, self._since_s = [], now_s

    def go_on(self, env: simpy.Environment, queues: Sequence[Queue], seconds: float) -> simpy.Event:
        """Starts a process of `seconds`, in which all goes on as in the noted time. There is one span of each label,
        one behind the other; when a resource is busy, on which energy depends, is stretched from that time."""
        noted, self._spans = self._spans or [], None
        return env.process(self._stretched(noted, env, queues, seconds))

    def _stretched(
        self, noted: Sequence[Span], env: simpy.Environment, queues: Sequence[Queue], seconds: float
    ) -> Generator[simpy.Event, Any, None]:
        from_s, since_s = env.now, self._since_s
        if from_s <= since_s or seconds <= 0:
            return
        times = seconds / (from_s - since_s)
        parts: dict[tuple[str, str], tuple[float, float]] = {}
        for resource, label, start_s, end_s, n_bytes, _ in noted:
            busy_s, moved = parts.get((resource, label), (0.0, 0.0))
            parts[resource, label] = busy_s + end_s - max(start_s, since_s), moved + n_bytes
        busy = [(one, list(one.busy.intervals(since_s, from_s))) for one in queues]
        yield env.timeout(seconds)
        begin_s = dict.fromkeys((resource for resource, _ in parts), from_s)
        for (resource, label), (busy_s, n_bytes) in parts.items():
            end_s = begin_s[resource] + busy_s * times
            self._told(Span(resource, label, begin_s[resource], end_s, n_bytes * times, None))
            begin_s[resource] = end_s
        for one, intervals in busy:
            for since, until in intervals:
                one.busy.add(from_s + (since - since_s) * times, from_s + (until - since_s) * times)

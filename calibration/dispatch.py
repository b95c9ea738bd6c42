"""The cost of handing one op to a worker of the live machine, whatever the op."""

from collections.abc import Iterator
from time import perf_counter
from typing import Any

import simpy

from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.calibration.measurement import Measurement, repeated
from kvferry.calibration.settings import Settings
from kvferry.calibration.task import Task
from kvferry.machine.ops import FeedForward, Op

_TRIPS = 200


class _Nothing:
    """A session whose ops take no time."""

    def run(self, op: Op, request: int | None, inputs: Any = ()) -> Any:
        return None


def tasks(settings: Settings) -> Iterator[Task]:
    yield Task("dispatch", lambda: [dispatch(settings)])


def dispatch(settings: Settings) -> Measurement:
    """Seconds from submitting an empty op until its ticket fires."""
    with LiveMachine("device", _Nothing(), capacity_bytes=1.0) as machine:

        def trips() -> simpy.events.ProcessGenerator:
            for _ in range(_TRIPS):
                yield machine.submit(FeedForward(1))

        def once() -> list[float]:
            began_s = perf_counter()
            machine.env.run(until=machine.env.process(trips()))
            return [(perf_counter() - began_s) / _TRIPS]

        values = repeated(once, least=5, seconds=settings.point_s / settings.passes)
    return Measurement(what="dispatch", unit="s", values=values)

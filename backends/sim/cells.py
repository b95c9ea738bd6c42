"""Ways to the network of modelled devices: courses of one trace, and cells whose air they share."""

from collections.abc import Callable

import simpy

from kvferry.machine.span import Tell
from kvferry.sim.access import Access, Cell
from kvferry.specs.link import LinkSpec, WaySpec
from kvferry.traces.chance import Source, generator
from kvferry.traces.rate import RateTrace
from kvferry.traces.round_trips import late_of, round_trips_of

TraceOf = Callable[[WaySpec], RateTrace]
# Courses of one trace: a few do for all, and each takes memory.
_COURSES = 16


def on_course(link: LinkSpec, seed: int, number: int, trace_of: TraceOf) -> LinkSpec:
    """The link with its trace begun at a time that is drawn for this number, where the trace loops."""
    if link.trace is None or link.on_end != "loop":
        return link
    drawn = generator(Source.LINKS, seed, number % _COURSES).uniform()
    return link.model_copy(update={"offset_s": link.begins_s + drawn * trace_of(link).duration_s})


class Cells:
    """Cells over whose air a scenario's link is replayed, each from when its first device comes. The first begins its
    trace where the link says."""

    def __init__(self, env: simpy.Environment, link: LinkSpec, seed: int, trace_of: TraceOf) -> None:
        self._env, self._link, self._seed, self._trace_of = env, link, seed, trace_of
        self._cells: dict[int, Cell] = {}

    def access(self, number: int, tell: Tell) -> Access:
        """The access of one more device of this cell."""
        if number not in self._cells:
            link = on_course(self._link, self._seed, number, self._trace_of) if number else self._link
            self._cells[number] = Cell(
                self._env,
                self._trace_of(link),
                None if link.up is None else self._trace_of(link.up),
                round_trips_of(link).least_s,
                late_of(link, self._seed, f"cell {number}"),
            )
        return self._cells[number].access(tell)

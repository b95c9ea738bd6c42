"""The processor's part of a load: units in the order that the loader says."""

from collections import deque
from collections.abc import Callable
from functools import partial

import simpy

from kvferry.machine.ticket import Ticket
from kvferry.pipelines.loading.under_way import UnderWay, cancelled, then
from kvferry.policies.loading.fallback import compute_without_link
from kvferry.specs.errors import KvferryError


class ComputePath:
    """Computes units here. `won`: called with a unit that was computed while it was still being fetched."""

    def __init__(self, load: UnderWay, won: Callable[[int], None]) -> None:
        self._load, self._progress, self._won = load, load.progress, won
        self._to_compute: deque[int] = deque()
        self._computing: dict[int, list[Ticket]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._computing)

    def fill(self) -> None:
        """Hand over as many units as the pace allows and the loader wants."""
        ahead = self._load.pace.compute_ahead
        while len(self._computing) < ahead and self._next():
            pass

    def call_off(self) -> None:
        for tickets in reversed(list(self._computing.values())):
            for ticket in reversed(tickets):
                ticket.cancel()

    def _next(self) -> bool:
        load, progress = self._load, self._progress
        while True:
            if not self._to_compute:
                wanted = load.loader.next_compute(progress, load.look())
                if wanted is None and load.arrivals.link_down is not None:
                    wanted = compute_without_link(progress)
                elif wanted is None and load.arrivals.lost:
                    wanted = compute_without_link(progress, load.arrivals.lost)
                if wanted is None:
                    return False
                self._to_compute.extend(wanted.units)
            unit = self._to_compute.popleft()
            if progress.computable(unit):
                break
            if not (progress.present[unit] or progress.computing[unit]):
                raise KvferryError(f"{type(load.loader).__name__} wants unit {unit} computed before it can be")
        load.moved()
        progress.hand_over_compute(unit)
        load.arrivals.asked((unit,), load.env.now, streamed=False)
        machine, request = load.machine, load.request
        tickets = [machine.submit(op, request=request) for op in load.context.ops_of(*progress.problem.place(unit))]
        self._computing[unit] = tickets
        then(tickets[-1], partial(self._computed, unit))
        return True

    def _computed(self, unit: int, event: simpy.Event) -> None:
        load, progress = self._load, self._progress
        load.moved()
        del self._computing[unit]
        if cancelled(event):
            progress.compute_cancelled(unit)
            return
        if not progress.present[unit]:
            load.arrivals.came(unit, load.env.now, streamed=False)
        progress.computed(unit)
        if progress.streaming[unit]:
            self._won(unit)
        load.settle()

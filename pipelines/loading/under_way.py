"""What the paths of a load share: the machine, the loader with what it may look at, and what has come."""

from collections.abc import Callable

import simpy

from kvferry.machine.machine import Machine
from kvferry.machine.ticket import Cancelled
from kvferry.pipelines.loading.arrivals import Arrivals
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.outlook import Outlook
from kvferry.pipelines.loading.pace import Pace
from kvferry.policies.loading.loader import Loader, LoadFacts
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress


class UnderWay:
    """A load that has begun. `done` fires when every unit is present, or fails. `loads` tells how many are under way on
    the machine, this one counted. A path calls `pump` when it may hand over more, `settle` when a unit has arrived."""

    pump: Callable[[], None]
    settle: Callable[[], None]

    def __init__(
        self,
        machine: Machine,
        context: Context,
        problem: LoadProblem,
        loader: Loader,
        request: int,
        outlook: Outlook,
        pace: Pace,
        loads: Callable[[], int],
        keep_paths: bool,
    ) -> None:
        self.machine, self.env, self.context, self.loader = machine, machine.env, context, loader
        self.request, self.pace = request, pace
        self._outlook, self._loads = outlook, loads
        self.facts = outlook.at_start(self.env.now, loads())
        problem = self.facts.planned(problem)
        self.progress = LoadProgress(problem)
        self.arrivals = Arrivals(problem, keep_paths)
        self.done = self.env.event()
        self._facts_until_s = self.env.now + pace.window_s / 10
        # When a unit was last handed over or arrived, and what wakes a watch that sleeps longer than a window then.
        self._moved_s = self.env.now
        self._awaited: simpy.Event | None = None
        # Remembers the loader's window in bytes, and the facts for which it was asked.
        self._window: tuple[LoadFacts | None, float] = None, 0.0
        loader.start(problem, self.facts)

    def look(self) -> LoadFacts:
        """Returns the facts, renewed ten times a window: looking costs more than deciding."""
        now_s = self.env.now
        if now_s >= self._facts_until_s:
            seen = self.machine.observe(self.pace.window_s)
            self.facts = self._outlook.later(self.facts, seen, self._loads())
            self._facts_until_s = now_s + self.pace.window_s / 10
        return self.facts

    @property
    def window_bytes(self) -> float:
        """Returns how many bytes the loader keeps on the link, by the present facts."""
        facts, n_bytes = self._window
        if facts is not self.facts:
            n_bytes = self.loader.window.n_bytes(self.facts)
            self._window = self.facts, n_bytes
        return n_bytes

    def moved(self) -> None:
        """A unit was handed over or has arrived."""
        self._moved_s = self.env.now
        if self._awaited is not None:
            self._awaited.succeed()
            self._awaited = None

    def next_look(self, waits: bool) -> simpy.Event:
        """Returns what fires after a window; or later when it `waits` and nothing has moved for long, unless something
        does."""
        idle_s = self.env.now - self._moved_s if waits else 0.0
        # Late in a run of centuries, a clock of 53 bits does not move by a window.
        wait_s = max((idle_s - self.pace.patience_s) / 2, 1e-9 * self.env.now)
        if wait_s <= self.pace.window_s:
            return self.env.timeout(self.pace.window_s)
        self._awaited = self.env.event()
        return self.env.timeout(wait_s) | self._awaited

    def fail(self, event: simpy.Event) -> None:
        """Fail the load: neither the link nor what it brought is at fault, so nothing can make up for it."""
        event.defused = True
        if not self.done.triggered:
            self.done.fail(event.value)


def then(event: simpy.Event, callback: Callable[[simpy.Event], None]) -> None:
    """Call back when a ticket fires that was just handed out."""
    assert event.callbacks is not None  # None once an event is processed: no ticket is, when it is handed out
    event.callbacks.append(callback)


def cancelled(event: simpy.Event) -> bool:
    return isinstance(event.value, Cancelled)

"""Bring one context's KV in over two paths at once, as a loader says: fetch from the cloud, compute here."""

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

import simpy

from kvferry.machine.machine import Machine
from kvferry.machine.ops import Decompress, Extents, KvRef
from kvferry.machine.ticket import Cancelled, Ticket
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.outlook import Outlook
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.record import UnitPath
from kvferry.policies.loading.fallback import compute_without_link
from kvferry.policies.loading.loader import Loader, LoadFacts, ReadingLoader, Stream
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.specs.errors import KvferryError, LinkDown


class LoaderStuck(KvferryError):
    """Nothing is under way, the load is not complete, and the loader asks for nothing."""


class ContextLoad:
    """A load under way. `done` fires when every unit is present; the counters then tell the story. `loads` tells how
    many are under way on the machine, this one counted.

    `local` says where on local storage the units lie that the problem may read there; None: nothing lies there.

    When the link is down for good, what is missing is computed; and so is what came whole and cannot be used, as it
    does not decode, say. `link_down`, `units_unusable` and `unusable` tell of it. Any other error ends the load.
    """

    def __init__(
        self,
        machine: Machine,
        context: Context,
        problem: LoadProblem,
        loader: Loader,
        *,
        request: int,
        outlook: Outlook,
        pace: Pace,
        loads: Callable[[], int] = lambda: 1,
        keep_paths: bool = False,
        local: Callable[[tuple[int, ...]], Extents] | None = None,
    ) -> None:
        self.machine, self.context, self.loader, self.pace = machine, context, loader, pace
        self.request = request
        self._outlook, self._loads = outlook, loads
        self._facts = outlook.at_start(machine.env.now, loads())
        problem = self._facts.planned(problem)
        self.progress = LoadProgress(problem)
        self.units_computed = 0
        self.units_streamed = 0
        self.units_read = 0
        self._local = local
        # Where the path of every unit goes, if it is kept; and when units were handed over, by unit and path.
        self.paths: list[UnitPath] | None = [] if keep_paths else None
        self._asked_s: dict[tuple[int, bool], float] = {}
        # Key and value numbers that came, by the level of their encoding.
        self.values_by_level: Counter[int] = Counter()
        self.streamed_bytes = 0.0
        self.wasted_bytes = 0.0
        self.done = machine.env.event()
        # Why the link carries nothing any more; None while it does.
        self.link_down: LinkDown | None = None
        # How many units arrived and could not be decoded or put in place, and why the first of them.
        self.units_unusable = 0
        self.unusable: KvferryError | None = None
        # Of those, the ones that had not been computed meanwhile. Asking for them again would bring the same.
        self._lost: set[int] = set()
        self._to_compute: deque[int] = deque()
        self._computing: dict[int, list[Ticket]] = {}
        # The transfer that each unit is in, all its units, and its bytes.
        self._fetches: dict[int, tuple[Ticket, tuple[int, ...], float]] = {}
        self._on_link_bytes = 0.0
        self._on_link = 0
        self._transfers = 0
        # What the loader asked for, of another level than the transfer that was being filled.
        self._postponed: Stream | None = None
        self._facts_until_s = machine.env.now + pace.window_s / 10
        self._pumping = False
        # When a unit was last handed over or arrived, and what wakes a watch that sleeps longer than a window then.
        self._moved_s = machine.env.now
        self._awaited: simpy.Event | None = None
        loader.start(problem, self._facts)
        machine.env.process(self._watch())

    def _watch(self) -> simpy.events.ProcessGenerator:
        """Ask the loader again after every window, as it may wait for time to pass; fail the load when it is stuck."""
        idle_windows = 0
        self._pump()
        while not self.done.triggered:
            yield self._next_look()
            self._pump()
            under_way = self._computing or self._fetches or self.progress.units_reading
            idle_windows = 0 if under_way else idle_windows + 1
            if idle_windows > 20 and not self.done.triggered:
                left = self.progress.remaining
                why = f"; what came could not be used: {self.unusable}" if self.unusable else ""
                stuck = f"{type(self.loader).__name__} asks for nothing with {left} units left{why}"
                self.done.fail(LoaderStuck(stuck))

    def _next_look(self) -> simpy.Event:
        """After a window; or later when nothing has moved for long, unless something does."""
        env = self.machine.env
        idle_s = env.now - self._moved_s if self._computing or self._fetches else 0.0
        # Late in a run of centuries, a clock of 53 bits does not move by a window.
        wait_s = max((idle_s - self.pace.patience_s) / 2, 1e-9 * env.now)
        if wait_s <= self.pace.window_s:
            return env.timeout(self.pace.window_s)
        self._awaited = env.event()
        return env.timeout(wait_s) | self._awaited

    def _moved(self) -> None:
        """A unit was handed over or has arrived."""
        self._moved_s = self.machine.env.now
        if self._awaited is not None:
            self._awaited.succeed()
            self._awaited = None

    def _look(self) -> LoadFacts:
        """The facts, renewed ten times a window: looking costs more than deciding."""
        now_s = self.machine.env.now
        if now_s >= self._facts_until_s:
            seen = self.machine.observe(self.pace.window_s)
            self._facts = self._outlook.later(self._facts, seen, self._loads())
            self._facts_until_s = now_s + self.pace.window_s / 10
        return self._facts

    def _pump(self) -> None:
        """Fill both paths as far as the pace allows and the loader wants."""
        if self._pumping or self.done.triggered:
            return
        self._pumping = True
        while len(self._computing) < self.pace.compute_ahead and self._compute_next():
            pass
        while self.link_down is None and self._link_has_room() and self._stream_next():
            pass
        while self.progress.units_reading < self.pace.reads_ahead and self._read_next():
            pass
        self._pumping = False
        under_way = self._computing or self._fetches or self.progress.units_reading
        if self.link_down is not None and not under_way:
            self.done.fail(self.link_down)

    def _compute_next(self) -> bool:
        while True:
            if not self._to_compute:
                wanted = self.loader.next_compute(self.progress, self._look())
                if wanted is None and self.link_down is not None:
                    wanted = compute_without_link(self.progress)
                elif wanted is None and self._lost:
                    wanted = compute_without_link(self.progress, self._lost)
                if wanted is None:
                    return False
                self._to_compute.extend(wanted.units)
            unit = self._to_compute.popleft()
            if self.progress.computable(unit):
                break
            if not (self.progress.present[unit] or self.progress.computing[unit]):
                raise KvferryError(f"{type(self.loader).__name__} wants unit {unit} computed before it can be")
        self._moved()
        self.progress.hand_over_compute(unit)
        self._asked_s[unit, False] = self.machine.env.now
        place = self.progress.problem.place(unit)
        tickets = [self.machine.submit(op, request=self.request) for op in self.context.ops_of(*place)]
        self._computing[unit] = tickets
        _then(tickets[-1], partial(self._computed, unit))
        return True

    def _computed(self, unit: int, event: simpy.Event) -> None:
        self._moved()
        del self._computing[unit]
        if _cancelled(event):
            self.progress.compute_cancelled(unit)
            return
        if not self.progress.present[unit]:
            self.units_computed += 1
            self._came(unit, streamed=False)
        self.progress.computed(unit)
        if self.progress.streaming[unit]:
            self._drop_fetch(unit)
        self._settle()

    def _came(self, unit: int, *, streamed: bool) -> None:
        if self.paths is not None:
            t, l, c = self.progress.problem.place(unit)
            head = c if self.progress.problem.coupling == "per_head" else None
            path = UnitPath(t, l, head, streamed, self._asked_s[unit, streamed], self.machine.env.now)
            self.paths.append(path)

    def _drop_fetch(self, unit: int) -> None:
        """The processor won this race: stop the transfer if nothing else in it is wanted."""
        if unit not in self._fetches:
            return
        ticket, units, _ = self._fetches[unit]
        if all(self.progress.present[u] for u in units):
            ticket.cancel()

    def _read_next(self) -> bool:
        if self._local is None or not isinstance(self.loader, ReadingLoader):
            return False
        wanted = self.loader.next_read(self.progress, self._look())
        if wanted is None:
            return False
        self._moved()
        extents = self._local(wanted.units)
        unit_bytes = extents.n_bytes / len(wanted.units)
        for unit in wanted.units:
            self.progress.hand_over_read(unit, unit_bytes)
        came = self.machine.move(extents, "storage", "host", request=self.request)
        self._place(extents, came, partial(self._was_read, wanted.units, unit_bytes))
        return True

    def _was_read(self, units: tuple[int, ...], unit_bytes: float, event: simpy.Event) -> None:
        self._moved()
        if not event.ok:
            self._fail(event)
            return
        for unit in units:
            self.units_read += not self.progress.present[unit]
            self.progress.read(unit, unit_bytes)
            if self.progress.streaming[unit]:
                self._drop_fetch(unit)
        if not self.done.triggered:
            self._settle()

    def _link_has_room(self) -> bool:
        few = self._transfers < 2 + 2 * self.pace.decoders
        if few and self._on_link < 2:
            return True
        window_bytes = self.loader.window.n_bytes(self._facts)
        if self._on_link >= 2 and self._on_link_bytes >= window_bytes:
            return False
        return few or self.progress.streaming_bytes < 4 * window_bytes

    def _stream_next(self) -> bool:
        units, level = self._wanted_streams()
        if not units:
            return False
        self._moved()
        chunks = self.context.chunks_of(units, level)
        self._on_link += 1
        self._transfers += 1
        self._on_link_bytes += chunks.n_bytes
        fetched = self.machine.fetch(chunks, request=self.request)
        values = self.context.values_of(units)
        opened = fetched
        if self.context.entropy_coded:
            opened = self.machine.submit(Decompress(values), after=(fetched,), on="decompress", request=self.request)
        t, l, _ = self.progress.problem.place(units[0])
        kv = KvRef(
            self.context.sequence, self.context.number_of(t), l, None, values * self.context.model.kv_value_bytes
        )
        for unit in units:
            self._fetches[unit] = (fetched, units, chunks.n_bytes)
        _then(fetched, partial(self._left_link, chunks.n_bytes))
        self._place(kv, opened, partial(self._streamed, units, level))
        return True

    def _place(self, kv: KvRef | Extents, there: Ticket, placed: Callable[[simpy.Event], None]) -> None:
        """Put KV that a ticket brings into host memory where attention can read it, then call `placed`.

        A copy in its queue holds up those behind it until its bytes have come. With two ways into host memory, each is
        handed over when they have: from `there` a real machine takes what came.
        """
        if self._local is None:
            _then(self.machine.move(kv, "host", "device", after=(there,), request=self.request), placed)
            return

        def move(event: simpy.Event) -> None:
            if not event.ok or _cancelled(event):
                placed(event)
            else:
                _then(self.machine.move(kv, "host", "device", after=(there,), request=self.request), placed)

        _then(there, move)

    def _wanted_streams(self) -> tuple[tuple[int, ...], int]:
        """The units of the next transfer, and their level: what the loader asks for, and more while that is little. No
        units: it wants nothing."""
        units: list[int] = []
        level, n_bytes = 0, 0.0
        pace = self.pace
        enough_bytes = self._facts.seen_bytes_per_s * pace.transfer_s
        left = self.progress.remaining - len(self._fetches)
        # Of a transfer that carries more than one unit, some may be there by now: computing won that race.
        most_units = min(pace.transfer_units, 1 + max(left, 0) // pace.transfer_left)
        while len(units) < most_units:
            wanted, self._postponed = self._postponed, None
            if wanted is None:
                wanted = self.loader.next_stream(self.progress, self._look())
            if wanted is None or not self._lost.isdisjoint(wanted.units):
                break
            if units and wanted.level != level:
                self._postponed = wanted
                break
            level = wanted.level
            for unit in wanted.units:
                unit_bytes = self.context.unit_bytes(unit, level)
                self.progress.hand_over_stream(unit, unit_bytes)
                self._asked_s[unit, True] = self.machine.env.now
                n_bytes += unit_bytes
            units += wanted.units
            if n_bytes >= enough_bytes:
                break
        return tuple(units), level

    def _left_link(self, n_bytes: float, event: simpy.Event) -> None:
        self._moved()
        self._on_link -= 1
        self._on_link_bytes -= n_bytes
        if isinstance(event.value, LinkDown):
            # No byte will come any more: compute the rest, if the loader or the coupling leaves a way.
            event.defused = True
            self.wasted_bytes += event.value.bytes_done
            if not self.done.triggered:
                self.link_down = self.link_down or event.value
        elif not event.ok:
            self._fail(event)
        elif _cancelled(event):
            self.wasted_bytes += event.value.bytes_done
        self._pump()

    def _streamed(self, units: tuple[int, ...], level: int, event: simpy.Event) -> None:
        self._moved()
        self._transfers -= 1
        for unit in units:
            self._fetches.pop(unit, None)
        event.defused = True
        if isinstance(event.value, LinkDown) or _cancelled(event):
            for unit in units:
                self.progress.stream_cancelled(unit, self.context.unit_bytes(unit, level))
            self._pump()
            return
        if self.done.triggered:
            return  # booked as wasted when the load was done
        if isinstance(event.value, KvferryError):
            self._compute_instead(units, level, event.value)
            return
        if not event.ok:
            self._fail(event)
            return
        for unit in units:
            unit_bytes = self.context.unit_bytes(unit, level)
            if self.progress.present[unit]:
                self.wasted_bytes += unit_bytes
            else:
                self.units_streamed += 1
                self._came(unit, streamed=True)
                self.values_by_level[level] += self.context.values_of((unit,))
                self.streamed_bytes += unit_bytes
            self.progress.streamed(unit, unit_bytes)
        self._settle()

    def _compute_instead(self, units: tuple[int, ...], level: int, error: KvferryError) -> None:
        """These came whole, and are of no use."""
        self.unusable = self.unusable or error
        self.units_unusable += len(units)
        for unit in units:
            unit_bytes = self.context.unit_bytes(unit, level)
            self.wasted_bytes += unit_bytes
            self.progress.stream_cancelled(unit, unit_bytes)
            if not self.progress.present[unit]:
                self._lost.add(unit)
        self._pump()

    def _fail(self, event: simpy.Event) -> None:
        """Fail the load: neither the link nor what it brought is at fault, so nothing can make up for it."""
        event.defused = True
        if not self.done.triggered:
            self.done.fail(event.value)

    def _settle(self) -> None:
        """After a unit arrived: finish, calling off what is still under way, or go on."""
        if not self.progress.complete:
            self._pump()
        elif not self.done.triggered:
            self.done.succeed()
            for ticket, n_bytes in {ticket: n_bytes for ticket, _, n_bytes in self._fetches.values()}.items():
                ticket.cancel()
                if not ticket.cancelled:  # past the bottleneck: it arrives, and is not needed
                    self.wasted_bytes += n_bytes
            for tickets in reversed(list(self._computing.values())):
                for ticket in reversed(tickets):
                    ticket.cancel()


def _then(event: simpy.Event, callback: Callable[[simpy.Event], None]) -> None:
    assert event.callbacks is not None  # None once an event is processed: no ticket is, when it is handed out
    event.callbacks.append(callback)


def _cancelled(event: simpy.Event) -> bool:
    return isinstance(event.value, Cancelled)

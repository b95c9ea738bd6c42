"""The link's part of a load: transfers of units, which are decoded and put in place."""

from functools import partial

import simpy

from kvferry.machine.ops import Decompress, KvRef
from kvferry.pipelines.loading.placing import Placing
from kvferry.pipelines.loading.transfers import Transfers
from kvferry.pipelines.loading.under_way import UnderWay, cancelled, then
from kvferry.policies.loading.loader import Stream
from kvferry.specs.errors import KvferryError, LinkDown


class StreamPath:
    """Fetches units from the cloud."""

    def __init__(self, load: UnderWay, placing: Placing) -> None:
        self._load, self._progress, self._arrivals, self._placing = load, load.progress, load.arrivals, placing
        self._transfers = Transfers(load.pace.decoders)
        # What the loader asked for, of another level than the transfer that was being filled.
        self._postponed: Stream | None = None

    @property
    def busy(self) -> bool:
        return bool(self._transfers)

    def fill(self) -> None:
        """Hand over as many transfers as the pace allows and the loader wants."""
        while self._arrivals.link_down is None and self._has_room() and self._next():
            pass

    def drop(self, unit: int) -> None:
        """Another path won this race: stop the transfer if nothing else in it is wanted."""
        self._transfers.drop(unit, self._progress.present)

    def call_off(self) -> None:
        for n_bytes in self._transfers.call_off():
            self._arrivals.wasted_bytes += n_bytes

    def _has_room(self) -> bool:
        transfers = self._transfers
        return transfers.link_runs_dry or transfers.has_room(self._load.window_bytes, self._progress.streaming_bytes)

    def _next(self) -> bool:
        units, level = self._wanted()
        if not units:
            return False
        load, context = self._load, self._load.context
        load.moved()
        chunks = context.chunks_of(units, level)
        fetched = opened = load.machine.fetch(chunks, request=load.request)
        values = context.values_of(units)
        if context.entropy_coded:
            opened = load.machine.submit(Decompress(values), after=(fetched,), on="decompress", request=load.request)
        t, l, _ = self._progress.problem.place(units[0])
        kv = KvRef(context.sequence, context.number_of(t), l, None, values * context.model.kv_value_bytes)
        self._transfers.begin(fetched, units, chunks.n_bytes)
        then(fetched, partial(self._left_link, chunks.n_bytes))
        self._placing.place(kv, opened, partial(self._streamed, units, level))
        return True

    def _wanted(self) -> tuple[tuple[int, ...], int]:
        """Returns the units of the next transfer, and their level: what the loader asks for, and more while that is
        little. No units: it wants nothing."""
        load, pace = self._load, self._load.pace
        progress, lost = self._progress, self._arrivals.lost
        units: list[int] = []
        level, n_bytes = 0, 0.0
        enough_bytes = load.facts.seen_bytes_per_s * pace.transfer_s
        left = progress.remaining - len(self._transfers)
        # Of a transfer that carries more than one unit, some may be there by now: computing won that race.
        most_units = min(pace.transfer_units, 1 + left // pace.transfer_left if left > 0 else 1)
        while len(units) < most_units:
            wanted, self._postponed = self._postponed, None
            if wanted is None:
                wanted = load.loader.next_stream(progress, load.look())
            if wanted is None or (lost and not lost.isdisjoint(wanted.units)):
                break
            if units and wanted.level != level:
                self._postponed = wanted
                break
            level = wanted.level
            for unit, unit_bytes in zip(wanted.units, load.context.bytes_of(wanted.units, level), strict=True):
                progress.hand_over_stream(unit, unit_bytes)
                n_bytes += unit_bytes
            self._arrivals.asked(wanted.units, load.env.now, streamed=True)
            units += wanted.units
            if n_bytes >= enough_bytes:
                break
        return tuple(units), level

    def _left_link(self, n_bytes: float, event: simpy.Event) -> None:
        load, arrivals = self._load, self._arrivals
        load.moved()
        self._transfers.left_link(n_bytes)
        if isinstance(event.value, LinkDown):
            # No byte will come any more: compute the rest, if the loader or the coupling leaves a way.
            event.defused = True
            arrivals.wasted_bytes += event.value.bytes_done
            if not load.done.triggered:
                arrivals.link_down = arrivals.link_down or event.value
        elif not event.ok:
            load.fail(event)
        elif cancelled(event):
            arrivals.wasted_bytes += event.value.bytes_done
        load.pump()

    def _streamed(self, units: tuple[int, ...], level: int, event: simpy.Event) -> None:
        load = self._load
        load.moved()
        self._transfers.end(units)
        event.defused = True
        each_bytes = load.context.bytes_of(units, level)
        if isinstance(event.value, LinkDown) or cancelled(event):
            for unit, unit_bytes in zip(units, each_bytes, strict=True):
                self._progress.link_left(unit, unit_bytes)
            load.pump()
        elif load.done.triggered:
            return  # booked as wasted when the load was done
        elif isinstance(event.value, KvferryError):
            self._compute_instead(units, each_bytes, event.value)
            load.pump()
        elif not event.ok:
            load.fail(event)
        else:
            self._arrive(units, each_bytes, level)
            load.settle()

    def _arrive(self, units: tuple[int, ...], each_bytes: list[float], level: int) -> None:
        arrivals, progress, now_s = self._arrivals, self._progress, self._load.env.now
        came = []
        for unit, unit_bytes in zip(units, each_bytes, strict=True):
            if progress.present[unit]:
                arrivals.wasted_bytes += unit_bytes
            else:
                came.append(unit)
                arrivals.came(unit, now_s, streamed=True)
                arrivals.streamed_bytes += unit_bytes
            progress.streamed(unit, unit_bytes)
        if came:
            arrivals.values_by_level[level] += self._load.context.values_of(came)

    def _compute_instead(self, units: tuple[int, ...], each_bytes: list[float], error: KvferryError) -> None:
        """These came whole, and are of no use."""
        arrivals = self._arrivals
        arrivals.unusable = arrivals.unusable or error
        arrivals.units_unusable += len(units)
        for unit, unit_bytes in zip(units, each_bytes, strict=True):
            arrivals.wasted_bytes += unit_bytes
            self._progress.link_left(unit, unit_bytes)
            if not self._progress.present[unit]:
                arrivals.lost.add(unit)

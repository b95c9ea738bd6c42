"""Local storage's part of a load: units that lie there."""

from collections.abc import Callable
from functools import partial

import simpy

from kvferry.machine.ops import Extents
from kvferry.pipelines.loading.placing import Placing
from kvferry.pipelines.loading.under_way import UnderWay
from kvferry.policies.loading.loader import ReadingLoader


class ReadPath:
    """Reads units, from where `local` says that they lie. `won`: called with a unit that was read while it was still
    being fetched."""

    def __init__(
        self,
        load: UnderWay,
        placing: Placing,
        local: Callable[[tuple[int, ...]], Extents],
        won: Callable[[int], None],
    ) -> None:
        self._load, self._progress, self._placing, self._local, self._won = load, load.progress, placing, local, won

    def fill(self) -> None:
        """Hand over as many units as the pace allows and the loader wants."""
        while self._progress.units_reading < self._load.pace.reads_ahead and self._next():
            pass

    def _next(self) -> bool:
        load = self._load
        if not isinstance(load.loader, ReadingLoader):
            return False
        wanted = load.loader.next_read(self._progress, load.look())
        if wanted is None:
            return False
        load.moved()
        extents = self._local(wanted.units)
        unit_bytes = extents.n_bytes / len(wanted.units)
        for unit in wanted.units:
            self._progress.hand_over_read(unit, unit_bytes)
        came = load.machine.move(extents, "storage", "host", request=load.request)
        self._placing.place(extents, came, partial(self._was_read, wanted.units, unit_bytes))
        return True

    def _was_read(self, units: tuple[int, ...], unit_bytes: float, event: simpy.Event) -> None:
        load, progress = self._load, self._progress
        load.moved()
        if not event.ok:
            load.fail(event)
            return
        for unit in units:
            load.arrivals.units_read += not progress.present[unit]
            progress.read(unit, unit_bytes)
            if progress.streaming[unit]:
                self._won(unit)
        if not load.done.triggered:
            load.settle()

"""The last step of KV into memory: the copy to where attention can read it."""

from collections.abc import Callable

import simpy

from kvferry.machine.ops import Extents, KvRef
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.loading.under_way import UnderWay, cancelled, then


class Placing:
    """Puts KV from host memory in place. `two_ways`: link and local storage both bring KV into it.

    A copy in its queue holds up those behind it until its bytes have come. With two ways into host memory, each is
    handed over when they have: from `there` a real machine takes what came.
    """

    def __init__(self, load: UnderWay, *, two_ways: bool) -> None:
        self._load, self._two_ways = load, two_ways

    def place(self, kv: KvRef | Extents, there: Ticket, placed: Callable[[simpy.Event], None]) -> None:
        """Move KV that a ticket brings, then call `placed`."""
        load = self._load

        def move(event: simpy.Event | None) -> None:
            if event is not None and (not event.ok or cancelled(event)):
                placed(event)
            else:
                then(load.machine.move(kv, "host", "device", after=(there,), request=load.request), placed)

        if self._two_ways:
            then(there, move)
        else:
            move(None)

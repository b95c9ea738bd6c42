"""How KV gets from one tier to another: by reads, writes and copies, one after the other."""

from collections.abc import Iterable

from kvferry.machine.machine import Machine
from kvferry.machine.ops import Extents
from kvferry.machine.ticket import Ticket
from kvferry.specs.tier import Tier


def moved(
    machine: Machine,
    what: Extents,
    source: Tier,
    to: Tier,
    after: Iterable[Ticket],
    request: int | None,
    *,
    through_host: bool,
) -> Ticket:
    """`through_host`: storage is connected to the host's memory, and a copy goes on from there; otherwise the
    processor takes from where reads arrive. ValueError within a tier."""
    if source == to:
        raise ValueError(f"nothing moves within {to}")
    if source == "storage":
        read = machine.read(what, after=after, request=request)
        return machine.copy(what, to, after=(read,), request=request) if to == "device" and through_host else read
    if to == "storage":
        if source == "device" and through_host:
            after = (machine.copy(what, "host", after=after, request=request),)
        return machine.write(what, after=after, request=request)
    return machine.copy(what, to, after=after, request=request)

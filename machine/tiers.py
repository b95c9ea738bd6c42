"""How KV gets from one tier to another: by reads, writes and copies, one after the other."""

from collections.abc import Iterable
from typing import Literal

from kvferry.machine.machine import Paths
from kvferry.machine.ops import Extents, KvRef
from kvferry.machine.ticket import Ticket
from kvferry.specs.tier import Tier

Leg = Literal["read", "write", "copy"]


def legs(source: Tier, to: Tier, *, through_host: bool) -> tuple[tuple[Leg, Tier], ...]:
    """The parts of a way, in order, each with the tier that it ends in.

    `through_host`: storage is connected to the host's memory, and a copy goes on from there; otherwise the processor
    takes from where reads arrive. ValueError within a tier.
    """
    if source == to:
        raise ValueError(f"nothing moves within {to}")
    if source == "storage":
        return (("read", "host"), ("copy", to)) if to == "device" and through_host else (("read", to),)
    if to == "storage":
        return (("copy", "host"), ("write", to)) if source == "device" and through_host else (("write", to),)
    return (("copy", to),)


def moved(
    paths: Paths,
    what: KvRef | Extents,
    source: Tier,
    to: Tier,
    after: Iterable[Ticket],
    request: int | None,
    *,
    through_host: bool,
) -> Ticket:
    """The ticket of the last leg. ValueError within a tier.

    What is read for a place of its own arrives beside it, and a copy puts it there.
    """
    if source == "storage" and isinstance(what, Extents) and what.has_place:
        through_host = True
    for leg, end in legs(source, to, through_host=through_host):
        if leg == "copy":
            ticket = paths.copy(what, end, after=after, request=request)
        else:
            assert isinstance(what, Extents), "a KvRef lies in memory"
            ticket = (paths.read if leg == "read" else paths.write)(what, after=after, request=request)
        after = (ticket,)
    return ticket

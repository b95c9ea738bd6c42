"""Work that some steps of a run asked a machine for, in order: enough to work out what it would take on another device,
without choosing, looking up and laying out KV blocks again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Unpack

import simpy

from kvferry.machine.machine import Asked, MemoryPool
from kvferry.machine.ops import Extents, Op
from kvferry.machine.ticket import Ticket
from kvferry.specs.tier import Tier

if TYPE_CHECKING:
    from kvferry.pipelines.decoding.state import StageMachine

# Steps of a run that are noted, one behind the other: they are much alike once buffers are full. A run with up to
# twice as many is noted as a whole.
NOTED_STEPS = 6


def noted_steps(steps: int) -> tuple[int, int]:
    """Returns the first of a run's steps that is noted, and the one behind the last."""
    if steps <= 2 * NOTED_STEPS:
        return 0, steps
    first = min(steps // 2, steps - 1 - NOTED_STEPS)
    return first, first + NOTED_STEPS


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """Byte ranges that move from tier to tier."""

    extents: Extents
    source: Tier
    to: Tier


@dataclass(slots=True, eq=False)
class Entry:
    """A piece of work, the entries that it comes after, by their places, and whether what comes next in the list was
    handed over once it had ended."""

    work: Op | Move
    after: tuple[int, ...]
    awaited: bool = False


@dataclass(eq=False)
class Notes:
    """Work in the order in which it was handed over."""

    entries: list[Entry] = field(default_factory=list)
    # Places by ticket; tickets are kept, so that none has the identity of one before.
    _places: dict[Ticket, int] = field(default_factory=dict)

    def add(self, work: Op | Move, after: Iterable[Ticket], ticket: Ticket) -> None:
        """Notes work, which comes after what was noted before of these tickets."""
        self.entries.append(Entry(work, tuple(self._places[one] for one in after if one in self._places)))
        self._places[ticket] = len(self.entries) - 1

    def awaited(self, ticket: Ticket) -> None:
        """Notes that what comes next is handed over once this has ended."""
        if ticket in self._places:
            self.entries[self._places[ticket]].awaited = True

    def close(self) -> None:
        """No more is noted: lets go of the tickets."""
        self._places.clear()


@dataclass(frozen=True)
class Noted:
    """``prefill``: until all KV lies where it belongs; ``steps``: a few decoding steps, one behind the other."""

    prefill: Notes = field(default_factory=Notes)
    steps: Notes = field(default_factory=Notes)


class NotingMachine:
    """A machine that notes what it is asked for."""

    def __init__(self, machine: StageMachine, notes: Notes) -> None:
        self.machine, self._notes = machine, notes

    @property
    def env(self) -> simpy.Environment:
        return self.machine.env

    def submit(self, op: Op, **asked: Unpack[Asked]) -> Ticket:
        # Read twice.
        asked["after"] = after = tuple(asked.get("after", ()))
        ticket = self.machine.submit(op, **asked)
        self._notes.add(op, after, ticket)
        return ticket

    def move(self, what: Extents, source: Tier, to: Tier, *, after: Iterable[Ticket] = ()) -> Ticket:
        after = tuple(after)
        ticket = self.machine.move(what, source, to, after=after)
        self._notes.add(Move(what, source, to), after, ticket)
        return ticket

    def memory_of(self, tier: Tier) -> MemoryPool:
        return self.machine.memory_of(tier)

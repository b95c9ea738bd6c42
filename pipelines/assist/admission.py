"""Slots of the instances that decode, with memory for KV: requests get them first come, first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import simpy

from kvferry.machine.machine import Lease, Refused
from kvferry.pipelines.assist.instance import Instance
from kvferry.policies.assist.serving import Serving, Slots
from kvferry.specs.errors import OutOfMemory


@dataclass(frozen=True, slots=True)
class Place:
    """A slot of an instance, by the instance's number, and memory there for this many tokens."""

    instance: Instance
    number: int
    lease: Lease
    tokens: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Fires with a Place for this many tokens. ``back``: its memory is there already, and its slot was parked."""

    tokens: int
    granted: simpy.Event
    back: Place | None = None


class Admission:
    """A request waits until an instance has a free slot, has memory for its KV, and keeps its time per token with one
    request more.

    One that holds a slot and does nothing with it is ``idle``: it is told when another needs the slot, and may ``park``
    it, which keeps its memory; or when another needs the memory."""

    def __init__(self, env: simpy.Environment, instances: Sequence[Instance], serving: Serving) -> None:
        self.slots = Slots(len(instances), serving)
        self._env, self._instances = env, instances
        self._waiting: deque[_Wanted] = deque()
        # By what `wanted` has returned to those who are idle, the first one first: what fires when another needs what
        # they hold; and those whose slots are parked, with what fires when each has one again, if it wants one.
        self._idle: dict[simpy.Event, simpy.Event] = {}
        self._parked: dict[simpy.Event, simpy.Event | None] = {}

    def wanted(self, tokens: int) -> simpy.Event:
        """Fires with a Place for a request of this many tokens, prompt and answer; fails with OutOfMemory where none
        will ever do."""
        return self._wait(_Wanted(tokens, self._env.event()))

    def forgo(self, granted: simpy.Event) -> None:
        """Take back what `wanted` has returned, whether it has fired or not."""
        self._idle.pop(granted, None)
        parked = granted in self._parked
        back = self._parked.pop(granted, None)
        if not granted.triggered or back is not None:
            self._waiting = deque(one for one in self._waiting if one.granted not in (granted, back))
        if granted.triggered and granted.ok:
            place: Place = granted.value
            if not parked or (back is not None and back.triggered):
                self._give_slot(place)
            place.instance.free(place.lease)
        self.admit()

    def idle(self, granted: simpy.Event) -> simpy.Event:
        """Whoever was granted a place does nothing with it. Fires when another needs it: one is asked at a time, the
        first that was idle first; of those whose slots are parked only where memory is lacking."""
        needed = self._idle[granted] = self._env.event()
        self.admit()
        return needed

    def busy(self, granted: simpy.Event) -> None:
        """It is idle no more."""
        self._idle.pop(granted, None)

    def park(self, granted: simpy.Event) -> None:
        """Give the slot to others. The memory stays."""
        self._parked[granted] = None
        self._give_slot(granted.value)
        self.admit()

    def back(self, granted: simpy.Event) -> simpy.Event:
        """Fires when one that was parked has a slot again."""
        place: Place = granted.value
        again = self._parked[granted] = self._env.event()
        assert again.callbacks is not None
        again.callbacks.append(lambda _: self._parked.pop(granted, None))
        return self._wait(_Wanted(place.tokens, again, place))

    def _wait(self, wanted: _Wanted) -> simpy.Event:
        self._waiting.append(wanted)
        self.admit()
        return wanted.granted

    def _give_slot(self, place: Place) -> None:
        self.slots.give_back(place.number)
        place.instance.holders.leave(place.tokens)

    def admit(self) -> None:
        """Serve those who wait, as far as what has become free allows."""
        while self._waiting and (found := self._found(wanted := self._waiting[0])) is not None:
            self._waiting.popleft()
            if isinstance(found, Place):
                found.instance.holders.take(wanted.tokens)
                wanted.granted.succeed(found)
            else:
                # It is told, not those behind it.
                wanted.granted.fail(OutOfMemory(f"an instance of the cloud: {found}"))

    def _found(self, wanted: _Wanted) -> Place | Refused | None:
        """Returns a place, what will always refuse one, or None where it has to be waited for: one of the idle then
        hears of that."""
        leases: dict[int, Lease] = {}
        # What instances refuse, and what those do that hold nothing else.
        refused, never = list[Refused](), list[Refused]()

        def fits(number: int) -> bool:
            instance = self._instances[number]
            if not instance.is_up or not instance.holders.bears(wanted.tokens):
                return False
            if wanted.back is not None:
                leases[number] = wanted.back.lease
                return number == wanted.back.number
            lease = instance.kv.reserve(wanted.tokens)
            if isinstance(lease, Refused):
                (refused if instance.kv.is_used else never).append(lease)
                return False
            leases[number] = lease
            return True

        if (number := self.slots.take(fits)) is not None:
            return Place(self._instances[number], number, leases[number], wanted.tokens)
        if never:
            return never[0]
        if not any(needed.triggered for needed in self._idle.values()):
            idle = (needed for granted, needed in self._idle.items() if refused or granted not in self._parked)
            if (first := next(idle, None)) is not None:
                first.succeed()
        return None

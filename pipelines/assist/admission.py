"""Slots of the instances that decode, with memory for KV: requests get them first come, first served."""

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


class Admission:
    """A request waits until an instance has a free slot, has memory for its KV, and keeps its time per token with one
    request more."""

    def __init__(self, env: simpy.Environment, instances: Sequence[Instance], serving: Serving) -> None:
        self.slots = Slots(len(instances), serving)
        self._env, self._instances = env, instances
        self._waiting: deque[tuple[int, simpy.Event]] = deque()
        # By what `wanted` has returned to those who hold a slot and do nothing with it, the first one first: what fires
        # when another needs it.
        self._idle: dict[simpy.Event, simpy.Event] = {}

    def wanted(self, tokens: int) -> simpy.Event:
        """Fires with a Place for a request of this many tokens, prompt and answer; fails with OutOfMemory where none
        will ever do."""
        granted = self._env.event()
        self._waiting.append((tokens, granted))
        self.admit()
        return granted

    def forgo(self, granted: simpy.Event) -> None:
        """Take back what `wanted` has returned, whether it has fired or not."""
        self._idle.pop(granted, None)
        if not granted.triggered:
            self._waiting = deque(one for one in self._waiting if one[1] is not granted)
        elif granted.ok:
            place: Place = granted.value
            self.slots.give_back(place.number)
            place.instance.leave(place.tokens)
            place.instance.free(place.lease)
        self.admit()

    def idle(self, granted: simpy.Event) -> simpy.Event:
        """Whoever was granted a place does nothing with it. Fires when another needs it: one is asked at a time, the
        first that was idle first."""
        needed = self._idle[granted] = self._env.event()
        self.admit()
        return needed

    def busy(self, granted: simpy.Event) -> None:
        """It is idle no more."""
        self._idle.pop(granted, None)

    def admit(self) -> None:
        """Serve those who wait, as far as what has become free allows."""
        while self._waiting:
            tokens, granted = self._waiting[0]
            leases: dict[int, Lease] = {}
            # By instances that hold nothing else.
            never: list[Refused] = []

            def fits(
                number: int, tokens: int = tokens, leases: dict[int, Lease] = leases, never: list[Refused] = never
            ) -> bool:
                instance = self._instances[number]
                if not instance.bears(tokens):
                    return False
                lease = instance.reserve(tokens)
                if isinstance(lease, Refused):
                    if not instance.holds:
                        never.append(lease)
                    return False
                leases[number] = lease
                return True

            number = self.slots.take(fits)
            if number is None and not never:
                if not any(needed.triggered for needed in self._idle.values()):
                    for needed in [*self._idle.values()][:1]:
                        needed.succeed()
                return
            self._waiting.popleft()
            if number is None:
                # It is told, not those behind it.
                granted.fail(OutOfMemory(f"an instance of the cloud: {never[0]}"))
                continue
            self._instances[number].take(tokens)
            granted.succeed(Place(self._instances[number], number, leases[number], tokens))

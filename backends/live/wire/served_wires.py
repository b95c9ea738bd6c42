"""The wires to all devices that have come to a reception, or will."""

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator

from kvferry.backends.live.wire.served_wire import ServedWire
from kvferry.machine.channel import ChannelCut

# Channels at once. Each takes two connections while something is said. The one whose device has been silent for the
# longest, with nothing asked, makes room for a new one.
MOST_CHANNELS = 100
# A device that comes again waits so long for the end of its last channel to be known, looking so often.
_KNOWN_WITHIN_S, _LOOK_S = 2.0, 0.02

# Of a machine, and of a device that comes to it.
Names = tuple[str, str]


class NotAdmitted(Exception):
    """A device cannot come in: why, and the status of the answer that says so."""


class ServedWires:
    """One wire for each device and machine, and one more where a device has come again before the role of its broken
    channel has ended. `waits_since_s`: since when the channel of a wire waits for its device; None: it does not."""

    def __init__(self, make: Callable[[str], ServedWire], waits_since_s: Callable[[Names], float | None]) -> None:
        self._make, self._waits_since_s = make, waits_since_s
        self._wires: dict[Names, ServedWire] = {}
        # Of devices that have come again.
        self._next: dict[Names, ServedWire] = {}
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[ServedWire]:
        return iter([*self._wires.values(), *self._next.values()])

    def of(self, names: Names) -> ServedWire:
        """The wire to a device, whether or not it has come."""
        with self._lock:
            return self._wires.setdefault(names, self._make(names[1]))

    def leave(self, names: Names) -> bool:
        """The role is done with a device. Returns whether one of that name has come again; its wire is the one now."""
        with self._lock:
            wire = self._wires.get(names)
            if wire is None or wire.over or not wire.taken:
                self._wires.pop(names, None)
            else:
                wire.left = True
            again = self._next.pop(names, None)
            if again is not None:
                self._wires[names] = again
            return again is not None

    # --- in the server's thread ----------------------------------------------------------------------------------

    async def admit(self, names: Names, caller: str) -> tuple[ServedWire, bool]:
        """Let a device in, with the secret of its process; returns its wire, and whether the role of its last channel
        has yet to end. Raises NotAdmitted."""
        for last in (self._wires.get(names), self._next.get(names)):
            if caller and last is not None and secrets.compare_digest(last.caller.encode(), caller.encode()):
                # It comes before the end of its connection is known here, which takes minutes where a network has
                # changed.
                last.fail(ChannelCut(f"{last.peer} came again"))
        await self._last_one_broken(names)
        with self._lock:
            wire = self._wires.get(names)
            again = wire is not None and wire.over
            if wire is None or again:
                if names in self._next and not self._next[names].over:
                    raise NotAdmitted("a device of this name is here already", 409)
                if not self._has_room():
                    raise NotAdmitted(f"{MOST_CHANNELS} devices are here already", 503)
                wire = self._make(names[1])
                (self._next if again else self._wires)[names] = wire
            if wire.taken:
                raise NotAdmitted("a device of this name is here already", 409)
            wire.taken, wire.caller = True, caller
        return wire, again

    def ended(self, names: Names, wire: ServedWire) -> None:
        """The event stream to a device has ended."""
        wire.stream_ended()
        with self._lock:
            if wire.left and self._wires.get(names) is wire:
                del self._wires[names]

    async def _last_one_broken(self, names: Names) -> None:
        """Returns when no device of this name is here, as far as is known, or not for long."""
        until_s = asyncio.get_running_loop().time() + _KNOWN_WITHIN_S
        while asyncio.get_running_loop().time() < until_s:
            wire, again = self._wires.get(names), self._next.get(names)
            if (again is None or again.over) and (wire is None or wire.over or not wire.taken):
                return
            await asyncio.sleep(_LOOK_S)

    def _has_room(self) -> bool:
        """Whether one more device may come: also where the one that has been silent for the longest goes for it."""
        if len(self._wires) + len(self._next) >= 2 * MOST_CHANNELS:
            # Roles that have not yet heard of their end.
            return False
        alive = {names: wire for names, wire in self._wires.items() if not wire.failed}
        if len(alive) + len(self._next) < MOST_CHANNELS:
            return True
        silent = [(since_s, names) for names in alive if (since_s := self._waits_since_s(names)) is not None]
        if not silent:
            return False
        longest = alive[min(silent)[1]]
        longest.fail(ChannelCut(f"{longest.peer} was silent, and made room for another device"))
        return True

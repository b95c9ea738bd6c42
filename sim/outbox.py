"""What one end of a channel sends, on its way to the other's inbox."""

from collections.abc import Callable
from typing import Any

import simpy

from kvferry.machine.channel import Streamed
from kvferry.sim.carry import Carry
from kvferry.sim.inbox import Inbox


class Outbox:
    """One direction of a channel: brings messages to the peer's inbox in the order in which they were sent.

    `names`: of this side and of the peer, for `carry`.
    """

    def __init__(self, env: simpy.Environment, inbox: Inbox, carry: Carry, names: tuple[str, str]) -> None:
        self.env, self.inbox, self.carry, self.names = env, inbox, carry, names
        # When the last message of this side arrived; and what fires with the end of a stream whose last parts are late.
        self._arrived_s = 0.0
        self._ending: simpy.Event | None = None

    def send(self, message: Any, n_bytes: float) -> simpy.Event:
        """Send a message. The event fires when it has arrived."""
        return self.cross(n_bytes, lambda crossed: self.arrive(crossed, message))

    def cross(self, n_bytes: float, then: Callable[[simpy.Event], None]) -> simpy.Event:
        """Calls `then` first when this many bytes, sent now, have crossed, or cannot."""
        crossing = self.carry(*self.names, n_bytes)
        assert crossing.callbacks is not None
        crossing.callbacks.append(then)
        return crossing

    def hang_up(self) -> None:
        """Let the peer know that this side has gone. Where the link has ended, it learns it by itself."""
        self.cross(0.0, self._hung_up)

    def _hung_up(self, crossed: simpy.Event) -> None:
        if not crossed.ok:
            crossed.defused = True
        self.inbox.cut(f"{self.names[0]} went away without saying goodbye")

    def arrive(self, crossed: simpy.Event, message: Any) -> None:
        """Put a message that has crossed into the inbox. It does not overtake a stream whose last parts are late."""
        if self._ending is not None and (behind := self._ending.callbacks) is not None:
            behind.append(lambda _: self.arrive(crossed, message))
        elif crossed.ok:
            self._arrived_s = self.env.now
            self.inbox.put(message)
        else:
            crossed.defused = True  # a sender that waits for it raises the error; the message is lost

    def arrive_streamed(self, crossed: simpy.Event, streamed: Streamed) -> None:
        """The same of a stream, some of whose parts may be still to come."""
        if self._ending is not None and (behind := self._ending.callbacks) is not None:
            behind.append(lambda _: self.arrive_streamed(crossed, streamed))
            return
        streamed = self.behind(streamed)
        late_s = max(streamed.times_s, default=0.0) - self.env.now
        if not crossed.ok or late_s <= 0:
            self.arrive(crossed, streamed)
            return
        self._ending = there = self.env.timeout(late_s)
        assert there.callbacks is not None
        there.callbacks.append(lambda there: self.arrive(there, streamed))

    def behind(self, streamed: Streamed) -> Streamed:
        """The same parts, none before the last message."""
        times_s, before_s = streamed.times_s, self._arrived_s
        if times_s and min(times_s) < before_s:
            return Streamed([max(before_s, time_s) for time_s in times_s], streamed.values)
        return streamed

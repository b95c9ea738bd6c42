"""Conversations between machines of one simulated world."""

from collections.abc import Callable
from typing import Any

import simpy

# How a message of so many bytes crosses from one named machine to another: fires when it has arrived.
Carry = Callable[[str, str, float], simpy.Event]


class Switchboard:
    """Connects machines by name. When two machines open towards each other, they hold the two ends of one channel.

    Without ``carry`` messages arrive at once; with it, when its event fires. Messages of one direction must
    arrive in the order in which they were sent: `carry` keeps it.
    """

    def __init__(self, env: simpy.Environment, carry: Carry | None = None) -> None:
        self._env = env
        self._carry = carry or (lambda _from, _to, _n_bytes: env.timeout(0))
        self._inboxes: dict[tuple[str, str], simpy.Store] = {}

    def open(self, name: str, peer: str) -> "ChannelEnd":
        """The end that `name` holds of its channel with `peer`."""
        return ChannelEnd(
            self._inbox(peer, name), self._inbox(name, peer), lambda n_bytes: self._carry(name, peer, n_bytes)
        )

    def _inbox(self, sender: str, receiver: str) -> simpy.Store:
        return self._inboxes.setdefault((sender, receiver), simpy.Store(self._env))


class ChannelEnd:
    """One end: a machine.Channel."""

    def __init__(self, incoming: simpy.Store, outgoing: simpy.Store, carry: Callable[[float], simpy.Event]) -> None:
        self._incoming, self._outgoing, self._carry = incoming, outgoing, carry
        self._closed = False

    def send(self, message: Any, n_bytes: float) -> simpy.Event:
        """Send a message. The event fires when it has arrived. Raises RuntimeError on a closed channel, TypeError for
        None."""
        if self._closed:
            raise RuntimeError("this end of the channel is closed")
        if message is None:
            raise TypeError("None says that a channel has ended; it cannot be sent")
        return self._deliver(message, n_bytes)

    def receive(self) -> simpy.Event:
        """The event fires with the next message, or, once the peer has closed and all were received, with None every
        time."""
        message = self._incoming.get()
        assert message.callbacks is not None
        message.callbacks.append(self._stay_ended)
        return message

    def _stay_ended(self, message: simpy.Event) -> None:
        if message.value is None:
            self._incoming.put(None)

    def close(self) -> None:
        """Close this end, after all messages that were sent. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._deliver(None, 0.0)

    def _deliver(self, message: Any, n_bytes: float) -> simpy.Event:
        crossing = self._carry(n_bytes)
        assert crossing.callbacks is not None
        crossing.callbacks.append(lambda crossed: self._arrive(crossed, message))
        return crossing

    def _arrive(self, crossed: simpy.Event, message: Any) -> None:
        if crossed.ok:
            self._outgoing.put(message)
        else:
            crossed.defused = True  # a sender that waits for it raises the error; the message is lost

"""Conversations between machines of one simulated world."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import simpy

from kvferry.machine.channel import ChannelStalled, Each, Streamed
from kvferry.sim.carry import AtOnce, Carry
from kvferry.sim.inbox import Inbox
from kvferry.sim.outbox import Outbox
from kvferry.sim.streams import CarriedStream, SimStream


class Switchboard:
    """Connects machines by name. When two machines open towards each other, they hold the two ends of one channel.

    Without ``carry`` messages arrive at once; with it, when its event fires. Messages of one direction must
    arrive in the order in which they were sent: `carry` keeps it. A channel that one of them has broken is replaced
    by the next one that either opens, and what is under way in it is lost.
    """

    def __init__(self, env: simpy.Environment, carry: Carry | None = None) -> None:
        self._env = env
        self._carry = carry or AtOnce(env)
        self._inboxes: defaultdict[tuple[str, str], Inbox] = defaultdict(lambda: Inbox(env))

    def open(self, name: str, peer: str) -> ChannelEnd:
        """The end that `name` holds of its channel with `peer`."""
        incoming, outgoing = self._inboxes[peer, name], self._inboxes[name, peer]

        def broken() -> None:
            if self._inboxes.get((peer, name)) is incoming:
                del self._inboxes[peer, name], self._inboxes[name, peer]

        return ChannelEnd(self._env, incoming, Outbox(self._env, outgoing, self._carry, (name, peer)), peer, broken)


class ChannelEnd:
    """One end: a machine.Channel."""

    def __init__(
        self, env: simpy.Environment, incoming: Inbox, outgoing: Outbox, peer: str, broken: Callable[[], None]
    ) -> None:
        self._env, self._incoming, self._outgoing, self._peer, self._broken = env, incoming, outgoing, peer, broken
        self.gone = incoming.gone
        self._closed = False

    def send(self, message: Any, n_bytes: float) -> simpy.Event:
        """Send a message. The event fires when it has arrived. Raises RuntimeError on a closed channel, TypeError for
        None."""
        if self._closed:
            raise RuntimeError("this end of the channel is closed")
        if message is None:
            raise TypeError("None says that a channel has ended; it cannot be sent")
        return self._outgoing.send(message, n_bytes)

    def stream(self, n_bytes: float) -> SimStream | CarriedStream:
        """A stream of parts of this many bytes each."""
        if self._closed:
            raise RuntimeError("this end of the channel is closed")
        to = self._outgoing
        parts = to.carry.stream(*to.names, n_bytes)
        stream = to.inbox.stream = SimStream(to, n_bytes) if parts is None else CarriedStream(to, parts)
        return stream

    @property
    def heard_s(self) -> float:
        stream = self._incoming.stream
        return -math.inf if stream is None else stream.heard_s(float(self._env.now))

    def receive(self, each: Each | None = None, patience_s: float | None = None) -> simpy.Event:
        """The event fires with the next message, or, once the peer has closed and all were received, with None every
        time. A part of a stream counts for `patience_s` from when it was sent."""
        message = self._incoming.get()
        assert message.callbacks is not None
        message.callbacks.append(self._stay_ended)
        if each is not None:
            message.callbacks.append(lambda message: self._tell_parts(message, each))
        if patience_s is not None and not message.triggered:
            self._wait(message, patience_s, patience_s)
        return message

    def _tell_parts(self, message: simpy.Event, each: Each) -> None:
        if message.ok and isinstance(message.value, Streamed):
            streamed: Streamed | None = message.value
        elif message.ok and message.value is not None:
            # What was sent before the stream.
            return
        else:
            streamed, self._incoming.broken_off = self._incoming.broken_off, None
        if streamed is not None and len(streamed.values):
            each(streamed.times_s, streamed.values)

    def _stay_ended(self, message: simpy.Event) -> None:
        if message.ok and message.value is None:
            self._incoming.put(None)

    def _wait(self, message: simpy.Event, wait_s: float, patience_s: float) -> None:
        waited = self._env.timeout(wait_s)
        assert waited.callbacks is not None
        waited.callbacks.append(lambda _: self._waited(message, patience_s))

    def _waited(self, message: simpy.Event, patience_s: float) -> None:
        if message.triggered:
            return
        stream, now_s = self._incoming.stream, self._env.now
        last_s = -math.inf if stream is None else stream.last_s
        if last_s + patience_s > now_s:
            self._wait(message, last_s + patience_s - now_s, patience_s)
            return
        self._incoming.give_up(message)
        self.hang_up()
        message.fail(ChannelStalled(f"nothing has come from {self._peer} for {patience_s:g} s"))

    def close(self) -> None:
        """Close this end, after all messages that were sent. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            if self._outgoing.inbox.stream is not None:
                self._outgoing.inbox.stream.cut()
            self._outgoing.send(None, 0.0)

    def hang_up(self) -> None:
        if self._incoming.gone.triggered:
            return
        self._broken()
        if self._incoming.stream is not None:
            self._incoming.stream.cut()
            self._incoming.drop_after(self._env.now)
        self._incoming.cut(f"the channel with {self._peer} was ended")
        self._outgoing.hang_up()

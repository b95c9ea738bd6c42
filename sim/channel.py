"""Conversations between machines of one simulated world."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import simpy

from kvferry.machine.channel import ChannelCut, ChannelStalled, Each, Streamed
from kvferry.sim.carry import AtOnce, Carry, Parts


class Switchboard:
    """Connects machines by name. When two machines open towards each other, they hold the two ends of one channel.

    Without ``carry`` messages arrive at once; with it, when its event fires. Messages of one direction must
    arrive in the order in which they were sent: `carry` keeps it. A channel that one of them has broken is replaced
    by the next one that either opens, and what is under way in it is lost.
    """

    def __init__(self, env: simpy.Environment, carry: Carry | None = None) -> None:
        self._env = env
        self._carry = carry or AtOnce(env)
        self._inboxes: dict[tuple[str, str], _Inbox] = {}

    def open(self, name: str, peer: str) -> ChannelEnd:
        """The end that `name` holds of its channel with `peer`."""
        incoming, outgoing = self._inbox(peer, name), self._inbox(name, peer)

        def broken() -> None:
            if self._inboxes.get((peer, name)) is incoming:
                del self._inboxes[peer, name], self._inboxes[name, peer]

        return ChannelEnd(self._env, incoming, outgoing, self._carry, (name, peer), broken)

    def _inbox(self, sender: str, receiver: str) -> _Inbox:
        inbox = self._inboxes.get((sender, receiver))
        if inbox is None:
            inbox = self._inboxes[sender, receiver] = _Inbox(self._env)
        return inbox


class _Inbox:
    """What has arrived and was not received, and who waits: as simpy.Store, with one event for a message instead of
    two."""

    __slots__ = ("_env", "_messages", "_waiting", "broken_off", "gone", "stream")

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        # The last one that was opened towards this end, and what came of one that broke off.
        self.stream: SimStream | None = None
        self.broken_off: Streamed | None = None
        # Fires when who receives here has learnt that the channel is broken.
        self.gone = env.event()
        self._messages: deque[Any] = deque()
        self._waiting: deque[simpy.Event] = deque()

    def put(self, message: Any) -> None:
        if self._waiting:
            self._waiting.popleft().succeed(message)
        else:
            self._messages.append(message)

    def get(self) -> simpy.Event:
        taken = self._env.event()
        if self._messages:
            taken.succeed(self._messages.popleft())
        elif self.gone.triggered:
            taken.fail(self.gone.value)
        else:
            self._waiting.append(taken)
        return taken

    def give_up(self, taken: simpy.Event) -> None:
        """Let nothing more come to who waits by this."""
        self._waiting.remove(taken)

    def drop_after(self, time_s: float) -> None:
        """Of a stream that broke off, what would have arrived later does not."""
        if self.broken_off is not None:
            times_s = self.broken_off.times_s
            there = sum(time <= time_s for time in times_s)
            self.broken_off = Streamed(times_s[:there], self.broken_off.values[:there])

    def cut(self, why: str) -> None:
        """Nothing more comes to anybody."""
        if not self.gone.triggered:
            # Its value is what every receiver fails with.
            self.gone.succeed(ChannelCut(why))
        for taken in self._waiting:
            taken.fail(ChannelCut(why))
            # Whoever waits for it gets its failure; it may be gone.
            taken.defused = True
        self._waiting.clear()


class ChannelEnd:
    """One end: a machine.Channel."""

    def __init__(
        self,
        env: simpy.Environment,
        incoming: _Inbox,
        outgoing: _Inbox,
        carry: Carry,
        names: tuple[str, str],
        broken: Callable[[], None],
    ) -> None:
        self.env, self._incoming, self._outgoing, self._carry, self._names = env, incoming, outgoing, carry, names
        self._broken, self.gone = broken, incoming.gone
        self._closed = False
        # When the last message of this side arrived; and what fires with the end of a stream whose last parts are late.
        self._arrived_s = 0.0
        self._ending: simpy.Event | None = None

    def send(self, message: Any, n_bytes: float) -> simpy.Event:
        """Send a message. The event fires when it has arrived. Raises RuntimeError on a closed channel, TypeError for
        None."""
        if self._closed:
            raise RuntimeError("this end of the channel is closed")
        if message is None:
            raise TypeError("None says that a channel has ended; it cannot be sent")
        return self._deliver(message, n_bytes)

    def stream(self, n_bytes: float) -> SimStream:
        """A stream of parts of this many bytes each. It crosses by arithmetic, not by an event for every part."""
        if self._closed:
            raise RuntimeError("this end of the channel is closed")
        stream = self._outgoing.stream = SimStream(self, n_bytes)
        return stream

    @property
    def now_s(self) -> float:
        return float(self.env.now)

    @property
    def heard_s(self) -> float:
        stream = self._incoming.stream
        return -math.inf if stream is None else stream.heard_s(self.now_s)

    def expected_s(self, sent_s: Sequence[float], n_bytes: float, behind_s: float) -> Sequence[float]:
        """When parts that were sent at these times are expected at the peer; for a SimStream."""
        return self._carry.expected_s(*self._names, sent_s, n_bytes, behind_s)

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
        waited = self.env.timeout(wait_s)
        assert waited.callbacks is not None
        waited.callbacks.append(lambda _: self._waited(message, patience_s))

    def _waited(self, message: simpy.Event, patience_s: float) -> None:
        if message.triggered:
            return
        stream, now_s = self._incoming.stream, self.env.now
        last_s = -math.inf if stream is None else stream.last_s
        if last_s + patience_s > now_s:
            self._wait(message, last_s + patience_s - now_s, patience_s)
            return
        self._incoming.give_up(message)
        self.hang_up()
        message.fail(ChannelStalled(f"nothing has come from {self._names[1]} for {patience_s:g} s"))

    def close(self) -> None:
        """Close this end, after all messages that were sent. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            if self._outgoing.stream is not None:
                self._outgoing.stream.cut()
            self._deliver(None, 0.0)

    def hang_up(self) -> None:
        if self._incoming.gone.triggered:
            return
        here, peer = self._names
        self._broken()
        if self._incoming.stream is not None:
            self._incoming.stream.cut()
            self._incoming.drop_after(self.env.now)
        self._incoming.cut(f"the channel with {peer} was ended")
        # Where the link has ended, the peer learns it by itself.
        crossing = self._carry(here, peer, 0.0)
        assert crossing.callbacks is not None
        crossing.callbacks.append(self._hung_up)

    def _hung_up(self, crossed: simpy.Event) -> None:
        if not crossed.ok:
            crossed.defused = True
        self._outgoing.cut(f"{self._names[0]} went away without saying goodbye")

    def deliver_stream(self, sent_s: Sequence[float], values: Sequence[Any], n_bytes: float) -> None:
        """Send what was streamed at these times, the last of them now; for a SimStream."""
        arrivals_s = self._carry.arrivals_s(*self._names, sent_s, n_bytes)
        # Behind what was sent before, which it cannot overtake.
        crossing = self._carry(*self._names, 0.0)
        assert crossing.callbacks is not None
        crossing.callbacks.append(lambda crossed: self._arrive_streamed(crossed, arrivals_s, values))

    def parts(self, n_bytes: float) -> Parts | None:
        """What carries parts of this many bytes one by one; for a SimStream."""
        return self._carry.stream(*self._names, n_bytes)

    def deliver_carried(self, parts: Parts) -> None:
        """A stream has ended whose parts cross one by one; for a SimStream."""

        def arrived(crossed: simpy.Event) -> None:
            parts.ended()
            self._arrive(crossed, Streamed(parts.times_s, parts.values))

        # It comes behind them.
        crossing = self._carry(*self._names, 0.0)
        assert crossing.callbacks is not None
        crossing.callbacks.append(arrived)

    def broke_off(self, parts: Parts) -> None:
        """Tells the receiver which parts had arrived when the stream broke off."""
        parts.look()
        self._outgoing.broken_off = Streamed(parts.times_s, parts.values)

    def deliver_parts(self, sent_s: Sequence[float], values: Sequence[Any], n_bytes: float) -> None:
        """Of a stream that has broken off: they are told before what comes next, or before that nothing does."""
        arrivals_s = self._carry.arrivals_s(*self._names, sent_s, n_bytes)
        self._outgoing.broken_off = Streamed([max(self._arrived_s, time_s) for time_s in arrivals_s], values)

    def _arrive_streamed(self, crossed: simpy.Event, arrivals_s: Sequence[float], values: Sequence[Any]) -> None:
        if (ending := self._callbacks_of_ending) is not None:
            ending.append(lambda _: self._arrive_streamed(crossed, arrivals_s, values))
            return
        before_s = self._arrived_s
        late_s = max(arrivals_s, default=0.0) - self.env.now
        if arrivals_s and min(arrivals_s) < before_s:
            arrivals_s = [max(before_s, time_s) for time_s in arrivals_s]
        streamed = Streamed(arrivals_s, values)
        if not crossed.ok or late_s <= 0:
            self._arrive(crossed, streamed)
            return
        self._ending = there = self.env.timeout(late_s)
        assert there.callbacks is not None
        there.callbacks.append(lambda there: self._arrive(there, streamed))

    @property
    def _callbacks_of_ending(self) -> list[Callable[[simpy.Event], None]] | None:
        """What comes behind a stream does not overtake it; None: none is late."""
        return None if self._ending is None else self._ending.callbacks

    def _deliver(self, message: Any, n_bytes: float) -> simpy.Event:
        crossing = self._carry(*self._names, n_bytes)
        assert crossing.callbacks is not None
        crossing.callbacks.append(lambda crossed: self._arrive(crossed, message))
        return crossing

    def _arrive(self, crossed: simpy.Event, message: Any) -> None:
        if (ending := self._callbacks_of_ending) is not None:
            ending.append(lambda _: self._arrive(crossed, message))
        elif crossed.ok:
            self._arrived_s = self.env.now
            self._outgoing.put(message)
        else:
            crossed.defused = True  # a sender that waits for it raises the error; the message is lost


class SimStream:
    """A machine.MessageStream that keeps when each part was sent, and crosses when it ends; or whose parts cross one by
    one."""

    __slots__ = ("_end", "_ended", "_env", "_expected_s", "_n_bytes", "_parts", "_said", "_sent_s")

    def __init__(self, end: ChannelEnd, n_bytes: float) -> None:
        self._end, self._n_bytes, self._parts = end, n_bytes, end.parts(n_bytes)
        self._env = end.env
        self._ended = False
        self._sent_s: list[float] = []
        # What parts carried, by number, where they carried anything: modelled tokens say nothing.
        self._said: dict[int, Any] = {}
        # When the first of them arrive, of those that anybody has asked for.
        self._expected_s: list[float] = []

    def heard_s(self, now_s: float) -> float:
        """When the last part that has arrived by now did; long ago, before there was any."""
        if self._parts is not None:
            self._parts.look()
            return self._parts.times_s[-1] if self._parts.times_s else -math.inf
        behind_s = self._expected_s[-1] if self._expected_s else -math.inf
        if sent_s := self._sent_s[len(self._expected_s) :]:
            self._expected_s += self._end.expected_s(sent_s, self._n_bytes, behind_s)
        there = bisect_right(self._expected_s, now_s)
        return self._expected_s[there - 1] if there else -math.inf

    @property
    def last_s(self) -> float:
        """When the last part was sent; long ago, before there was any."""
        return self._sent_s[-1] if self._sent_s else -math.inf

    def put(self, value: Any = None) -> None:
        self._sent_s.append(float(self._env.now))
        if self._parts is not None:
            self._parts.put(value)
        elif value is not None:
            self._said[len(self._sent_s) - 1] = value

    @property
    def _values(self) -> list[Any]:
        values: list[Any] = [None] * len(self._sent_s)
        for n, value in self._said.items():
            values[n] = value
        return values

    def end(self) -> None:
        self._ended = True
        if self._parts is not None:
            self._end.deliver_carried(self._parts)
        else:
            self._end.deliver_stream(self._sent_s, self._values, self._n_bytes)

    def cut(self) -> None:
        """It has broken off, if it has not ended: who receives is told the parts that were sent."""
        if self._ended:
            return
        self._ended = True
        if self._parts is not None:
            self._end.broke_off(self._parts)
        else:
            self._end.deliver_parts(self._sent_s, self._values, self._n_bytes)

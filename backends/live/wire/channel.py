"""One end of a channel over a wire, whatever the wire is."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import simpy

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.thread_work import LiveWork
from kvferry.backends.live.engine.worker import Worker
from kvferry.backends.live.wire.event import END, GOODBYE, MESSAGE, PART, Event, written
from kvferry.machine.channel import ChannelBroken, ChannelCut, ChannelStalled, Each, Streamed
from kvferry.machine.ticket import Ticket
from kvferry.specs.errors import KvferryError

# What has come from a peer and was not asked for yet: more of it ends the channel.
MOST_WAITING_BYTES = 2**26

# How something of this many bytes crosses a modelled link: fires when it has arrived.
Crossing = Callable[[float], Ticket]
# Told every event that came, or why no more will.
Heard = Callable[[Event | KvferryError], None]


class Wire(Protocol):
    """Carries events to a peer and back. Errors are ChannelBroken, or an InputError where the user can mend it."""

    def begin(self, heard: Heard) -> None:
        """From now on `heard` is told what comes, in order, by any thread; after an error, nothing."""
        ...

    def connect(self) -> None:
        """Reach the peer. Waits; raises errors."""
        ...

    def send(self, kind: str, data: bytes) -> None:
        """May wait; raises errors."""
        ...

    def hang_up(self) -> None:
        """End at once what waits. Harmless when repeated."""
        ...


@dataclass(slots=True)
class _Receiver:
    """Who waits for the next message."""

    message: simpy.Event
    each: Each | None
    began_s: float
    # Since when nothing has come to it, and the stream that is coming.
    since_s: float
    times_s: list[float] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    n_bytes: int = 0


class WiredChannel:
    """A machine.Channel. It connects when first used; no call waits in the caller's thread.

    With `up`, what is sent goes into the wire when its crossing has ended; with `down`, what comes out of the wire is
    received when its crossing has: so one end can stand for the whole link between the two. A channel that has broken
    stays so: whatever had arrived can be received, then every receiver fails. It breaks, too, when `most_waiting_bytes`
    have come that nobody has received, the parts of a stream without an end among them.
    """

    def __init__(
        self,
        env: WallClockEnvironment,
        peer: str,
        wire: Wire,
        up: Crossing | None = None,
        down: Crossing | None = None,
        most_waiting_bytes: int | None = None,
    ) -> None:
        self._env, self._peer, self._wire = env, peer, wire
        self._most_waiting_bytes = MOST_WAITING_BYTES if most_waiting_bytes is None else most_waiting_bytes
        # Guarded by the environment's lock.
        self._waiting_bytes = 0
        self._up, self._down = up, down
        self._sender = Worker(env, "channel", lambda span: None)
        self._begun = self._closed = False
        self._receivers: deque[_Receiver] = deque()
        # What has arrived and when; the last one stays: goodbye, or an error.
        self._inbox: deque[tuple[float, Event | KvferryError]] = deque()
        self._over = False
        self.gone: simpy.Event = env.event()

    def send(self, message: Any, n_bytes: float) -> LiveWork:
        """The ticket fires when the wire has taken the message. Raises RuntimeError on a closed channel, TypeError for
        what no message can hold, ValueError for one that is too long."""
        self._check_open()
        if message is None:
            raise TypeError("None says that a channel has ended; it cannot be sent")
        return self._say(MESSAGE, message, n_bytes)

    def stream(self, n_bytes: float) -> "WiredStream":
        self._check_open()
        return WiredStream(self._say, n_bytes)

    def receive(self, each: Each | None = None, patience_s: float | None = None) -> simpy.Event:
        self._begin()
        now_s = self._env.now
        receiver = _Receiver(self._env.event(), each, now_s, now_s)
        self._receivers.append(receiver)
        # The environment has something to wait for as long as somebody waits here.
        with self._env.lock:
            self._env.expect()
        if self._inbox:
            self._env.event().succeed().callbacks.append(self._serve)
        if patience_s is not None:
            self._watch(receiver, patience_s, patience_s)
        return receiver.message

    def close(self) -> None:
        """End this side after what was sent. What the peer still sends can be received. Closing twice is harmless."""
        if not self._closed:
            said = self._say(GOODBYE, None, 0.0)
            assert said.callbacks is not None
            said.callbacks.append(lambda _: self._sender.stop())
            self._closed = True

    def hang_up(self) -> None:
        """End the channel at once: sent or not, what waits for the peer fails."""
        self._closed = True
        self._break()
        # What has come already is dropped, too.
        self._inbox.clear()
        self._arrive(ChannelCut(f"the channel with {self._peer} was ended"), self._env.now)
        self._wire.hang_up()
        self._sender.stop()
        self._sender.join(self._env.now + 1.0)

    @property
    def broken(self) -> bool:
        """Whether an error has ended it, or either side has hung up."""
        return self.gone.triggered

    @property
    def heard_s(self) -> float:
        for receiver in [*self._receivers][:1]:
            return receiver.times_s[-1] if receiver.times_s else -math.inf
        return -math.inf

    @property
    def waits_since_s(self) -> float | None:
        """Since when its owner waits for the peer to say something; None: the peer waits, or both are busy. May be
        asked by any thread."""
        for receiver in [*self._receivers][:1]:
            if self._waiting_bytes == receiver.n_bytes:
                return receiver.began_s
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this end of the channel is closed")

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._wire.begin(self._heard)
            self._sender.do(lambda _: self._reach()).defused = True

    def _say(self, kind: str, value: Any, n_bytes: float) -> LiveWork:
        data = written(value, n_bytes)
        self._begin()
        after = () if self._up is None else (self._up(n_bytes),)
        sent = self._sender.do(lambda _: self._wire.send(kind, data), after)
        # Whoever waits for it gets its failure. Others are told when they receive.
        sent.defused = True
        return sent

    # --- in other threads ----------------------------------------------------------------------------------------

    def _reach(self) -> None:
        try:
            self._wire.connect()
        except KvferryError as error:
            self._heard(error)
            raise

    def _heard(self, said: Event | KvferryError) -> None:
        with self._env.lock:
            if self._waiting_bytes > self._most_waiting_bytes:
                return
            if isinstance(said, Event):
                self._waiting_bytes += said.n_bytes
            if self._waiting_bytes > self._most_waiting_bytes:
                said = ChannelBroken(f"{self._peer} says more than is heard: {self._waiting_bytes:,} bytes wait")
            self._env.expect()
            self._env.post(self._came, (said, self._env.now))

    # --- in the environment's thread -----------------------------------------------------------------------------

    def _came(self, what: tuple[Event | KvferryError, float]) -> None:
        said, came_s = what
        if self._down is None:
            self._arrive(said, came_s)
            return
        crossing = self._down(said.weighs if isinstance(said, Event) else 0.0)
        assert crossing.callbacks is not None
        crossing.callbacks.append(lambda crossed: self._crossed(crossed, said))

    def _crossed(self, crossing: simpy.Event, said: Event | KvferryError) -> None:
        if crossing.ok:
            self._arrive(said, self._env.now)
        else:
            # The link has ended, and with it the channel.
            crossing.defused = True
            self._arrive(crossing.value, self._env.now)

    def _break(self) -> None:
        if not self.gone.triggered:
            self.gone.succeed()

    def _arrive(self, said: Event | KvferryError, arrived_s: float) -> None:
        if not isinstance(said, Event):
            self._break()
        if self._over:
            return
        self._over = not isinstance(said, Event) or said.kind == GOODBYE
        self._inbox.append((arrived_s, said))
        if self._waiting_bytes > self._most_waiting_bytes:
            self._wire.hang_up()
        self._serve()

    def _serve(self, _: object = None) -> None:
        while self._receivers and self._inbox:
            receiver, (arrived_s, said) = self._receivers[0], self._inbox[0]
            if not isinstance(said, Event):
                # Made new, as several receivers may raise it.
                self._end(receiver).fail(type(said)(*said.args))
                continue
            if said.kind == GOODBYE:
                self._end(receiver).succeed(None)
                continue
            self._inbox.popleft()
            receiver.since_s = arrived_s
            receiver.n_bytes += said.n_bytes
            if said.kind == MESSAGE:
                self._end(receiver).succeed(said.value)
            elif said.kind == END:
                self._end(receiver).succeed(Streamed(receiver.times_s, receiver.values))
            else:
                receiver.times_s.append(arrived_s)
                receiver.values.append(said.value)
                if receiver.each is not None:
                    receiver.each((arrived_s,), (said.value,))

    def _end(self, receiver: _Receiver) -> simpy.Event:
        self._receivers.popleft()
        with self._env.lock:
            self._waiting_bytes -= receiver.n_bytes
        # One thing less to wait for.
        self._env.post(lambda _: None, None)
        if self._receivers:
            self._receivers[0].since_s = self._env.now
        return receiver.message

    def _watch(self, receiver: _Receiver, wait_s: float, patience_s: float) -> None:
        waited = self._env.timeout(wait_s)
        assert waited.callbacks is not None
        waited.callbacks.append(lambda _: self._waited(receiver, patience_s))

    def _waited(self, receiver: _Receiver, patience_s: float) -> None:
        if receiver.message.triggered:
            return
        left_s = receiver.since_s + patience_s - self._env.now
        if left_s > 0 or receiver is not self._receivers[0]:
            self._watch(receiver, left_s if left_s > 0 else patience_s, patience_s)
            return
        self._arrive(ChannelStalled(f"nothing has come from {self._peer} for {patience_s:g} s"), self._env.now)
        # Not here: it may wait for a thread.
        self._wire.hang_up()


class WiredStream:
    """A machine.MessageStream: each part is an event of its own."""

    def __init__(self, say: Callable[[str, Any, float], LiveWork], n_bytes: float) -> None:
        self._say, self._n_bytes = say, n_bytes

    def put(self, value: Any = None) -> None:
        self._say(PART, value, self._n_bytes)

    def end(self) -> None:
        self._say(END, None, 0.0)

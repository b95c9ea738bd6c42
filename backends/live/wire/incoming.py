"""Messages that have arrived over a wire, and receivers that wait for them."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import simpy

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.wire.event import END, GOODBYE, MESSAGE, Event
from kvferry.machine.channel import ChannelBroken, ChannelStalled, Each, Streamed
from kvferry.specs.errors import KvferryError


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


class Incoming:
    """Events in the order in which they arrived, for receivers in the order in which they came. What has arrived can be
    received; behind an error every receiver fails. `hang_up` ends what comes: once `most_waiting_bytes` wait, the parts
    of a stream without an end among them, and once a receiver's patience is over."""

    def __init__(
        self, env: WallClockEnvironment, peer: str, most_waiting_bytes: int, hang_up: Callable[[], None]
    ) -> None:
        self._env, self._peer, self._most_waiting_bytes, self._hang_up = env, peer, most_waiting_bytes, hang_up
        # Guarded by the environment's lock.
        self._waiting_bytes = 0
        self._receivers: deque[_Receiver] = deque()
        # Events with their arrival times; a goodbye or an error stays as the last one.
        self._inbox: deque[tuple[float, Event | KvferryError]] = deque()
        self._over = False
        self.gone: simpy.Event = env.event()

    @property
    def heard_s(self) -> float:
        """Returns when the stream being received last brought a part, as ``Channel.heard_s``; -inf without one."""
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

    def come(self, said: Event | KvferryError, then: Callable[[tuple[Event | KvferryError, float]], None]) -> None:
        """Passes an event that has arrived on to `then`, with its time, in the environment's thread. Any thread may
        call this. Once more than `most_waiting_bytes` wait, passes on an error instead and drops whatever follows."""
        with self._env.lock:
            if self._waiting_bytes > self._most_waiting_bytes:
                return
            if isinstance(said, Event):
                self._waiting_bytes += said.n_bytes
            if self._waiting_bytes > self._most_waiting_bytes:
                said = ChannelBroken(f"{self._peer} says more than is heard: {self._waiting_bytes:,} bytes wait")
            self._env.expect()
            self._env.post(then, (said, self._env.now))

    # --- in the environment's thread -----------------------------------------------------------------------------

    def receive(self, each: Each | None, patience_s: float | None) -> simpy.Event:
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

    def arrive(self, said: Event | KvferryError, arrived_s: float) -> None:
        """Something has crossed; an error breaks the channel."""
        if not isinstance(said, Event) and not self.gone.triggered:
            self.gone.succeed()
        if self._over:
            return
        self._over = not isinstance(said, Event) or said.kind == GOODBYE
        self._inbox.append((arrived_s, said))
        if self._waiting_bytes > self._most_waiting_bytes:
            self._hang_up()
        self._serve()

    def cut(self, error: KvferryError) -> None:
        """The channel is ended here: what has come already is dropped, too."""
        self._inbox.clear()
        self.arrive(error, self._env.now)

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
        self.arrive(ChannelStalled(f"nothing has come from {self._peer} for {patience_s:g} s"), self._env.now)
        # Not here: it may wait for a thread.
        self._hang_up()

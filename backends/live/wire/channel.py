"""One end of a channel over a wire, whatever the wire is."""

from collections.abc import Callable
from typing import Any, Protocol

import simpy

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.thread_work import LiveWork
from kvferry.backends.live.engine.worker import Worker
from kvferry.backends.live.wire.event import END, GOODBYE, MESSAGE, PART, Event, written
from kvferry.backends.live.wire.incoming import Incoming
from kvferry.machine.channel import ChannelCut, Each
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
        most_waiting_bytes: int = MOST_WAITING_BYTES,
    ) -> None:
        self._env, self._peer, self._wire, self._up, self._down = env, peer, wire, up, down
        self._sender = Worker(env, "channel", lambda span: None)
        self._begun = self._closed = False
        self.incoming = Incoming(env, peer, most_waiting_bytes, wire.hang_up)
        self.gone = self.incoming.gone

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
        return self.incoming.receive(each, patience_s)

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
        self.incoming.cut(ChannelCut(f"the channel with {self._peer} was ended"))
        self._wire.hang_up()
        self._sender.stop()
        self._sender.join(self._env.now + 1.0)

    @property
    def broken(self) -> bool:
        """Whether an error has ended it, or either side has hung up."""
        return self.gone.triggered

    @property
    def heard_s(self) -> float:
        return self.incoming.heard_s

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
        self.incoming.come(said, self._came)

    # --- in the environment's thread -----------------------------------------------------------------------------

    def _came(self, what: tuple[Event | KvferryError, float]) -> None:
        said, came_s = what
        if self._down is None:
            self.incoming.arrive(said, came_s)
            return
        crossing = self._down(said.weighs if isinstance(said, Event) else 0.0)
        assert crossing.callbacks is not None
        crossing.callbacks.append(lambda crossed: self._crossed(crossed, said))

    def _crossed(self, crossing: simpy.Event, said: Event | KvferryError) -> None:
        if not crossing.ok:
            # The link has ended, and with it the channel.
            crossing.defused, said = True, crossing.value
        self.incoming.arrive(said, self._env.now)


class WiredStream:
    """A machine.MessageStream: each part is an event of its own."""

    def __init__(self, say: Callable[[str, Any, float], LiveWork], n_bytes: float) -> None:
        self._say, self._n_bytes = say, n_bytes

    def put(self, value: Any = None) -> None:
        self._say(PART, value, self._n_bytes)

    def end(self) -> None:
        self._say(END, None, 0.0)

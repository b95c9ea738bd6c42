"""Channels between machines: what a role may say to another, and hear from it, in every world."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import simpy

from kvferry.specs.errors import KvferryError

# Called with when parts of a stream arrived, in seconds on the run's clock, and the values that they carried.
Each = Callable[[Sequence[float], Sequence[Any]], None]


class ChannelBroken(KvferryError):
    """The peer cannot be reached, went away without ending the channel, or sent something that is no message. The
    channel is of no further use."""


class ChannelUnreachable(ChannelBroken):
    """The peer is not there, or has no room."""


class ChannelCut(ChannelBroken):
    """The peer went away without ending the channel."""


class ChannelGarbled(ChannelBroken):
    """The peer sent something that is no message."""


class ChannelStalled(ChannelBroken):
    """Nothing came for as long as a receiver had patience."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """A stream that has come to its end: when each of its parts arrived, in seconds on the run's clock, and what each
    carried."""

    times_s: Sequence[float]
    values: Sequence[Any]


class MessageStream(Protocol):
    """Parts of one message that are sent one by one, as tokens of an answer are. The peer receives them as a Streamed
    when the stream has ended, and may have each told as it arrives; what is sent besides comes before or after it."""

    def put(self, value: Any = None) -> None:
        """Send the next part now, with a value that a message could be, or with none. Nothing once the channel is
        closed."""
        ...

    def end(self) -> None: ...


class Channel(Protocol):
    """An ordered two-way channel to a peer. `send` raises RuntimeError on a closed channel, TypeError for None.

    A channel that has broken stays so; one that is opened afterwards between the same two is another. It breaks when
    either side hangs up, and when a receiver's patience ends.
    """

    @property
    def heard_s(self) -> float:
        """When the last part of the stream that is coming arrived, by the run's clock, whether or not it has been told;
        long ago where none has. In the modelled world without what jitter adds."""
        ...

    gone: simpy.Event
    """Fires once the channel has broken: whatever the peer has asked for, nobody is left to hear of it."""

    def send(self, message: Any, n_bytes: float) -> simpy.Event: ...

    def stream(self, n_bytes: float) -> MessageStream:
        """A stream of parts of this many bytes each. Nothing else is sent before it has ended."""
        ...

    def receive(self, each: Each | None = None, patience_s: float | None = None) -> simpy.Event:
        """Fires with the next message, or, once the peer has closed and all were received, with None every time. Fails
        with ChannelBroken.

        Where the message is a stream, `each` is told every part in order before the event fires: in wall time as the
        part arrives; in the modelled world, where streams cross by arithmetic, of all together when the stream has
        ended, with when each part arrived. It is called where processes run. `patience_s`: fails with ChannelStalled
        once neither a message nor a part has come for so long.
        """
        ...

    def close(self) -> None:
        """End this side after what was sent. What the peer still sends can be received."""
        ...

    def hang_up(self) -> None:
        """Break the channel at once: nothing more is sent or received. Harmless when repeated."""
        ...

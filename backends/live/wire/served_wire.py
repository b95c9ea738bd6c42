"""The cloud's end of a channel with a device that comes over HTTP."""

import asyncio
import secrets
import threading
from collections import deque

from kvferry.backends.live.wire.channel import Heard
from kvferry.backends.live.wire.event import GOODBYE, Event, NoEvent, as_sent, read
from kvferry.machine.channel import ChannelBroken, ChannelCut
from kvferry.specs.errors import KvferryError


class ServedWire:
    """A Wire to a device that comes, or will. What is said before it is there waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str, most_waiting_bytes: int) -> None:
        self._loop, self.peer, self._most_waiting_bytes = loop, peer, most_waiting_bytes
        self.key = secrets.token_hex(16)
        self.news = asyncio.Event()
        # Whether a device is there, or was, and the secret of the process that it is in.
        self.taken, self.caller = False, ""
        # Whether the role is done with it, and only its goodbye has to get there.
        self.left = False
        self._lock = threading.Lock()
        self._heard: Heard | None = None
        self._early: list[Event | KvferryError] = []
        self._early_bytes = 0
        self._unsent: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._numbers = 0
        self._goodbyes: set[str] = set()
        self._error: KvferryError | None = None

    # --- for the channel -----------------------------------------------------------------------------------------

    def begin(self, heard: Heard) -> None:
        with self._lock:
            for said in self._early:
                heard(said)
            self._heard, self._early, self._early_bytes = heard, [], 0

    def connect(self) -> None:
        """It is the device that comes."""

    def send(self, kind: str, data: bytes) -> None:
        with self._lock:
            if self._error is not None:
                raise ChannelCut(f"cannot send to {self.peer}: it is gone")
            piece = as_sent(kind, data)
            self._unsent.append(piece)
            self._waiting_bytes += len(piece)
            if kind == GOODBYE:
                self._goodbyes.add("ours")
        if self._waiting_bytes > self._most_waiting_bytes:
            self.fail(ChannelBroken(f"{self.peer} takes nothing: {self._waiting_bytes:,} bytes wait for it"))
        self._tell()

    def hang_up(self) -> None:
        self.fail(ChannelCut(f"the channel with {self.peer} was ended"))

    # --- for the server ------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Broken, or both sides have said goodbye."""
        return self._error is not None or (len(self._goodbyes) == 2 and not self._unsent)

    @property
    def failed(self) -> bool:
        return self._error is not None

    def stream_ended(self) -> None:
        """The device is gone, or both have said goodbye."""
        if not self.over:
            self.fail(ChannelCut(f"{self.peer} went away without saying goodbye"))

    def take(self) -> bytes:
        """All that is to be sent now."""
        with self._lock:
            pieces = b"".join(self._unsent)
            self._unsent.clear()
            self._waiting_bytes = 0
        return pieces

    def hear(self, number: int, kind: str, data: bytes) -> None:
        """Raises NoEvent. What was heard before is not heard again."""
        if number <= self._numbers:
            return
        said = read(kind, data)
        if number != self._numbers + 1 or "theirs" in self._goodbyes:
            raise NoEvent(f"number {number} after {self._numbers}")
        self._numbers = number
        if kind == GOODBYE:
            self._goodbyes.add("theirs")
        self._pass_on(said)
        if self._early_bytes > self._most_waiting_bytes:
            self.fail(ChannelBroken(f"{self.peer} says more than is heard: {self._early_bytes:,} bytes wait"))
        self._tell()

    def fail(self, error: KvferryError) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self._pass_on(error)
        self._tell()

    def _pass_on(self, said: Event | KvferryError) -> None:
        with self._lock:
            if self._heard is None:
                self._early.append(said)
                self._early_bytes += said.n_bytes if isinstance(said, Event) else 0
            else:
                self._heard(said)

    def _tell(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self.news.set)
        except RuntimeError:
            # The server has stopped.
            self._error = self._error or ChannelCut("the server has stopped")

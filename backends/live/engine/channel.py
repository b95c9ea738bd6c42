"""Channels between processes on one machine, over a local socket. Messages are JSON and bytes, never code."""

import contextlib
import math
import re
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import simpy

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.messages import packed, unpacked
from kvferry.backends.live.engine.thread_work import LiveWork
from kvferry.backends.live.engine.worker import Worker
from kvferry.machine.channel import ChannelBroken, ChannelCut, ChannelStalled, Each, Streamed
from kvferry.machine.ticket import Ticket
from kvferry.specs.errors import InputError

# Before every message: the lengths of its JSON text and of the bytes behind that. No text: goodbye.
_HEAD = struct.Struct("!IQ")
# No message of ours comes near; a length beyond says that the peer speaks something else.
_LONGEST_TEXT, _LONGEST_BYTES = 1 << 28, 1 << 34
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# What a message's text, which is JSON, cannot begin with: a part of a stream, with its value behind it, and the end.
_PART, _END_OF_STREAM = b"+", b"."
# How often a peer that is not there yet is tried again.
_RETRY_S = 0.01


# How a message of this many bytes crosses from one named machine to another: fires when it has arrived.
Carry = Callable[[str, str, float], Ticket]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a stream."""

    value: Any


_END = object()


class SocketSwitchboard:
    """Channels between machines by name; the machines may live in different processes that share a folder.

    The folder should be private to its user: every process that can reach it can send. Of two names, the first in the
    alphabet listens and the other connects; either waits at most `patience_s`. Without a folder all machines are of
    this process, and each may open its end as late as it likes. With `carry`, a message goes into the socket when its
    event has fired, as in the modelled world: so machines of one process are as far apart as their links say. `carry`
    keeps the order of messages between two machines.
    """

    def __init__(
        self, env: WallClockEnvironment, folder: Path | str | None, patience_s: float = 30.0, carry: Carry | None = None
    ) -> None:
        self._env = env
        self._carry = carry
        self._folder = None if folder is None else Path(folder)
        self._patience_s = patience_s
        self._ends: dict[tuple[str, str], LiveChannel] = {}
        # The ones that have broken and been replaced.
        self._broken: list[LiveChannel] = []
        # Of channels within this process, the end that is not open yet; and all of them.
        self._waiting: dict[tuple[str, str], socket.socket] = {}
        self._paired: list[socket.socket] = []

    def open(self, name: str, peer: str) -> "LiveChannel":
        """The end that `name` holds of its channel with `peer`: the same one, until it has broken. Does not wait for
        the peer."""
        if (name, peer) not in self._ends:
            carry = self._carry
            crossing = None if carry is None else lambda n_bytes: carry(name, peer, n_bytes)
            end = self._ends[name, peer] = LiveChannel(self._env, peer, self._way(name, peer), crossing)
            assert end.gone.callbacks is not None
            end.gone.callbacks.append(lambda _: self._replace(name, peer, end))
        return self._ends[name, peer]

    def _replace(self, name: str, peer: str, end: "LiveChannel") -> None:
        """An end that has broken is no longer the one to open, and the peer's neither: where that is of this process,
        it hears of it at once, whether or not anybody receives there."""
        if self._ends.get((name, peer)) is not end:
            return
        self._broken.append(self._ends.pop((name, peer)))
        end.hang_up()
        self._waiting.pop((peer, name), None)
        other = self._ends.get((peer, name))
        if other is not None:
            other.broken()

    def close(self) -> None:
        """End every channel at once, closed or not."""
        for end in (*self._broken, *self._ends.values()):
            end.hang_up()
        for wire in self._paired:
            wire.close()

    def _way(self, name: str, peer: str) -> Callable[[], socket.socket]:
        for each in (name, peer):
            if not _NAME.fullmatch(each):
                raise InputError(
                    f"a machine in a conversation needs a name of letters, digits, . _ and -, not {each!r}"
                )
        if name == peer:
            raise InputError(f"{name} cannot open a channel with itself")
        if self._folder is None:
            if (name, peer) not in self._waiting:
                pair = socket.socketpair()
                self._paired += pair
                self._waiting[name, peer], self._waiting[peer, name] = pair
            wire = self._waiting.pop((name, peer))
            return lambda: wire
        first, second = sorted((name, peer))
        path = self._folder / f"{first}+{second}.sock"
        if len(str(path).encode()) > 100:
            raise InputError(f"{path} is too long for the address of a socket: choose a folder with a shorter path")
        meet = _accept if name == first else _call
        return lambda: meet(path, peer, self._patience_s)


class LiveChannel:
    """One end: a machine.Channel. It connects when first used; no call waits in the caller's thread.

    Messages are what JSON holds except null (booleans, numbers, text, lists, dicts with text keys), tuples and bytes.
    """

    def __init__(
        self,
        env: WallClockEnvironment,
        peer: str,
        connect: Callable[[], socket.socket],
        crossing: Callable[[float], Ticket] | None = None,
    ) -> None:
        self._env = env
        self._peer = peer
        self._connect = connect
        # How a message of this many bytes crosses a modelled link; None: only the socket is between the machines.
        self._crossing = crossing
        self._socket: socket.socket | None = None
        self._connecting = Lock()
        self._sender = Worker(env, "channel", lambda span: None)
        self._receiver = Worker(env, "channel", lambda span: None)
        self._closed = False
        self._peer_closed = False
        self.heard_s = -math.inf
        self.gone: simpy.Event = env.event()

    def send(self, message: Any, n_bytes: float) -> LiveWork:
        """The ticket fires when the operating system has taken the whole message. `n_bytes` is what it weighs on a
        modelled link; the real length is the message's own.

        Raises RuntimeError on a closed channel and TypeError for what no message can hold.
        """
        if self._closed:
            raise RuntimeError("this end of the channel is closed")
        if message is None:
            raise TypeError("None says that a channel has ended; it cannot be sent")
        text, blobs = packed(message)
        sent = self._sender.do(lambda _: self._send(text, blobs), self._crossed(n_bytes))
        # Whoever waits for it gets its failure. Others are told when they receive.
        sent.defused = True
        return sent

    def stream(self, n_bytes: float) -> "LiveStream":
        """A stream of parts of `n_bytes` each on a modelled link; each part goes into the socket as it is put.

        Raises RuntimeError on a closed channel.
        """
        if self._closed:
            raise RuntimeError("this end of the channel is closed")
        return LiveStream(self._put, n_bytes)

    def _put(self, part: bytes, blobs: list[memoryview], n_bytes: float) -> None:
        # It may fail: the peer may be gone, which the next message says.
        self._sender.do(lambda _: self._send(part, blobs), self._crossed(n_bytes)).defused = True

    def receive(self, each: Each | None = None, patience_s: float | None = None) -> simpy.Event:
        """The ticket fires with the next message, or with None once the peer has closed its end. It fails with
        ChannelBroken when the peer is gone."""
        if self.gone.triggered:
            return self._env.event().fail(ChannelCut(f"the channel with {self._peer} was ended"))
        received = self._receiver.do(lambda _: self._receive(each, patience_s))
        assert received.callbacks is not None
        received.callbacks.append(self._received)
        return received

    def _received(self, received: simpy.Event) -> None:
        if isinstance(received.value, ChannelBroken):
            self.broken()

    def broken(self) -> None:
        """Nothing more comes."""
        if not self.gone.triggered:
            self.gone.succeed()

    def close(self) -> None:
        """End this side after what was sent. What the peer still sends can be received. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            goodbye = self._sender.do(lambda _: self._send(b"", []), self._crossed(0.0))
            # It may fail: the peer may be gone already.
            goodbye.defused = True

    def hang_up(self) -> None:
        """Close the socket at once: tickets that wait for the peer fail."""
        self._closed = True
        self.broken()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        for worker in (self._sender, self._receiver):
            worker.stop()
            worker.join(self._env.now + 1.0)
        if self._socket is not None:
            self._socket.close()

    def _crossed(self, n_bytes: float) -> tuple[Ticket, ...]:
        return () if self._crossing is None else (self._crossing(n_bytes),)

    # --- in the threads ------------------------------------------------------------------------------------------

    def _wire(self) -> socket.socket:
        with self._connecting:
            if self._socket is None:
                self._socket = self._connect()
            return self._socket

    def _send(self, text: bytes, blobs: list[memoryview]) -> None:
        wire = self._wire()
        try:
            wire.sendall(_HEAD.pack(len(text), sum(len(blob) for blob in blobs)) + text)
            for blob in blobs:
                wire.sendall(blob)
        except OSError as error:
            raise ChannelBroken(f"cannot send to {self._peer}: it is gone ({error.strerror})") from error

    def _receive(self, each: Each | None = None, patience_s: float | None = None) -> Any:
        if self._peer_closed:
            return None
        # Once for all parts: a hang-up may close it meanwhile.
        wire, times_s, values = self._wire(), list[float](), list[Any]()
        while isinstance(message := self._next(wire, patience_s), _Part):
            times_s.append(self._env.now)
            self.heard_s = times_s[-1]
            values.append(message.value)
            if each is not None:
                self._env.tell(lambda part: each(*part), (times_s[-1:], values[-1:]))
        return Streamed(times_s, values) if message is _END else message

    def _next(self, wire: socket.socket, patience_s: float | None) -> Any:
        """The next message, a part of a stream, or its end; None: the peer has closed."""
        text_bytes, blob_bytes = _HEAD.unpack(_exactly(wire, self._peer, _HEAD.size, patience_s))
        if not text_bytes:
            self._peer_closed = True
            return None
        if text_bytes > _LONGEST_TEXT or blob_bytes > _LONGEST_BYTES:
            raise ChannelBroken(f"what {self._peer} sends is no message of ours")
        text, blobs = (_exactly(wire, self._peer, part_bytes, patience_s) for part_bytes in (text_bytes, blob_bytes))
        try:
            if text[:1] == _PART:
                return _Part(unpacked(text[1:], blobs) if text[1:] else None)
            return _END if text == _END_OF_STREAM else unpacked(text, blobs)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ChannelBroken(f"what {self._peer} sends is no message of ours: {error}") from error


class LiveStream:
    """A machine.MessageStream: part by part through the socket."""

    def __init__(self, put: Callable[[bytes, list[memoryview], float], None], n_bytes: float) -> None:
        self._put, self._n_bytes = put, n_bytes

    def put(self, value: Any = None) -> None:
        """Raises TypeError for what no message can hold."""
        text, blobs = (b"", []) if value is None else packed(value)
        self._put(_PART + text, blobs, self._n_bytes)

    def end(self) -> None:
        self._put(_END_OF_STREAM, [], 0.0)


def _exactly(wire: socket.socket, peer: str, n_bytes: int, patience_s: float | None) -> bytearray:
    message, got = bytearray(n_bytes), 0
    with memoryview(message) as view:
        while got < n_bytes:
            # Not by a time-out of the socket, which would hold for what is sent as well.
            if patience_s is not None and not _readable(wire, patience_s):
                raise ChannelStalled(f"nothing has come from {peer} for {patience_s:g} s")
            try:
                n = wire.recv_into(view[got:])
            except OSError:
                n = 0
            if not n:
                raise ChannelBroken(f"{peer} went away without saying goodbye")
            got += n
    return message


def _readable(wire: socket.socket, within_s: float) -> bool:
    """Whether there is something to read, or the end, within this many seconds."""
    poll = select.poll()
    poll.register(wire, select.POLLIN)
    return bool(poll.poll(1e3 * within_s))


# --- how two ends meet -------------------------------------------------------------------------------------------


def _accept(path: Path, peer: str, patience_s: float) -> socket.socket:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(str(path))
        except OSError as error:
            raise InputError(
                f"cannot listen at {path}: {error.strerror}. If no other run uses this folder, remove the file"
            ) from error
        try:
            listener.listen(1)
            listener.settimeout(patience_s)
            wire, _ = listener.accept()
        except TimeoutError as error:
            raise ChannelBroken(f"{peer} did not call within {patience_s:g} s at {path}") from error
        finally:
            path.unlink(missing_ok=True)
    wire.settimeout(None)
    return wire


def _call(path: Path, peer: str, patience_s: float) -> socket.socket:
    until_s = time.monotonic() + patience_s
    while True:
        wire = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            wire.connect(str(path))
            return wire
        except OSError as error:
            wire.close()
            if time.monotonic() > until_s:
                raise ChannelBroken(f"{peer} did not listen within {patience_s:g} s at {path}") from error
        time.sleep(_RETRY_S)

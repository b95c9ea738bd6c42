"""The device's side: what it says goes up in requests, what the cloud says comes down as one event stream."""

import json
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Thread
from urllib.parse import quote, urlsplit

from kvferry.backends.live.engine.channel import Carry
from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.wire.channel import Heard, WiredChannel
from kvferry.backends.live.wire.event import CALLER, ENDED, GOODBYE, OPEN, NoEvent, events, read
from kvferry.backends.live.wire.open_sockets import OpenSockets
from kvferry.cloud.patience import one_line
from kvferry.machine.channel import (
    ChannelBroken,
    ChannelCut,
    ChannelGarbled,
    ChannelStalled,
    ChannelUnreachable,
)
from kvferry.specs.errors import InputError, KvferryError

# A cloud has this long to let a device in, and to take what it says.
ANSWER_S = 10.0
# It says something, if only that it is there, more often than this.
SILENCE_S = 15.0
_MAY_FAIL = (OSError, HTTPException)


class CloudAddress:
    """Where a cloud is, and what it lets devices in for. Raises InputError for a URL or token that cannot be one."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        try:
            parts = urlsplit(url)
            self._kind = {"http": HTTPConnection, "https": HTTPSConnection}[parts.scheme]
            self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path.rstrip("/")
            if not self._host or parts.query or parts.username:
                raise ValueError
        except (ValueError, KeyError):
            raise InputError(f"{url[:200]!r} is no cloud; write it like http://127.0.0.1:8200") from None
        if token is not None and not (token.isascii() and token.isprintable()):
            raise InputError("a token has letters, digits and signs only")
        self.headers = {"authorization": f"Bearer {token}"} if token else {}
        # Whether a device has been let in, and by what the cloud knows that it comes again.
        self.entered, self.caller = False, secrets.token_hex(16)

    def path(self, *names: str) -> str:
        return "/".join((self._path, *(quote(name, safe="") for name in names)))

    def connection(self) -> HTTPConnection:
        return self._kind(self._host, self._port, timeout=ANSWER_S)


class CallingWire:
    """A Wire to a cloud over HTTP, by two connections: one for the event stream, one for what is said.

    What is said is numbered, so that it can be said again where a connection was lost, and is heard once.
    """

    def __init__(self, cloud: CloudAddress, name: str, peer: str) -> None:
        self._cloud, self._name, self._peer = cloud, name, peer
        self._heard: Heard = lambda said: None
        self._sockets = OpenSockets()
        self._key = ""
        self._said = 0
        self._saying: HTTPConnection | None = None

    def begin(self, heard: Heard) -> None:
        self._heard = heard

    def connect(self) -> None:
        """Raises ChannelUnreachable, ChannelGarbled; InputError for a token that was refused from the beginning."""
        connection = self._cloud.connection()
        url, path = self._cloud.url, self._cloud.path("channels", self._peer, self._name)
        try:
            with self._sockets.within(connection, ANSWER_S):
                headers = self._cloud.headers | {"accept": "text/event-stream", "accept-encoding": "identity"}
                headers[CALLER] = self._cloud.caller
                connection.request("GET", path, headers=headers)
                # The connection forgets it when the answer is to be the last.
                wire = connection.sock
                response = connection.getresponse()
                self._check(response)
                wire.settimeout(SILENCE_S)
                coming = events(response.readline)
                self._key = _key(coming)
                self._cloud.entered = True
        except (NoEvent, KvferryError, *_MAY_FAIL) as error:
            connection.close()
            if isinstance(error, NoEvent):
                raise ChannelGarbled(f"{url} is no cloud of ours: {one_line(str(error))}") from None
            if isinstance(error, _MAY_FAIL):
                raise ChannelUnreachable(f"{self._peer} at {url} cannot be reached: {_why(error)}") from None
            raise
        self._sockets.keep(wire)
        Thread(target=self._listen, args=(connection, wire, coming), name="kvferry channel", daemon=True).start()

    def send(self, kind: str, data: bytes) -> None:
        """Returns when the cloud has taken it."""
        if not self._key or self._sockets.hung_up:
            raise ChannelCut(f"cannot send to {self._peer}: there is no connection")
        self._said += 1
        path = f"{self._cloud.path('said', self._key, kind)}?n={self._said}"
        headers = self._cloud.headers | {"content-type": "application/json"}
        for again in (False, True):
            try:
                response = self._answer(path, data, headers)
                break
            except TimeoutError:
                self._drop()
                raise ChannelStalled(f"{self._peer} took nothing for {ANSWER_S:g} s") from None
            except _MAY_FAIL as error:
                self._drop()
                if again or self._sockets.hung_up:
                    raise ChannelCut(f"cannot send to {self._peer}: it is gone ({_why(error)})") from None
        status, words = response
        if (status, words) == (404, ENDED):
            raise ChannelCut(f"cannot send to {self._peer}: it has ended this channel")
        if status != 204:
            raise ChannelBroken(f"cannot send to {self._peer}: {status} {words}")
        if kind == GOODBYE:
            self._drop()

    def hang_up(self) -> None:
        self._sockets.hang_up()

    # --- in the threads ------------------------------------------------------------------------------------------

    def _listen(self, connection: HTTPConnection, wire: socket.socket, coming: Iterator[tuple[str, bytes]]) -> None:
        why: KvferryError | None = None
        try:
            for kind, data in coming:
                self._heard(said := read(kind, data))
                if said.kind == GOODBYE:
                    break
            else:
                why = ChannelCut(f"{self._peer} went away without saying goodbye")
            if why is None:
                # It stays open until both have said goodbye.
                wire.settimeout(None)
                for _ in coming:
                    pass
        except TimeoutError:
            why = ChannelStalled(f"{self._peer} has given no sign of life for {SILENCE_S:g} s")
        except NoEvent as error:
            why = ChannelGarbled(f"what {self._peer} sends is no message of ours: {one_line(str(error)):.200}")
        except (*_MAY_FAIL, ValueError, AttributeError):
            # http.client raises the last two where the stream is closed under it.
            why = ChannelCut(f"{self._peer} went away without saying goodbye")
        if why is not None:
            self._heard(why)
        self._sockets.forget(wire)
        # The connection has lost its socket to the answer, if that is to be the last.
        with suppress(OSError):
            wire.close()
        connection.close()

    def _answer(self, path: str, data: bytes, headers: dict[str, str]) -> tuple[int, str]:
        if self._saying is None:
            connection = self._cloud.connection()
            connection.connect()
            self._sockets.keep(connection.sock)
            self._saying = connection
        self._saying.request("POST", path, data, headers)
        response = self._saying.getresponse()
        words = one_line(response.read(500).decode("utf-8", "replace"))
        if response.will_close or not response.isclosed():
            self._drop()
        return response.status, words

    def _drop(self) -> None:
        if self._saying is not None:
            if self._saying.sock is not None:
                self._sockets.forget(self._saying.sock)
            self._saying.close()
            self._saying = None

    def _check(self, response: HTTPResponse) -> None:
        if response.status == 200 and response.headers.get_content_type() == "text/event-stream":
            return
        words = one_line(response.read(500).decode("utf-8", "replace"))
        if response.status in (401, 403):
            if self._cloud.entered:
                # What it has said to earlier requests still counts.
                raise ChannelUnreachable(f"{self._peer} at {self._cloud.url} lets nobody in any more: {words}")
            raise InputError(f"{self._cloud.url}: {words}")
        if response.status in (409, 503):
            raise ChannelUnreachable(f"{self._peer} at {self._cloud.url} has no room: {words}")
        raise ChannelGarbled(f"{self._cloud.url} is no cloud of ours: it answers {response.status} {words:.200}")


class CallingSwitchboard:
    """Channels from machines of this process to machines of a cloud at a URL: each call makes a new connection.

    `carry` says what is between them, both ways, besides the real connection; the cloud knows nothing of it. None:
    there is only the real one. `known_as` gives a machine's name there, where devices of many processes meet.
    """

    def __init__(
        self,
        env: WallClockEnvironment,
        cloud: CloudAddress,
        carry: Carry | None = None,
        known_as: Callable[[str], str] = str,
    ) -> None:
        self._env, self._cloud, self._carry, self._known_as = env, cloud, carry, known_as
        self._ends: dict[tuple[str, str], WiredChannel] = {}

    def open(self, name: str, peer: str) -> WiredChannel:
        """The end that `name` holds of its channel with `peer`: the same one, until it has broken."""
        end = self._ends.get((name, peer))
        if end is None or end.broken:
            if end is not None:
                end.hang_up()
            carry = self._carry
            up = None if carry is None else lambda n_bytes: carry(name, peer, n_bytes)
            down = None if carry is None else lambda n_bytes: carry(peer, name, n_bytes)
            wire = CallingWire(self._cloud, self._known_as(name), peer)
            self._ends[name, peer] = WiredChannel(self._env, peer, wire, up, down)
        return self._ends[name, peer]

    def close(self) -> None:
        """End every channel at once, closed or not."""
        for end in self._ends.values():
            end.hang_up()


def _key(coming: Iterator[tuple[str, bytes]]) -> str:
    kind, data = next(coming, ("", b""))
    try:
        if kind == OPEN and isinstance(key := json.loads(data)["key"], str) and key.isalnum():
            return key
    except (ValueError, KeyError, TypeError):
        pass
    raise NoEvent(f"its stream begins with {kind!r}")


def _why(error: Exception) -> str:
    return one_line(getattr(error, "strerror", None) or str(error)) or type(error).__name__

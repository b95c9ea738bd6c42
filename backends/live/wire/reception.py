"""The cloud's side: devices open channels over HTTP.

    GET  /channels/MACHINE/DEVICE    opens the channel of this device with this machine, and answers with an event
                                     stream: `open` with the channel's key, then all that the machine says; the header
                                     `kvferry-caller` is a secret of the device's process
    POST /said/KEY/KIND?n=N          what the device says, number N of it (1, 2, ...): a `message`, a `part` of a
                                     stream, its `end`, or `goodbye`

What is said is one line of JSON: the value, with bytes in base64, and what it weighs on a modelled link.
"""

import asyncio
import json
import re
import secrets
import threading
from collections.abc import Callable, Collection
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.wire.channel import MOST_WAITING_BYTES, WiredChannel
from kvferry.backends.live.wire.event import (
    CALLER,
    ENDED,
    MOST_EVENT_BYTES,
    OPEN,
    SIGN_OF_LIFE,
    NoEvent,
    as_sent,
)
from kvferry.backends.live.wire.served_wire import ServedWire
from kvferry.backends.live.wire.served_wires import Names, NotAdmitted, ServedWires
from kvferry.cloud.connections import new_event_loop
from kvferry.cloud.guard import Guard, Receive, Scope, Send
from kvferry.cloud.server import answer, listen, url_of
from kvferry.machine.channel import ChannelGarbled

# Messages of the largest size that may wait for a device that takes nothing, and for a role that hears nothing: more of
# it ends the channel.
_WAITING_MESSAGES = 4
# Where nothing else is said, the cloud says that it is there.
SIGN_S = 5.0
# A device has this long to say one thing to its end.
BODY_S = 10.0
# The most characters of an error about a malformed message.
_MOST_SAID = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# Told the names of a machine and of a device that has come to it.
Arrived = Callable[[str, str], None]


class Reception:
    """Where devices come to machines of this process: a switchboard of the machines, and a server in a thread.

    `arrived` is called where processes run when a device has opened a channel; the role then opens the machine's end,
    and `leave`s when it is done with the device. Without `arrived`, whoever opens an end waits for its device. `known`:
    the machines that devices may come to; None: any. `most_message_bytes`: what one message of a device may have.

    A device has one channel at a time. One that comes again when its last one has broken gets another, whose role
    begins when the last one's has ended; one whose process was there before, by its secret, ends its last one.

    Serves from `begin` until `close`. Raises InputError where it cannot listen, or where others could reach it
    and there is no token.
    """

    def __init__(
        self,
        env: WallClockEnvironment,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        arrived: Arrived | None = None,
        known: Collection[str] | None = None,
        most_message_bytes: int = MOST_EVENT_BYTES,
    ) -> None:
        self._env, self._arrived, self._known = env, arrived, known
        most_message_bytes = min(most_message_bytes, MOST_EVENT_BYTES)
        self._most_waiting_bytes = min(MOST_WAITING_BYTES, _WAITING_MESSAGES * most_message_bytes)
        self._channels: dict[Names, WiredChannel] = {}
        self._listening = listen(host, port, token)
        self.url = url_of(self._listening)
        self._loop = new_event_loop()
        self._wires = ServedWires(
            lambda peer: ServedWire(self._loop, peer, self._most_waiting_bytes), self._waits_since_s
        )
        self._server: uvicorn.Server | None = None
        self._closed = False
        routes = [
            Route("/said/{key}/{kind}", self._say, methods=["POST"]),
            Route("/channels/{machine}/{device}", self._open, methods=["GET"]),
        ]
        guard = Guard(Starlette(routes=routes), token, most_message_bytes)
        self._thread = threading.Thread(target=self._serve, args=(guard,), name="kvferry reception", daemon=True)

    def begin(self) -> "Reception":
        """Let devices in."""
        self._thread.start()
        return self

    def open(self, name: str, peer: str) -> WiredChannel:
        """The end that a machine of this process holds of its channel with a device, whether or not it has come. Where
        devices arrive, each role has one channel, broken or not, until it leaves."""
        if self._arrived is None and (broken := self._channels.get((name, peer))) is not None and broken.broken:
            self.leave(name, peer)
        if (name, peer) not in self._channels:
            wire, most_bytes = self._wires.of((name, peer)), self._most_waiting_bytes
            self._channels[name, peer] = WiredChannel(self._env, peer, wire, most_waiting_bytes=most_bytes)
        return self._channels[name, peer]

    def leave(self, name: str, peer: str) -> None:
        """End a channel for good, behind what was said. A device of that name may come again."""
        if (channel := self._channels.pop((name, peer), None)) is not None:
            channel.close()
        if self._wires.leave((name, peer)) and self._arrived is not None:
            self._arrived(name, peer)

    def close(self) -> None:
        """End every channel at once, and the server."""
        for channel in self._channels.values():
            channel.hang_up()
        for wire in self._wires:
            wire.hang_up()
        self._closed = True
        if self._server is not None:
            self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(5.0)
        else:
            self._loop.close()
        self._listening.close()

    # --- in the server's thread ----------------------------------------------------------------------------------

    def _serve(self, guard: Guard) -> None:
        def begun(server: uvicorn.Server) -> None:
            self._server = server
            # `close` may have come before there was anything that it could end.
            server.should_exit = self._closed

        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(answer(guard, self._listening, None, begun))
        finally:
            self._loop.close()

    def _waits_since_s(self, names: Names) -> float | None:
        channel = self._channels.get(names)
        return None if channel is None else channel.incoming.waits_since_s

    async def _open(self, request: Request) -> Response:
        names = request.path_params["machine"], request.path_params["device"]
        if not all(_NAME.fullmatch(name) for name in names):
            return PlainTextResponse("a name has letters, digits, . _ and -, and at most 100 of them", 400)
        if self._known is not None and names[0] not in self._known:
            return PlainTextResponse(f"there is no machine {names[0]} here", 404)
        try:
            wire, again = await self._wires.admit(names, request.headers.get(CALLER, ""))
        except NotAdmitted as refusal:
            return PlainTextResponse(*refusal.args)
        if self._arrived is not None and not again:
            with self._env.lock:
                self._env.expect()
                self._env.post(lambda names: self._arrived(*names), names)  # type: ignore[misc]
        return _EventStream(wire, lambda: self._wires.ended(names, wire))

    async def _say(self, request: Request) -> Response:
        key, number = request.path_params["key"].encode(), request.query_params.get("n", "")
        # Not over either: what was said last may be said again.
        wire = next((wire for wire in self._wires if secrets.compare_digest(wire.key.encode(), key)), None)
        if wire is None or not wire.taken or wire.failed:
            return PlainTextResponse(ENDED, 404)
        try:
            async with asyncio.timeout(BODY_S):
                data = await request.body()
            if not re.fullmatch(r"[0-9]{1,15}", number):
                raise NoEvent("a number is missing")
            wire.hear(int(number), request.path_params["kind"], data)
        except NoEvent as error:
            wire.fail(ChannelGarbled(f"what {wire.peer} sends is no message of ours: {error}"))
            return PlainTextResponse(f"this is no message of ours: {error}"[:_MOST_SAID], 400)
        except (TimeoutError, ClientDisconnect):
            return PlainTextResponse("did not come to its end", 408, headers={"connection": "close"})
        return Response(status_code=204)


class _EventStream(Response):  # type: ignore[misc]
    """All that is said to a device, until the channel ends or the device is gone."""

    def __init__(self, wire: ServedWire, ended: Callable[[], None]) -> None:
        self._wire, self._ended = wire, ended
        self.status_code, self.background = 200, None
        self.init_headers({"content-type": "text/event-stream", "cache-control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending, leaving = asyncio.ensure_future(self._send(send)), asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() or sending.exception() is not None:
                scope["state"]["connection"].abort()
        finally:
            self._ended()
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        async def say(piece: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": piece, "more_body": more})

        wire = self._wire
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await say(as_sent(OPEN, json.dumps({"key": wire.key}).encode()))
        while True:
            wire.news.clear()
            if piece := wire.take():
                await say(piece)
            elif wire.over:
                break
            else:
                try:
                    async with asyncio.timeout(SIGN_S):
                        await wire.news.wait()
                except TimeoutError:
                    if wire.left:
                        wire.hang_up()
                    await say(SIGN_OF_LIFE)
        if wire.failed:
            # Nothing that looks like an end.
            raise ConnectionAbortedError
        await say(b"", more=False)


async def _gone(receive: Receive) -> None:
    message: dict[str, Any] = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()

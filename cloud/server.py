"""The cloud: hands out the contexts of a store folder over HTTP, at the pace of a replayed link.

    GET  /contexts                       the names, one per line
    GET  /contexts/NAME/index            the index, as `Index.to_bytes` has it; its ETag names this very store
    GET  /contexts/NAME/chunks?ids=0-7,12&level=0    these chunks one after the other, in the order asked for
    GET  /contexts/NAME/file             the file as it is
    POST /replay                         the link's trace begins anew

`chunks` and `file` are paced, and honour `Range: bytes=FROM-` or `FROM-TO`; `If-Match` with an ETag refuses another
version of the store. `Kvferry-Flow` names the flow of a request: its answers are served in order, flows share the link;
without it, each connection is one. Answers begin at once; it is the bytes of the body that take the round trip.
"""

import asyncio
import hmac
import re
import selectors
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvferry.cloud.chunk_ids import read_ids
from kvferry.cloud.pacing import PacedLink
from kvferry.cloud.store import DamagedStore, Store
from kvferry.cloud.store_folder import NoContext, StoreFolder
from kvferry.cloud.store_reader import StoreReader
from kvferry.specs.errors import InputError, LinkDown
from kvferry.traces.rate import RateTrace

# Bounds on what a client may ask of the server, and how long it may take over it.
MOST_HEAD_BYTES = 2**16
MOST_CONNECTIONS = 256
HEAD_S = 10.0
STALL_S = 10.0
IDLE_S = 120
# Running answers get so long to finish when the server is told to stop.
GOODBYE_S = 1
# Of an unpaced answer, what lies in a row over so many bytes is copied by the system; the rest is sent in such pieces.
_PASSED_BYTES = 2**16
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})", re.ASCII)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def application(folder: StoreFolder, link: PacedLink | None, token: str | None) -> "Guard":
    """The server as an ASGI application. `link` None: as fast as it goes. `token` None: no one is asked for one."""

    async def contexts(request: Request) -> Response:
        return PlainTextResponse("".join(f"{name}\n" for name in folder.names()))

    async def index(request: Request) -> Response:
        store = folder.open(request.path_params["name"])
        return Response(store.table, media_type="application/octet-stream", headers={"etag": store.tag})

    async def chunks(request: Request) -> Response:
        store = folder.open(request.path_params["name"])
        level = request.query_params.get("level", "0")
        if not re.fullmatch("[0-9]", level):
            raise InputError(f"level {level[:20]!r} is not a number from 0 to 9")
        extents = store.index.extents(read_ids(request.query_params.get("ids", "")), int(level))
        return _answer(request, store, extents, link)

    async def file(request: Request) -> Response:
        store = folder.open(request.path_params["name"])
        return _answer(request, store, [(0, store.n_bytes)], link)

    async def replay(request: Request) -> Response:
        if link is not None:
            link.restart()
        return Response(status_code=204)

    routes = [
        Route("/contexts/{name}/chunks", chunks),  # they are asked in this order, and it by far the most often
        Route("/contexts", contexts),
        Route("/contexts/{name}/index", index),
        Route("/contexts/{name}/file", file),
        Route("/replay", replay, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes, exception_handlers=dict.fromkeys(_REFUSALS, _refuse)), token)


async def _refuse(request: Request, error: Exception) -> Response:
    status = next(status for kind, status in _REFUSALS.items() if isinstance(error, kind))
    if status == 500:
        # Where the damaged store lies is for the one who serves it.
        print(f"kvferry: {error}", file=sys.stderr)
        return PlainTextResponse("this context's store is damaged", status)
    return PlainTextResponse(str(error), status)


_REFUSALS: dict[type[Exception], int] = {NoContext: 404, InputError: 400, LinkDown: 503, DamagedStore: 500}


def _answer(request: Request, store: Store, extents: Sequence[tuple[int, int]], link: PacedLink | None) -> Response:
    """These parts of the store, or the range of them that is asked for."""
    wanted = request.headers.get("if-match", "*")
    if wanted not in ("*", store.tag):
        return PlainTextResponse("this context was stored anew", 412)
    total = sum(length for _, length in extents)
    headers = {"accept-ranges": "bytes", "content-type": "application/octet-stream", "etag": store.tag}
    first, last, status = 0, total - 1, 200
    if "range" in request.headers:
        match = _RANGE.fullmatch(request.headers["range"])
        first, last = (int(match[1]), min(int(match[2] or total), total - 1)) if match else (total, 0)
        if first > last:
            return Response(status_code=416, headers={"content-range": f"bytes */{total}"})
        headers["content-range"], status = f"bytes {first}-{last}/{total}", 206
    headers["content-length"] = str(last + 1 - first)
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    reader, n_bytes = StoreReader(store, extents, first), last + 1 - first
    if link is None:
        return _Straight(reader, n_bytes, status, headers)
    link.check()
    flow = request.headers.get("kvferry-flow", "")[:100] or request.scope["state"]["connection"]
    return _Paced(reader, n_bytes, link, flow, status, headers)


class _Body(Response):
    """A body that is sent by and by, and told to be of so many bytes."""

    def __init__(self, reader: StoreReader, n_bytes: int, status: int, headers: dict[str, str]) -> None:
        self._reader, self._n_bytes = reader, n_bytes
        self.status_code, self.background = status, None
        self.init_headers(headers)

    async def _head(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})


class _Straight(_Body):
    """A body that goes out as fast as it is taken. The system copies it from the file to the connection, where enough
    of it lies in a row; what is passed through here instead makes the loop wait until there is room again."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope["state"]["connection"]
        transport = connection.transport
        # Paused as long as anything waits to be sent: it would be overtaken by what the system copies.
        transport.set_write_buffer_limits(high=0)
        connection_socket = transport.get_extra_info("socket")
        connected = connection_socket.fileno()
        connection_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        try:
            await self._head(send)
            left = self._n_bytes
            while left and not transport.is_closing():
                sent = 0
                if self._reader.in_a_row_bytes() >= _PASSED_BYTES and not transport.get_write_buffer_size():
                    sent = self._reader.pass_to(connected, left)
                    # h11 counts what it does not see; all it wants is the length.
                    connection.conn.send_with_data_passthrough(h11.Data(data=range(sent)))
                if not sent:
                    piece = self._reader.take(min(left, _PASSED_BYTES))
                    async with asyncio.timeout(STALL_S):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                    sent = len(piece)
                left -= sent
            connection_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except (DamagedStore, OSError) as error:  # TimeoutError is one
            if isinstance(error, DamagedStore):
                print(f"kvferry: {error}", file=sys.stderr)
            transport.abort()


class _Paced(_Body):
    """A body that goes out at the link's pace. A client that goes away, or does not take what is sent, gives up its
    place at once."""

    def __init__(
        self, reader: StoreReader, n_bytes: int, link: PacedLink, flow: object, status: int, headers: dict[str, str]
    ) -> None:
        super().__init__(reader, n_bytes, status, headers)
        self._link, self._flow = link, flow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() or sending.exception() is not None:
                scope["state"]["connection"].transport.abort()
            if sending.done() and isinstance(sending.exception(), DamagedStore):
                print(f"kvferry: {sending.exception()}", file=sys.stderr)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        await self._head(send)
        clock, left = asyncio.get_running_loop().time, self._n_bytes
        async with asyncio.timeout(None) as stall, aclosing(self._link.portions(self._flow, left)) as portions:
            async for portion in portions:
                left -= portion
                stall.reschedule(clock() + STALL_S)
                await send({"type": "http.response.body", "body": self._reader.take(portion), "more_body": left > 0})
                stall.reschedule(None)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Guard:
    """Lets in who has the token, or who speaks to this machine by its own name; and only requests without a body."""

    def __init__(self, app: Starlette, token: str | None) -> None:
        self.app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        try:
            await (refusal or self.app)(scope, receive, send)
        except Exception as error:
            # Said in a line, without what the request carried; its connection is closed.
            print(f"kvferry: could not answer {scope['path'][:200]!r}: {error!r:.300}", file=sys.stderr)
            scope["state"]["connection"].transport.abort()

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        if len(scope["raw_path"]) + len(scope["query_string"]) > MOST_HEAD_BYTES:
            return PlainTextResponse(f"asks for more than {MOST_HEAD_BYTES:,} bytes can say", 414)
        if self._token is None:
            # A page in this machine's browser must not read the store under a name of its own.
            host = re.sub(r":\d+$", "", headers.get(b"host", b"").decode("latin-1"))
            if not _is_loopback(host.strip("[]")):
                return PlainTextResponse("without a token, this server answers to localhost only", 403)
        elif not hmac.compare_digest(headers.get(b"authorization", b""), b"Bearer " + self._token.encode()):
            return PlainTextResponse("needs the right token", 401, headers={"www-authenticate": "Bearer"})
        if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
            return PlainTextResponse("takes no body", 413, headers={"connection": "close"})
        return None


class _Connection(H11Protocol):
    """uvicorn's, with an end to waiting for a request that comes byte by byte, and a way to hang up."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.app_state: dict[str, Any] = {**self.app_state, "connection": self}
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        # Or small answers would wait for the acknowledgement of what went before.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE or (self.cycle is not None and self.cycle.response_complete):
            self._await_head()
        elif self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(HEAD_S, self.transport.abort)


@lru_cache(maxsize=64)
def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int, token: str | None) -> socket.socket:
    """A socket that accepts connections. Raises InputError when that cannot be, or would let in anyone at all."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if token is None and not ip_address(address[0]).is_loopback:
            raise InputError(
                f"{host} can be reached from elsewhere: a token is needed there; put one in KVFERRY_TOKEN, or in a "
                f"file that --token-file names"
            )
        return socket.create_server(address[:2], family=family, backlog=MOST_CONNECTIONS)
    except OSError as error:
        raise InputError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from None


def serve(
    path: Path,
    *,
    trace: RateTrace | None = None,
    rtt_s: float = 0.0,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    tell: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a store, or a folder of them, until interrupted: KeyboardInterrupt is raised then. `tell` gets the URL.

    With a trace, bytes are handed out as it plays from the first request for them on. Raises InputError.
    """
    folder = StoreFolder(path)
    if trace is None and rtt_s:
        trace = RateTrace.constant(1e14)  # as fast as it goes, but not at once
    link = PacedLink(trace, rtt_s) if trace is not None else None
    with listen(host, port, token) as listening:
        address = listening.getsockname()
        tell(f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}")
        # epoll counts in milliseconds, select in microseconds; connections are few.
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
            runner.run(answer(application(folder, link, token), listening, link))


async def answer(
    app: Guard, listening: socket.socket, link: PacedLink | None, begun: Callable[[uvicorn.Server], None] | None = None
) -> None:
    """Answer requests until told to stop: by a signal, or by the `should_exit` of the server that `begun` is given."""
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=GOODBYE_S,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
    )
    server = uvicorn.Server(config)
    if begun is not None:
        begun(server)
    pacing = asyncio.ensure_future(link.run()) if link is not None else None
    try:
        await server.serve(sockets=[listening])
    finally:
        if pacing is not None:
            pacing.cancel()

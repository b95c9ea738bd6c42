"""The cloud: serves the contexts of a store folder over HTTP, at the pace of a replayed link.

    GET  /contexts                       the names, one per line
    GET  /contexts/NAME/index            the index, as `Index.to_bytes` writes it; its ETag identifies this store
    GET  /contexts/NAME/chunks?ids=0-7,12&level=0    these chunks one after the other, in the order of the ids
    GET  /contexts/NAME/file             the whole file
    PUT  /contexts/NAME                  a whole file, to be kept under this name: where the server takes any
    POST /replay                         restart the link's trace

`chunks` and `file` are paced, and so is what is put, on a way of its own. The first two support `Range: bytes=FROM-` or
`FROM-TO`; `If-Match` with an ETag refuses another version of the store. `Kvferry-Flow` names the flow of a request:
answers of a flow are sent in order, flows share the link; without it, each connection is a flow. The head of an answer
is sent at once; the bytes of its body take the round trip.
"""

import asyncio
import re
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from io import BytesIO
from ipaddress import ip_address
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from kvferry.cloud.chunk_ids import read_ids
from kvferry.cloud.connections import MOST_CONNECTIONS, Connection, Connections, new_event_loop
from kvferry.cloud.guard import MOST_HEAD_BYTES, Guard, Receive, Scope, Send
from kvferry.cloud.pacing import PacedLink
from kvferry.cloud.store import DamagedStore, Store
from kvferry.cloud.store_folder import NoContext, StoreFolder
from kvferry.specs.errors import InputError, LinkDown
from kvferry.traces.rate import RateTrace


class StoreReader:
    """Reads these (offset, length) of a store in order, from `skip` bytes on."""

    def __init__(self, store: Store, extents: Sequence[tuple[int, int]], skip: int) -> None:
        self._store = store
        self._extents = iter(_joined(extents))
        self._offset, self._left = 0, 0
        while skip >= self._left:
            skip -= self._left
            self._offset, self._left = next(self._extents)
        self._offset, self._left = self._offset + skip, self._left - skip

    def take(self, n_bytes: int) -> bytes:
        """The next bytes. Raises DamagedStore when the file has become shorter than its index says."""
        parts = []
        while n_bytes:
            if not self._left:
                self._offset, self._left = next(self._extents)
            part = self._store.bytes_at(self._offset, min(n_bytes, self._left))
            if not part:
                raise DamagedStore(f"{self._store.path}: was cut short while it was served")
            self._offset, self._left = self._offset + len(part), self._left - len(part)
            parts.append(part)
            n_bytes -= len(part)
        return b"".join(parts)


def _joined(extents: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in fewer pieces: the ones that lie next to each other in the file become one."""
    joined: list[tuple[int, int]] = []
    for offset, length in extents:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = joined[-1][0], joined[-1][1] + length
        else:
            joined.append((offset, length))
    return joined


# A kept connection without a request is closed after this long.
IDLE_S = 120
# When the server stops, answers that are being sent have this long to finish.
GOODBYE_S = 1
# The most bytes of a file that is put.
MOST_PUT_BYTES = 2**26
# An unpaced answer is sent in pieces of this size, each read when the one before has left.
_PIECE_BYTES = 2**18
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})", re.ASCII)


def application(
    folder: StoreFolder, link: PacedLink | None, token: str | None, up: PacedLink | None = None, *, takes: bool = False
) -> "Guard":
    """The server as an ASGI application. Without a link it sends as fast as it can; without a token, it needs none. It
    `takes` files that are put, over the link `up`."""

    async def contexts(request: Request) -> Response:
        return PlainTextResponse("".join(f"{name}\n" for name in folder.names()))

    async def index(request: Request) -> Response:
        store = folder.open(request.path_params["name"])
        headers = {"content-type": "application/octet-stream", "etag": store.tag}
        if request.method == "HEAD":
            return Response(status_code=200, headers=headers | {"content-length": str(len(store.table))})
        return _Body(BytesIO(store.table).read, len(store.table), 200, headers)

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

    async def put(request: Request) -> Response:
        name, n_bytes = request.path_params["name"], int(request.headers.get("content-length", "0"))
        content = await _taken(request, n_bytes, up)
        # Others are paced meanwhile: a file is written, read again and checked.
        tag = await run_in_threadpool(folder.keep, name, content)
        return Response(status_code=204, headers={"etag": tag})

    async def replay(request: Request) -> Response:
        for way in (link, up):
            if way is not None:
                way.restart()
        return Response(status_code=204)

    routes = [
        Route("/contexts/{name}/chunks", chunks),  # routes are tried in order; this is the one used most
        Route("/contexts", contexts),
        Route("/contexts/{name}/index", index),
        Route("/contexts/{name}/file", file),
        Route("/replay", replay, methods=["POST"]),
    ]
    if takes:
        routes.append(Route("/contexts/{name}", put, methods=["PUT"]))
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(_REFUSALS, _refuse))
    return Guard(app, token, MOST_PUT_BYTES if takes else 0)


async def _taken(request: Request, n_bytes: int, up: PacedLink | None) -> bytes:
    """Returns the body of a request, taken at the link's pace."""
    body, came = bytearray(), request.stream()

    async def take(until: int) -> None:
        while len(body) < until:
            body.extend(await anext(came))

    if up is None:
        await take(n_bytes)
        return bytes(body)
    up.check()
    due = 0
    async with aclosing(up.portions(request.scope["state"]["connection"], n_bytes)) as portions:
        async for portion in portions:
            due += portion
            await take(due)
    return bytes(body)


async def _refuse(request: Request, error: Exception) -> Response:
    status = next(status for kind, status in _REFUSALS.items() if isinstance(error, kind))
    if status == 500:
        # The path of the damaged store is shown here, and not to the client.
        print(f"kvferry: {error}", file=sys.stderr)
        return PlainTextResponse("this context's store is damaged", status)
    return PlainTextResponse(str(error), status)


_REFUSALS: dict[type[Exception], int] = {NoContext: 404, InputError: 400, LinkDown: 410, DamagedStore: 500}


def _answer(request: Request, store: Store, extents: Sequence[tuple[int, int]], link: PacedLink | None) -> Response:
    """The answer with these (offset, length) of the store, or with the range of them that the request names."""
    wanted = request.headers.get("if-match", "*")
    if wanted not in ("*", store.tag):
        return PlainTextResponse("this context was stored again", 412)
    total = sum(length for _, length in extents)
    headers = {"accept-ranges": "bytes", "content-type": "application/octet-stream", "etag": store.tag}
    first, last, status = 0, total - 1, 200
    if "range" in request.headers:
        match = _RANGE.fullmatch(request.headers["range"])
        first, last = (int(match[1]), min(int(match[2] or total), total - 1)) if match else (total, 0)
        if first > last:
            return Response(status_code=416, headers={"content-range": f"bytes */{total}"})
        headers["content-range"], status = f"bytes {first}-{last}/{total}", 206
    n_bytes = last + 1 - first
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers | {"content-length": str(n_bytes)})
    reader = StoreReader(store, extents, first)
    if link is None:
        return _Body(reader.take, n_bytes, status, headers)
    link.check()
    flow = request.headers.get("kvferry-flow", "")[:100] or request.scope["state"]["connection"]
    return _PacedBody(reader.take, n_bytes, status, headers, link, flow)


class _Body(Response):  # type: ignore[misc]
    """A body that is sent piece by piece, as fast as the client takes it. `take(n)` returns its next n bytes.

    One piece waits in memory at a time, so that a client that does not read holds no more than that.
    """

    def __init__(self, take: Callable[[int], bytes], n_bytes: int, status: int, headers: dict[str, str]) -> None:
        self._take, self._n_bytes = take, n_bytes
        self.status_code, self.background = status, None
        self.init_headers(headers | {"content-length": str(n_bytes)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"]["connection"]
        try:
            await self._send(send, connection)
        except DamagedStore as error:
            print(f"kvferry: {error}", file=sys.stderr)
            connection.abort()

    async def _send(self, send: Send, connection: Connection) -> None:
        await self._send_head(send)
        left = self._n_bytes
        while left and not connection.closing:
            piece = self._take(min(left, _PIECE_BYTES))
            left -= len(piece)
            await send({"type": "http.response.body", "body": piece, "more_body": left > 0})

    async def _send_head(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})


class _PacedBody(_Body):
    """A body that is sent at the link's pace. A client that disconnects gives up its place at once."""

    def __init__(
        self,
        take: Callable[[int], bytes],
        n_bytes: int,
        status: int,
        headers: dict[str, str],
        link: PacedLink,
        flow: object,
    ) -> None:
        super().__init__(take, n_bytes, status, headers)
        self._link, self._flow = link, flow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(super().__call__(scope, receive, send))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not sending.done() or sending.exception() is not None:
                scope["state"]["connection"].abort()
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send(self, send: Send, connection: Connection) -> None:
        await self._send_head(send)
        left = self._n_bytes
        async with aclosing(self._link.portions(self._flow, left)) as portions:
            async for portion in portions:
                left -= portion
                await send({"type": "http.response.body", "body": self._take(portion), "more_body": left > 0})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def listen(host: str, port: int, token: str | None) -> socket.socket:
    """A socket that accepts connections. Raises InputError when it cannot be had, or when other machines could reach it
    and there is no token."""
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


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(
    path: Path,
    *,
    trace: RateTrace | None = None,
    rtt_s: float = 0.0,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    up: RateTrace | None = None,
    takes: bool = False,
    tell: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve a store, or a folder of them, until interrupted; then raises KeyboardInterrupt. Calls `tell` with the URL
    once Ctrl-C is the event loop's own affair.

    With a trace, bytes are sent at its rates, from the first request for chunks on. It `takes` files that are put, at
    the rates of `up` where there is a trace. Raises InputError.
    """
    if takes and token is None:
        raise InputError("a server that takes files needs a token")
    folder = StoreFolder(path)
    if trace is None and rtt_s:
        trace = RateTrace.constant(1e14)  # as fast as it goes, but not at once
    link = PacedLink(trace, rtt_s) if trace is not None else None
    way_up = PacedLink(up or trace, rtt_s) if takes and trace is not None else None

    async def begin(listening: socket.socket) -> None:
        tell(url_of(listening))
        await answer(application(folder, link, token, way_up, takes=takes), listening, link, ways=[way_up])

    with listen(host, port, token) as listening, asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(begin(listening))


async def answer(
    app: Guard,
    listening: socket.socket,
    link: PacedLink | None,
    begun: Callable[[uvicorn.Server], None] | None = None,
    ways: Sequence[PacedLink | None] = (),
) -> None:
    """Answer requests until a signal comes, or `should_exit` is set on the server that `begun` is called with."""
    config = uvicorn.Config(
        app,
        http=partial(Connection, Connections()),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=MOST_CONNECTIONS,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=GOODBYE_S,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
    )
    server = uvicorn.Server(config)
    if begun is not None:
        begun(server)
    pacing = [asyncio.ensure_future(way.run()) for way in (link, *ways) if way is not None]
    try:
        await server.serve(sockets=[listening])
    finally:
        for one in pacing:
            one.cancel()

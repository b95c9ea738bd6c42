"""Who may ask a server, and how much: a check in front of an application."""

import hmac
import re
import sys
from collections.abc import Awaitable, Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response

from kvferry.cloud.connections import Connection

# What a client may ask of the server: this many bytes in a request's first line and in its headers.
MOST_HEAD_BYTES = 2**16
# Of the length of a body: more are no number of bytes, or begin with zeros.
_MOST_DIGITS = 20

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Guard:
    """Answers only requests that have the token, or come from this machine if there is none; that are not sent by
    another site's page in a browser; and whose body is no longer than allowed, and says how long it is."""

    def __init__(self, app: Starlette, token: str | None, most_body_bytes: int = 0) -> None:
        self.app, self._token, self._most_body_bytes = app, token, most_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"]["connection"]
        connection.begin_request()
        try:
            await (self._refusal(scope) or self.app)(scope, receive, send)
        except Exception as error:
            # One line, without what the request carried; its connection is closed.
            print(f"kvferry: could not answer {scope['path'][:200]!r}: {error!r:.300}", file=sys.stderr)
            connection.abort()
        finally:
            connection.end_request()

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        if len(scope["raw_path"]) + len(scope["query_string"]) > MOST_HEAD_BYTES:
            return PlainTextResponse(f"asks for more than {MOST_HEAD_BYTES:,} bytes can say", 414)
        if _head_bytes(scope) > MOST_HEAD_BYTES:
            return PlainTextResponse(f"has a head of more than {MOST_HEAD_BYTES:,} bytes", 431)
        host = headers.get(b"host", b"").decode("latin-1")
        if self._token is None:
            # A page whose own name was made to point at this machine sends that name.
            if not _is_loopback(re.sub(r":\d+$", "", host).strip("[]")):
                return PlainTextResponse("without a token, this server answers to localhost only", 403)
        elif not hmac.compare_digest(headers.get(b"authorization", b""), b"Bearer " + self._token.encode()):
            return PlainTextResponse("needs the right token", 401, headers={"www-authenticate": "Bearer"})
        if _from_another_site(headers, host):
            return PlainTextResponse("this server answers no pages of other sites", 403)
        length = headers.get(b"content-length", b"0")
        is_short = length.isdigit() and len(length) <= _MOST_DIGITS and int(length) <= self._most_body_bytes
        if not is_short or b"transfer-encoding" in headers:
            most = self._most_body_bytes
            what = f"takes a body of at most {most:,} bytes, and its length first" if most else "takes no body"
            return PlainTextResponse(what, 413, headers={"connection": "close"})
        return None


def _head_bytes(scope: Scope) -> int:
    """uvicorn bounds heads that are not whole yet: one that comes at once may be as long as what is read at once."""
    asked = len(scope["raw_path"]) + len(scope["query_string"]) + bool(scope["query_string"])
    lines = sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])
    return len(f"{scope['method']}  HTTP/{scope['http_version']}\r\n") + asked + lines + len("\r\n")


def _from_another_site(headers: dict[bytes, bytes], host: str) -> bool:
    """Whether a browser sent this request for a page that this server did not serve.

    A browser sends simple requests (such as POST /replay) to any address that a page names, without asking first; it
    then says where the page is from, in one of these headers or both.
    """
    if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        return True
    origin = headers.get(b"origin")
    return origin is not None and origin.decode("latin-1") not in (f"http://{host}", f"https://{host}")


@lru_cache(maxsize=64)
def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

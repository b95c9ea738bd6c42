"""What crosses a channel over HTTP: messages, parts of streams, their ends, and goodbye, each as a line of JSON."""

import base64
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kvferry.backends.live.engine.messages import packed, rebuilt

# The kinds of events, as both sides name them.
MESSAGE, PART, END, GOODBYE = "message", "part", "end", "goodbye"
KINDS = frozenset((MESSAGE, PART, END, GOODBYE))
# The first event of a stream: with what the device says to this channel from now on.
OPEN = "open"
# The header by which a device that comes again is known.
CALLER = "kvferry-caller"
# A prompt of a million tokens takes some 4 MiB.
MOST_EVENT_BYTES = 2**24
# What an event takes in memory while it waits, besides its value: its own fields, and when it came.
_EVENT_BYTES = 200
# What a server answers with 404 to what is said behind a channel's end: why it has ended, its stream says.
ENDED = "this channel has ended"
# What a server says when it has nothing to say, so that the other side knows it to be there.
SIGN_OF_LIFE = b": here\n\n"


class NoEvent(ValueError):
    """What was read is no event of ours."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that was said. `weighs` is what it weighs on a modelled link, in bytes; `n_bytes` what it takes
    here while it waits: values of a few characters are far larger in memory, and a text with one character of four
    bytes has four for each."""

    kind: str
    value: Any = None
    weighs: float = 0.0
    n_bytes: int = 0


def written(value: Any, weighs: float) -> bytes:
    """The data of an event: one line of JSON, with bytes in base64. Raises TypeError for what no message can hold,
    ValueError for what is too long."""
    text, blobs = packed(value)
    parts = [b'{"weighs":', repr(float(weighs)).encode(), b',"value":', text]
    if blobs:
        parts += [b',"bytes":"', base64.b64encode(b"".join(blobs)), b'"']
    data = b"".join((*parts, b"}"))
    if len(data) > MOST_EVENT_BYTES:
        raise ValueError(f"a message of {len(data):,} bytes is longer than {MOST_EVENT_BYTES:,}")
    return data


def read(kind: str, data: bytes) -> Event:
    """Raises NoEvent."""
    if kind not in KINDS:
        raise NoEvent(f"an event of kind {kind!r:.40}")
    try:
        found = json.loads(data)
        weighs = float(found["weighs"])
        blobs = base64.b64decode(found.get("bytes", ""), validate=True)
        if not (isinstance(found["weighs"], int | float) and 0 <= weighs < math.inf):
            raise NoEvent(f"an event that weighs {weighs} bytes")
        value = rebuilt(found["value"], blobs)
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise NoEvent(f"{type(error).__name__}: {error}") from None
    if kind == MESSAGE and value is None:
        raise NoEvent("a message that says nothing")
    return Event(kind, value, weighs, _EVENT_BYTES + _in_memory_bytes(value))


def _in_memory_bytes(value: Any) -> int:
    n_bytes, left = 0, [value]
    while left:
        one = left.pop()
        n_bytes += sys.getsizeof(one)
        if isinstance(one, dict):
            left += one.keys()
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one
    return n_bytes


def as_sent(kind: str, data: bytes) -> bytes:
    """As it stands in a stream of server-sent events."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def events(readline: Callable[[int], bytes]) -> Iterator[tuple[str, bytes]]:
    """The kind and data of every event, as they come, until the stream ends. Raises NoEvent for what is no stream of
    ours: each event has one line of each, and nothing else. Comments are skipped."""
    kind, data = "", b""
    while line := readline(MOST_EVENT_BYTES + 64):
        if not line.endswith(b"\n"):
            if len(line) > MOST_EVENT_BYTES:
                raise NoEvent(f"a line of more than {MOST_EVENT_BYTES:,} bytes")
            return  # cut off
        line = line.rstrip(b"\r\n")
        name, _, content = line.partition(b":")
        content = content.removeprefix(b" ")
        if not line:
            if kind:
                yield kind, data
            kind, data = "", b""
        elif name == b"event":
            kind = content[:40].decode("latin-1")
        elif name == b"data":
            data = content
        elif name:
            raise NoEvent(f"a line that begins with {line[:40]!r}")

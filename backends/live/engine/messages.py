"""What a message may hold, and how it is written: JSON and bytes, never code."""

import json
from typing import Any


def packed(message: Any) -> tuple[bytes, list[memoryview]]:
    """A message as JSON text, and the bytes in it. Raises TypeError for what no message can hold."""
    blobs: list[memoryview] = []

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [plain(each) for each in value]
        # Everything else has a tag, so that nothing can be taken for it.
        if isinstance(value, tuple):
            return {"tuple": [plain(each) for each in value]}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": {key: plain(each) for key, each in value.items()}}
        if isinstance(value, bytes | bytearray | memoryview):
            blobs.append(memoryview(value).cast("B"))
            return {"bytes": len(blobs[-1])}
        raise TypeError(f"a message cannot hold {type(value).__name__}: send numbers, text, lists, tuples, bytes")

    return json.dumps(plain(message)).encode(), blobs


def unpacked(text: bytes | bytearray, blobs: bytes | bytearray) -> Any:
    """Raises ValueError, TypeError, AttributeError or RecursionError for what is no message."""
    return rebuilt(json.loads(text.decode()), blobs)


def rebuilt(plain: Any, blobs: bytes | bytearray) -> Any:
    """The message whose JSON text has been read already. Raises what ``unpacked`` does."""
    at = 0

    def whole(value: Any) -> Any:
        nonlocal at
        if isinstance(value, list):
            return [whole(each) for each in value]
        if not isinstance(value, dict):
            return value
        ((tag, content),) = value.items()
        # Of a list only: the letters of a text would each become a value, far larger than it came.
        if tag == "tuple" and isinstance(content, list):
            return tuple(whole(each) for each in content)
        if tag == "dict":
            return {key: whole(each) for key, each in content.items()}
        if tag == "bytes" and 0 <= content <= len(blobs) - at:
            at += content
            return bytes(blobs[at - content : at])
        raise ValueError(f"unknown tag {tag!r}")

    return whole(plain)

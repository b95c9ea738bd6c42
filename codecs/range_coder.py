"""A range coder with a model of its own for each part of a chunk, from constriction (the torch extra).

Payload: for each part the symbols' frequencies, u16 each; then the coder's words, u32 each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvferry.specs.errors import MissingExtra

_MOST_FREQUENT = 2**16 - 1
Buffer = bytes | memoryview


def encode(parts: Sequence[np.ndarray], symbols: int) -> bytes:
    """A payload that holds the parts, uint8[n] each, of symbols below `symbols`. Raises MissingExtra."""
    tables = [_frequencies(part, symbols) for part in parts]
    encoder = _constriction().stream.queue.RangeEncoder()
    for part, table in zip(parts, tables, strict=True):
        encoder.encode(part.astype(np.int32), _model(table))
    words = encoder.get_compressed().astype("<u4")
    return b"".join([*(table.astype("<u2").tobytes() for table in tables), words.tobytes()])


def decode(payload: Buffer, sizes: Sequence[int], symbols: int) -> list[np.ndarray]:
    """uint8[n] for each n of `sizes`: the parts. Raises ValueError for a payload that `encode` cannot have made."""
    table_bytes = 2 * symbols * len(sizes)
    if len(payload) < table_bytes or (len(payload) - table_bytes) % 4:
        raise ValueError("no room for its frequencies, or half a word at the end")
    tables = np.frombuffer(payload, "<u2", symbols * len(sizes)).reshape(len(sizes), symbols)
    if not tables.any(axis=1).all():
        raise ValueError("no symbol occurs in it")
    decoder = _constriction().stream.queue.RangeDecoder(
        np.frombuffer(payload, "<u4", offset=table_bytes).astype(np.uint32)
    )
    try:
        parts = [
            decoder.decode(_model(table), size).astype(np.uint8) for table, size in zip(tables, sizes, strict=True)
        ]
    except AssertionError as error:  # what constriction raises at data it could not have written
        raise ValueError(str(error)) from None
    if not decoder.maybe_exhausted():
        raise ValueError("words are left over")
    return parts


def _frequencies(part: np.ndarray, symbols: int) -> np.ndarray:
    counts = np.bincount(part, minlength=symbols)
    # No symbol that occurs may get the frequency 0.
    return -(-counts * _MOST_FREQUENT // max(counts.max(), _MOST_FREQUENT))


def _model(frequencies: np.ndarray) -> Any:
    # Integer division gives the same bits on every machine; otherwise another machine could not decode.
    shares = (frequencies / frequencies.sum()).astype(np.float32)
    return _constriction().stream.model.Categorical(shares, perfect=False)


def _constriction() -> Any:
    try:
        import constriction
    except ImportError:
        raise MissingExtra("the cachegen codec needs constriction: pip install '.[torch]'") from None
    return constriction

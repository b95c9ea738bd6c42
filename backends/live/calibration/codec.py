"""Entropy decoding as loads have it done: by the workers of a CodecPool, one layer of a token chunk at a time."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from time import perf_counter

from kvferry.backends.live import codec
from kvferry.backends.live.calibration.measurement import Measurement, repeated
from kvferry.backends.live.calibration.rig import Rig
from kvferry.backends.live.calibration.task import Task
from kvferry.backends.live.codec_pool import CodecPool
from kvferry.backends.live.session import Session
from kvferry.traces.chunks import CHUNK_TOKENS

# Those that are entropy-coded, the one whose rate is the profile's own first.
CODECS = ("huffman", "cachegen")
_PIECES = 12


def tasks(rig: Rig) -> Iterator[Task]:
    for name in CODECS:
        for tokens in (rig.settings.chunk_tokens[0], CHUNK_TOKENS):
            task = f"codec: {name} pieces of {tokens} tokens"
            yield Task(task, lambda c=name, n=tokens: [decoding(rig, c, n)])  # type: ignore[misc]


def piece(rig: Rig, name: str, tokens: int) -> list[bytes]:
    """Encoded chunks of all heads of the model's first layer, of one token chunk: keys and values that it computed."""
    session = Session(rig.model, rig.context(tokens), chunk_tokens=tokens)
    session.project(0, 0)
    sides = (session.kv.chunk(0, 0, h) for h in range(session.kv.heads))
    return [codec.encode(name, keys.float().cpu().numpy(), values.float().cpu().numpy()) for keys, values in sides]


def decoding(rig: Rig, name: str, tokens: int) -> Measurement:
    """Seconds of one piece while every worker has one."""
    chunks = piece(rig, name, tokens)
    values = sum(codec.shape_of(chunk).values for chunk in chunks)
    with CodecPool(rig.settings.workers) as pool:
        samples = repeated(
            lambda: piece_seconds(pool, chunks, rig.settings.workers), least=2 * _PIECES, seconds=rig.settings.point_s
        )
    at = {"values": float(values), "bytes": float(sum(map(len, chunks))), "workers": float(rig.settings.workers)}
    return Measurement(what=f"decode {name}", unit="s", values=samples, at=at)


def piece_seconds(pool: CodecPool, chunks: list[bytes], workers: int) -> list[float]:
    """From handing a piece to a worker that is free to having it back, again and again, with all workers at work."""
    under_way: deque[tuple[float, Future[list[codec.KeysValues]]]] = deque()
    seconds = []
    for n in range(_PIECES + workers):
        if n < _PIECES:
            under_way.append((perf_counter(), pool.decode(chunks)))
        if len(under_way) >= workers or n >= _PIECES:
            if not under_way:
                break
            began_s, future = under_way.popleft()
            future.result()
            seconds.append(perf_counter() - began_s)
    return seconds

"""Codecs: size, error and speed, beside what constriction does by itself.

Numbers are made up to be like keys and values: channels of keys with a mean and a spread of their own, values with
heavy tails. Sizes stand beside the ones that the simulator reckons with, from the entropy of the same symbols. Errors
are relative: root mean square over the standard deviation of each channel.

Speeds of one core are in processor time, best of several: other work on the machine counts less. The ceiling of
cachegen is constriction's range coder on bare symbols; huffman has none in Python but the same, since constriction
hands out Huffman codes symbol by symbol only. Speeds of the pool are in wall-clock time and per second of its workers'
processor time: their ratio is how many cores it got.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.row import Row, best_s, higher, lower
from kvferry.codecs import codec
from kvferry.codecs import sizes as modelled
from kvferry.codecs.pool import CodecPool
from kvferry.codecs.quantise import per_channel

TOKENS, HEAD_DIM, HEADS = 1024, 128, 8
VALUES = 2 * TOKENS * HEAD_DIM
REPEATS = 9
ROUNDS, PIECES = 4, 40


def chunk(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    spread, mean = np.exp(rng.normal(0, 1, HEAD_DIM)), rng.normal(0, 4, HEAD_DIM)
    k = rng.standard_normal((TOKENS, HEAD_DIM)) * spread + mean
    return k.astype(np.float32), rng.standard_t(6, (TOKENS, HEAD_DIM)).astype(np.float32)


def processor_s(work: Callable[[], object]) -> float:
    return best_s(work, rounds=REPEATS, clock=time.thread_time)


def error(before: np.ndarray, after: np.ndarray) -> float:
    return float(np.sqrt((np.square(after - before).mean(axis=0) / before.var(axis=0)).mean()))


def symbols_of(k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return per_channel(np.concatenate([k, v], axis=1), 31, 0.25)[0].ravel()


def entropy_of(symbols: np.ndarray) -> float:
    shares = np.bincount(symbols) / symbols.size
    return -float((shares[shares > 0] * np.log2(shares[shares > 0])).sum())


def one_core() -> Iterator[Row]:
    k, v = chunk(0)
    entropy = entropy_of(symbols_of(k, v))
    for name, kind in codec.CODECS.items():
        encoding = modelled.CODECS[name](np.array([[[entropy]]]), VALUES)
        for level, scale in enumerate(encoding.level_scale):
            data = codec.encode(name, k, v, level)
            heads = [codec.encode(name, *chunk(head), level) for head in range(HEADS)]
            decoded = codec.decode(data)
            what = f"{name} {level} of {kind.levels}"
            model_bits = 8 * encoding.encoded_bytes.item() * scale / VALUES
            yield lower(f"{what}: size (modelled)", 8 * len(data) / VALUES, "bits/value", model_bits)
            yield lower(f"{what}: error of keys", error(k, decoded[0]), "deviation")
            yield lower(f"{what}: error of values", error(v, decoded[1]), "deviation")
            for way, n_values, work in (
                ("encode", VALUES, lambda name=name, level=level: codec.encode(name, k, v, level)),
                ("decode", VALUES, lambda data=data: codec.decode(data)),
                ("decode 8 heads", HEADS * VALUES, lambda heads=heads: codec.decode_many(heads)),
            ):
                yield higher(f"{what}: {way}", n_values / processor_s(work) / 1e6, "Mvalues/s")


def constrictions_own() -> Iterator[Row]:
    """The ceiling of cachegen, and what Huffman codes are beside."""
    import constriction

    symbols = symbols_of(*chunk(0)).astype(np.int32)
    shares = (np.bincount(symbols, minlength=32) / symbols.size).astype(np.float32)
    model = constriction.stream.model.Categorical(shares, perfect=False)

    def encode() -> np.ndarray:
        encoder = constriction.stream.queue.RangeEncoder()
        encoder.encode(symbols, model)
        return np.asarray(encoder.get_compressed())

    words = encode()
    few = symbols[:20_000].tolist()
    book = constriction.symbol.huffman.EncoderHuffmanTree(shares)
    tree = constriction.symbol.huffman.DecoderHuffmanTree(shares)

    def encode_each() -> np.ndarray:
        queue = constriction.symbol.QueueEncoder()
        for symbol in few:
            queue.encode_symbol(symbol, book)
        return np.asarray(queue.get_compressed()[0])

    bits = encode_each()

    def decode_each() -> None:
        queue = constriction.symbol.QueueDecoder(bits)
        for _ in few:
            queue.decode_symbol(tree)

    def decode() -> None:
        constriction.stream.queue.RangeDecoder(words).decode(model, symbols.size)

    for what, count, work in (
        ("range coder, bare symbols: encode", symbols.size, encode),
        ("range coder, bare symbols: decode", symbols.size, decode),
        ("Huffman, symbol by symbol: encode", len(few), encode_each),
        ("Huffman, symbol by symbol: decode", len(few), decode_each),
    ):
        yield higher(f"constriction's {what}", count / processor_s(work) / 1e6, "Msymbols/s")


def pools() -> Iterator[Row]:
    for workers in (1, 2):
        for name in codec.CODECS:
            pieces = [[codec.encode(name, *chunk(head)) for head in range(HEADS)]] * PIECES
            with CodecPool(workers) as pool:
                wall_s, used_s = min(decoding_s(pool, pieces) for _ in range(ROUNDS))
            millions = PIECES * HEADS * VALUES / 1e6
            # What the workers' processor time alone would allow, times the workers.
            ceiling = workers * millions / used_s if used_s else None
            yield higher(f"pool, {workers} workers: decode {name}", millions / wall_s, "Mvalues/s", ceiling)


def decoding_s(pool: CodecPool, pieces: list[list[bytes]]) -> tuple[float, float]:
    """Seconds by the wall, and of the workers' processor time. What is decoded is dropped, as it is once it lies where
    attention reads it."""
    before_s, start_s = used_s(pool), time.perf_counter()
    waiting = deque(pool.decode(piece, np.float16) for piece in pieces)
    while waiting:
        waiting.popleft().result()
    return time.perf_counter() - start_s, used_s(pool) - before_s


def used_s(pool: CodecPool) -> float:
    """Processor time of the workers so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0
    for process_id in pool.process_ids:
        with open(f"/proc/{process_id}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / ticks


def rows() -> Iterator[Row]:
    yield from one_core()
    yield from constrictions_own()
    yield from pools()

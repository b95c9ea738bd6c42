"""Codecs: size, error and speed, beside what constriction does by itself: python benchmarks/codec.py

Numbers are made up to be like keys and values: channels of keys with a mean and a spread of their own, values with
heavy tails. Sizes stand beside those that the simulator reckons with, from the entropy of the same symbols. Errors are
relative: root mean square over the standard deviation of each channel.

Speeds of one core are in processor time, best of several: other work on the machine counts less. The ceiling of
cachegen is constriction's range coder on bare symbols; huffman has none in Python but the same, since constriction
hands out Huffman codes symbol by symbol only. Speeds of the pool are in wall-clock time and per second of its workers'
processor time: their ratio is how many cores it got.
"""

import gc
import os
import time
from collections import deque
from collections.abc import Callable

import numpy as np

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
    best_s = float("inf")
    for _ in range(REPEATS):
        gc.collect()
        start_s = time.thread_time()
        work()
        best_s = min(best_s, time.thread_time() - start_s)
    return best_s


def error(before: np.ndarray, after: np.ndarray) -> float:
    return float(np.sqrt((np.square(after - before).mean(axis=0) / before.var(axis=0)).mean()))


def symbols_of(k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return per_channel(np.concatenate([k, v], axis=1), 31, 0.25)[0].ravel()


def entropy_of(symbols: np.ndarray) -> float:
    shares = np.bincount(symbols) / symbols.size
    return -float((shares[shares > 0] * np.log2(shares[shares > 0])).sum())


def one_core() -> None:
    k, v = chunk(0)
    entropy = entropy_of(symbols_of(k, v))
    print(f"A chunk of {TOKENS} tokens, head_dim {HEAD_DIM}; its symbols have {entropy:.2f} bits\n")
    print("codec     level  bits/value  modelled  error of k  of v   encode  decode  decode 8 heads   Mvalues/s")
    for name, kind in codec.CODECS.items():
        encoding = modelled.CODECS[name](np.array([[[entropy]]]), VALUES)
        for level, scale in enumerate(encoding.level_scale):
            data = codec.encode(name, k, v, level)
            heads = [codec.encode(name, *chunk(head), level) for head in range(HEADS)]
            decoded = codec.decode(data)
            rates = (
                VALUES / processor_s(lambda name=name, level=level: codec.encode(name, k, v, level)),
                VALUES / processor_s(lambda data=data: codec.decode(data)),
                HEADS * VALUES / processor_s(lambda heads=heads: codec.decode_many(heads)),
            )
            print(
                f"{name:9} {level} of {kind.levels} {8 * len(data) / VALUES:11.3f}"
                f" {8 * encoding.encoded_bytes.item() * scale / VALUES:9.3f}"
                f" {error(k, decoded[0]):11.4f} {error(v, decoded[1]):6.4f}"
                f" {rates[0] / 1e6:7.0f} {rates[1] / 1e6:7.0f} {rates[2] / 1e6:15.0f}"
            )


def constrictions_own() -> None:
    try:
        import constriction
    except ImportError:
        print("\nconstriction is not installed")
        return
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

    rows = {
        "range coder, bare symbols": (
            symbols.size / processor_s(encode),
            symbols.size
            / processor_s(lambda: constriction.stream.queue.RangeDecoder(words).decode(model, symbols.size)),
        ),
        "Huffman, symbol by symbol": (len(few) / processor_s(encode_each), len(few) / processor_s(decode_each)),
    }
    print("\nconstriction's own           encode  decode   Msymbols/s")
    for label, (encoded, decoded) in rows.items():
        print(f"{label:28} {encoded / 1e6:6.1f} {decoded / 1e6:7.1f}")


def pools() -> None:
    print(f"\n{HEADS} heads a piece, {PIECES} pieces           decode: wall  per processor second   Mvalues/s")
    for workers in (1, 2):
        for name in codec.CODECS:
            pieces = [[codec.encode(name, *chunk(head)) for head in range(HEADS)]] * PIECES
            with CodecPool(workers) as pool:
                wall_s, used_s = min(decoding_s(pool, pieces) for _ in range(ROUNDS))
            values = PIECES * HEADS * VALUES
            label, cores = f"{workers} worker{'s' * (workers > 1)}, {name}", used_s / wall_s
            print(f"{label:32} {values / wall_s / 1e6:12.0f} {values / used_s / 1e6:21.0f}   ({cores:.1f} cores)")


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


if __name__ == "__main__":
    one_core()
    constrictions_own()
    pools()

"""The codecs of chunks: by hand first, then against the sizes that the simulator reckons with."""

import multiprocessing
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_cloud import with_number

from kvferry.codecs import huffman
from kvferry.codecs import sizes as modelled
from kvferry.codecs.codec import CODECS, DamagedChunk, check, decode, decode_many, encode, split
from kvferry.codecs.pool import CodecPool, CodecWorkerDied
from kvferry.codecs.quantise import from_groups, from_minimum, groups_along, per_channel, restore, scales
from kvferry.specs.errors import InputError, KvferryError

HEADER_BYTES = 24


def named(*names: str) -> list:
    """Parameters: cachegen only where its range coder is installed."""
    pytest_skip = pytest.mark.skipif(not _has_constriction(), reason="needs constriction")
    return [pytest.param(name, marks=pytest_skip if name == "cachegen" else ()) for name in names or CODECS]


def _has_constriction() -> bool:
    try:
        import constriction  # noqa: F401
    except ImportError:
        return False
    return True


def chunk(tokens: int = 512, head_dim: int = 32, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Keys with channels of their own mean and spread, values without."""
    rng = np.random.default_rng(seed)
    spread, mean = np.exp(rng.normal(0, 1, head_dim)), rng.normal(0, 5, head_dim)
    k = rng.standard_normal((tokens, head_dim)) * spread + mean
    return k.astype(np.float32), rng.standard_normal((tokens, head_dim)).astype(np.float32)


# --- quantising ------------------------------------------------------------------------------------------------------


def test_steps_of_a_channel_by_hand() -> None:
    # From -2 to 4 in 3 steps of 2. The mean, 0, would get symbol 2, but 4 is two steps above: so symbol 1, and the
    # offset is -2. -0.9 is 0.55 steps above that, -1.1 is 0.45.
    symbols, offset, step = per_channel(np.array([[-2.0], [4.0], [-0.9], [-1.1]]), 3)
    assert (offset.item(), step.item()) == (-2, 2)
    assert symbols.ravel().tolist() == [0, 3, 1, 0]
    assert restore(symbols, scales(offset, step)).ravel().tolist() == [-2, 4, 0, -2]


def test_steps_from_the_minimum_by_hand() -> None:
    symbols, offset, step = from_minimum(np.array([[1.0], [4.0], [1.4], [3.6]]), 3)
    assert (offset.item(), step.item()) == (1, 1)
    assert symbols.ravel().tolist() == [0, 3, 0, 3]


def test_steps_are_rounded_up() -> None:
    # 31.0124 in 31 steps of 1.0004, for which float16 has 1 and 1.00098: with 1 the last symbol would fall short.
    values = np.array([[0.0], [31.0124]])
    for symbols, offset, step in (per_channel(values, 31), from_minimum(values, 31)):
        assert step.item() == 1 + 2.0**-10
        assert np.abs(restore(symbols, scales(offset, step)) - values).max() < 0.51


def test_steps_have_a_least_width() -> None:
    # 0 and 8 in turn: a standard deviation of 4, hence steps of 1 and not of 8/31; the mean, 4, is symbol 16.
    symbols, offset, step = per_channel(np.array([[0.0], [8.0]] * 4), 31, 0.25)
    assert (offset.item(), step.item()) == (4 - 16, 1)
    assert symbols.ravel().tolist() == [12, 20] * 4


def test_a_constant_channel_comes_back_as_it_was() -> None:
    symbols, offset, step = per_channel(np.full((5, 1), 0.5), 31)
    assert not symbols.any() and step.item() == 0
    assert (restore(symbols, scales(offset, step)) == 0.5).all()


def test_a_lopsided_channel_keeps_its_outlier() -> None:
    # 31 zeros and one 32: the mean is 1, steps are 32/31 wide; the outlier is 30 of them above, so the mean gets
    # symbol 1 instead of 16.
    values = np.zeros((32, 1), np.float32)
    values[7] = 32
    symbols, offset, step = per_channel(values, 31)
    assert symbols.ravel().tolist() == [0] * 7 + [31] + [0] * 24
    assert abs(restore(symbols, scales(offset, step))[7].item() - 32) < 0.52


@pytest.mark.parametrize("shape", [(64, 32), (70, 33), (1, 1), (31, 5)])
@pytest.mark.parametrize("axis", [0, 1])
def test_groups_of_32_neighbours(shape: tuple[int, int], axis: int) -> None:
    values = np.arange(shape[0] * shape[1]).reshape(shape)
    groups = groups_along(values, axis)
    assert groups.shape[0] == 32
    # The first column is the first line along the axis: by tokens, one channel; by channels, one token.
    line = values[:32, 0] if axis == 0 else values[0, :32]
    assert groups[: len(line), 0].tolist() == line.tolist()
    assert (from_groups(groups, shape, axis) == values).all()


# --- Huffman ---------------------------------------------------------------------------------------------------------


def test_code_lengths_by_hand() -> None:
    # 1 + 1 join to 2, with 2 to 4, with 4 to 8: depths 3, 3, 2, 1.
    assert huffman.code_lengths([1, 1, 2, 4]).tolist() == [3, 3, 2, 1]
    assert huffman.code_lengths([0, 7, 0]).tolist() == [0, 1, 0]


def test_codes_are_limited_and_still_complete() -> None:
    # Fibonacci counts would want 19 bits for the rarest of 20.
    counts = [1, 1]
    while len(counts) < 20:
        counts.append(counts[-1] + counts[-2])
    lengths = huffman.code_lengths(counts)
    assert lengths.max() == 12
    assert sum(2.0**-lengths) == 1


def test_a_payload_by_hand() -> None:
    # Two symbols, one bit each: 0 -> 0, 1 -> 1. One lane of 4 bits, 0110 0000.
    payload = huffman.encode(np.array([0, 1, 1, 0], np.uint8))
    assert payload == bytes([0x11]) + bytes(15) + struct.pack("<HB", 4, 1) + bytes([0]) + bytes([0b01100000])


@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 1000, 70_000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_symbols_come_back(n: int, spread: float) -> None:
    rng = np.random.default_rng(n)
    several = [np.clip(np.rint(rng.normal(16, spread, n)), 0, 31).astype(np.uint8) for _ in range(3)]
    assert (huffman.decode([huffman.encode(symbols) for symbols in several], n) == np.stack(several)).all()


def test_lanes_of_very_different_length() -> None:
    # Lane 0 gets the rare symbols only, of some 10 bits; the others one bit each: 8 bits do not hold the excess.
    symbols = np.zeros((256, 300), np.uint8)
    symbols[:, 0] = np.arange(256) % 31 + 1
    payload = huffman.encode(symbols.ravel())
    assert payload[18] == 2  # u16 per lane
    assert (huffman.decode([payload], symbols.size) == symbols.ravel()).all()


def test_payloads_that_cannot_be() -> None:
    symbols = np.random.default_rng(0).integers(0, 32, 600).astype(np.uint8)
    payload = huffman.encode(symbols)
    # Three lanes: behind 16 bytes of code and 3 of lanes, a byte each of excess bits. One bit from lane to lane.
    shifted = bytearray(payload)
    giver = 19 if payload[19] else 20
    shifted[giver] -= 1
    shifted[21] += 1
    cases = {
        "does not end where it should": bytes(shifted),
        "bits should be there": payload + b"\0",
        "no room for the code": payload[:18],
        "no room for its lanes": payload[:18] + b"\3" + payload[19:],
        "no code": bytes(16) + payload[16:],
    }
    cases["lengths are no code"] = bytes([payload[0] ^ 2]) + payload[1:]
    for says, bad in cases.items():
        with pytest.raises(ValueError, match=says):
            huffman.decode([bad], symbols.size)


# --- chunks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", named())
@pytest.mark.parametrize("shape", [(1024, 128), (100, 7), (1, 1), (33, 64)])
def test_a_chunk_comes_back_near_to_what_it_was(name: str, shape: tuple[int, int]) -> None:
    k, v = chunk(*shape)
    for level in range(CODECS[name].levels):
        data = encode(name, k, v, level)
        assert check(data) == (name, level, *shape)
        for before, after in zip((k, v), decode(data), strict=True):
            assert after.shape == shape and after.dtype == np.float32
            assert np.abs(after - before).max() <= 1.001 * half_step(name, before, before is k, level)


def half_step(name: str, values: np.ndarray, keys: bool, level: int) -> float:
    if name == "fp16":
        return float(np.abs(values).max()) * 2.0**-11
    if name == "kivi":
        groups = groups_along(values, 0 if keys else 1)
        steps = [np.ptp(groups, axis=0).max() / 3]
    else:
        steps = [
            np.ptp(values, axis=0).max() / [31, 22, 16, 11, 8][level],
            values.std(axis=0).max() / 4 * 2 ** (level / 2),
        ]
    # Scales rounded outwards: by a thousandth of the step and of the offset.
    return max(steps) / 2 * 1.002 + float(np.abs(values).max()) * 2.0**-10


@pytest.mark.parametrize("name", named("cachegen"))
def test_each_level_is_smaller_and_further_off(name: str) -> None:
    k, v = chunk(1024, 64)
    encoded = [encode(name, k, v, level) for level in range(5)]
    errors = [float(np.square(decode(data)[0] - k).mean()) for data in encoded]
    assert sorted(map(len, encoded), reverse=True) == list(map(len, encoded))
    assert sorted(errors) == errors
    assert len(set(errors)) == 5


@pytest.mark.parametrize("name", named())
def test_sizes_are_what_the_simulator_reckons_with(name: str) -> None:
    k, v = chunk(1024, 128)
    symbols, _, _ = per_channel(np.concatenate([k, v], axis=1), 31, 0.25)
    shares = np.bincount(symbols.ravel(), minlength=32) / symbols.size
    entropy = -float((shares[shares > 0] * np.log2(shares[shares > 0])).sum())
    encoding = modelled.CODECS[name](np.array([[[entropy]]]), symbols.size)
    for level, scale in enumerate(encoding.level_scale):
        size = len(encode(name, k, v, level))
        assert size == pytest.approx(encoding.encoded_bytes.item() * scale, rel=0.03 if level == 0 else 0.06)


@pytest.mark.parametrize(("layer", "steps"), [(0, (1, 1)), (2, (1, 2)), (9, (1, 2)), (10, (2, 2)), (31, (2, 2))])
def test_deeper_layers_get_wider_steps(layer: int, steps: tuple[int, int]) -> None:
    """Of 32 layers the first 10 keep fine keys, the first 2 fine values; sizes as modelled, but for the shared code."""
    k, v = chunk(1024, 128)
    data = encode("layerwise", k, v, depth=layer / 32)
    for values, restored, width in zip((k, v), decode(data), steps, strict=True):
        finest = np.maximum(np.ptp(values, axis=0) / 31, values.std(axis=0) / 4)
        off = np.abs(restored - values).max(axis=0) / finest
        assert off.max() < 0.55 * width + 0.02 * np.abs(values).max() / finest.min()
        assert np.median(off) > 0.45 * width
    symbols, _, _ = per_channel(np.concatenate([k, v], axis=1), 31, 0.25)
    shares = np.bincount(symbols.ravel(), minlength=32) / symbols.size
    entropy = -float((shares[shares > 0] * np.log2(shares[shares > 0])).sum())
    modelled_bytes = modelled.CODECS["layerwise"](np.full((1, 32, 1), entropy), symbols.size).encoded_bytes[0, layer, 0]
    assert len(data) == pytest.approx(modelled_bytes, rel=0.08)


def test_a_chunk_of_one_number_weighs_next_to_nothing() -> None:
    k = np.full((1024, 128), 2.5, np.float32)
    # Header, 256 scales of 4 bytes, code, lanes: of 262,144 numbers.
    assert len(encode("huffman", k, k)) == HEADER_BYTES + 1024 + 16 + 3 + 1024
    assert (decode(encode("huffman", k, k))[1] == 2.5).all()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 65_504, -65_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numbers_that_no_model_computes_are_damage(number: float, dtype: type) -> None:
    whole = encode("fp16", *chunk(8, 4))
    assert decode(with_number(whole, 31_000), dtype)[0][0, 0] == pytest.approx(31_000, abs=16)
    with pytest.raises(DamagedChunk, match="not finite, or beyond"):
        decode(with_number(whole, number), dtype)


def test_chunks_in_a_row_are_told_apart() -> None:
    pieces = [encode("huffman", *chunk(64, 16)), encode("fp16", *chunk(5, 16)), encode("kivi", *chunk(40, 16))]
    assert [bytes(piece) for piece in split(b"".join(pieces))] == pieces
    assert split(b"") == []
    with pytest.raises(DamagedChunk, match="of which"):
        split(b"".join(pieces)[:-1])


def test_half_precision_on_request() -> None:
    k, v = chunk()
    data = encode("huffman", k, v)
    both, single = decode(data, np.float16), decode(data)
    assert both[0].dtype == np.float16
    assert (both[1] == single[1].astype(np.float16)).all()


def test_chunks_of_different_kinds_decoded_together_keep_their_order() -> None:
    pieces = [encode(name, *chunk(tokens, 16)) for tokens in (64, 50) for name in ("huffman", "kivi", "huffman")]
    for data, (k, v) in zip(pieces, decode_many(pieces), strict=True):
        assert (k == decode(data)[0]).all() and (v == decode(data)[1]).all()


# --- what must be refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 32_001.0, 1e30])
@pytest.mark.parametrize("name", named())
def test_numbers_that_16_bits_cannot_hold(name: str, bad: float) -> None:
    k, v = chunk(40, 8)
    v[3, 3] = bad
    with pytest.raises(InputError, match="finite and within"):
        encode(name, k, v)


def test_the_largest_numbers_survive_half_precision() -> None:
    k = np.array([[-32_000.0, 3.0], [32_000.0, 4.0], [-20_000.0, 0.0]])
    for name, codec in CODECS.items():
        for level in range(codec.levels if name != "cachegen" or _has_constriction() else 0):
            assert np.isfinite(decode(encode(name, k, k, level), np.float16)[0]).all()


def test_unknown_names_and_levels() -> None:
    k, v = chunk(4, 4)
    with pytest.raises(InputError, match="Did you mean 'huffman'"):
        encode("hufman", k, v)
    with pytest.raises(InputError, match="levels 0 to 0, not 1"):
        encode("kivi", k, v, 1)


@pytest.mark.parametrize("name", named())
def test_damage_anywhere_is_noticed(name: str) -> None:
    data = encode(name, *chunk(40, 8))
    for i in range(len(data)):
        with pytest.raises(DamagedChunk):
            decode(data[:i] + bytes([data[i] ^ 4]) + data[i + 1 :])
        with pytest.raises(DamagedChunk):
            decode(data[:i])
    with pytest.raises(DamagedChunk):
        decode(data + b"\0")


def resealed(data: bytes, at: int, foreign: bytes) -> bytes:
    """Other bytes at a place, with a checksum that fits."""
    body = data[:at] + foreign + data[at + len(foreign) :]
    return body[:20] + struct.pack("<I", zlib.crc32(body[24:], zlib.crc32(body[:20]))) + body[24:]


@pytest.mark.parametrize("name", named("huffman", "cachegen", "kivi"))
def test_scales_that_are_none(name: str) -> None:
    data = encode(name, *chunk(40, 8))
    for bad in (np.nan, np.inf):
        with pytest.raises(DamagedChunk, match="scales that are none"):
            decode(resealed(data, HEADER_BYTES, np.float16(bad).tobytes()))


@pytest.mark.parametrize("name", named())
def test_a_payload_too_long_or_too_short(name: str) -> None:
    data = encode(name, *chunk(40, 8))
    for bad in (data + bytes(4), data[:-4], data[:HEADER_BYTES]):
        with pytest.raises(DamagedChunk, match="bytes, of which"):
            decode(resealed(bad, HEADER_BYTES, b""))
    # Its header says the same. A range coder does not notice a word or two: only the checksum does.
    for bad in (data + bytes(range(1, 41)), data[:-1], data[: HEADER_BYTES + 3], data[:HEADER_BYTES]):
        length = struct.pack("<I", len(bad) - HEADER_BYTES)
        with pytest.raises(DamagedChunk, match="cannot be decoded"):
            decode(resealed(bad, 16, length))


def test_other_versions_and_other_files_say_so() -> None:
    data = encode("fp16", *chunk(4, 4))
    with pytest.raises(DamagedChunk, match="version 2"):
        decode(data[:4] + b"\2" + data[5:])
    with pytest.raises(DamagedChunk, match="begins with"):
        decode(b"PK\3\4" + data[4:])


def test_no_memory_is_taken_for_a_boast() -> None:
    # 4 billion tokens, with a checksum that fits.
    head = struct.pack("<4sBBBxIH2xI", b"KVFC", 1, 1, 0, 2**32 - 1, 2**16 - 1, 0)
    with pytest.raises(DamagedChunk, match="there is none"):
        decode(head + struct.pack("<I", zlib.crc32(head)))


# --- the pool --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool() -> Iterator[CodecPool]:
    with CodecPool(2) as pool:
        yield pool


def test_workers_do_what_we_do(pool: CodecPool) -> None:
    chunks = [chunk(64, 16, seed) for seed in range(6)]
    encoded = [future.result() for future in [pool.encode("huffman", k, v) for k, v in chunks]]
    assert encoded == [encode("huffman", k, v) for k, v in chunks]
    for data, future in [(data, pool.decode([data, encoded[0]], np.float16)) for data in encoded]:
        for ours, theirs in zip(decode_many([data, encoded[0]], np.float16), future.result(), strict=True):
            assert (ours[0] == theirs[0]).all() and (ours[1] == theirs[1]).all()


def test_workers_pass_errors_on(pool: CodecPool) -> None:
    data = encode("huffman", *chunk(64, 16))
    with pytest.raises(DamagedChunk, match="checksum"):
        pool.decode([data[:-1] + b"?"]).result()
    with pytest.raises(InputError, match="Did you mean 'kivi'"):
        pool.encode("kiwi", *chunk(4, 4)).result()


def test_a_killed_worker_is_replaced_and_its_piece_done_again(pool: CodecPool) -> None:
    big = [encode("kivi", *chunk(4096, 128))] * 6
    before = pool.process_ids
    futures = [pool.decode(big) for _ in range(2)]
    for process_id in before:
        os.kill(process_id, signal.SIGKILL)
    for future in futures:
        assert len(future.result()) == 6
    assert pool.decode(big[:1]).result()[0][0].shape == (4096, 128)
    assert not set(before) & set(pool.process_ids)


@pytest.mark.usefixtures("cold_start")
def test_a_piece_that_kills_every_worker_ends_with_a_clear_error() -> None:
    with CodecPool(1) as pool:
        pool.decode([encode("fp16", *chunk(4, 4))]).result()
        over = threading.Event()

        def hunt() -> None:
            while not over.is_set():
                for process_id in pool.process_ids:
                    try:
                        os.kill(process_id, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                time.sleep(0.01)

        hunter = threading.Thread(target=hunt)
        hunter.start()
        try:
            with pytest.raises(CodecWorkerDied, match="was killed by SIGKILL while it was to decode"):
                pool.decode([encode("fp16", *chunk(4, 4))]).result(30)
        finally:
            over.set()
            hunter.join()
        assert pool.decode([encode("fp16", *chunk(4, 4))]).result(30)


def test_shared_memory_that_is_not_to_be_had_is_reported_and_the_pool_goes_on() -> None:
    few, many = np.zeros((16, 64), np.float32), np.zeros((1024, 128), np.float32)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with CodecPool() as pool:
        pool.encode("fp16", few, few).result()
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
        try:
            with pytest.raises(KvferryError, match=r"at most 200,000 bytes \(ulimit -f\); .* needs 1,048,576"):
                pool.encode("fp16", many, many).result()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert len(pool.encode("fp16", many, many).result()) > 2 * many.size


@pytest.mark.usefixtures("cold_start")
def test_a_closed_pool_leaves_nothing_behind() -> None:
    pool = CodecPool(1)
    pool.decode([encode("fp16", *chunk(4, 4))]).result()
    (worker,) = pool._workers
    names = [segment.name for segment in (worker._source, worker._target) if segment is not None]
    process_id = worker.process_id
    pool.close()
    assert len(names) == 2
    assert not any(os.path.exists(f"/dev/shm/{name}") for name in names)
    assert process_id not in [child.pid for child in multiprocessing.active_children()]
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.decode([])


def test_a_script_without_a_guard_is_not_run_again_by_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "from kvferry.codecs.pool import CodecPool\n"
        "print('here')\n"
        "with CodecPool(1) as pool:\n"
        "    print(len(pool.encode('fp16', *np.zeros((2, 4, 4), np.float32)).result()) > 0)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("here\nTrue\n", "")

"""Chunk traces: sizes by hand, the generator's shape of the world, and files."""

import json
from pathlib import Path

import numpy as np
import pytest

from kvferry.specs.errors import InputError
from kvferry.traces import chunks
from kvferry.traces.chunks import ChunkTrace, causal_blocks, generate_chunks


def test_causal_blocks_by_counting() -> None:
    # 1024 queries are 8 rows of 128; row i sees 2 (i + 1) blocks of 64 keys: 2 x (1 + ... + 8) = 72.
    # The next chunk sees 16 blocks more in each of its 8 rows: 72 + 128.
    assert causal_blocks(np.array([1024, 1024]), np.array([0, 1024])).tolist() == [72, 200]
    # 200 queries after 64 others: row 0 ends at key 192 (3 blocks), row 1 at key 264 (5 blocks).
    assert causal_blocks(200, 64) == 3 + 5
    assert causal_blocks(1, 0) == 1


def test_causal_blocks_by_brute_force() -> None:
    for context in (0, 64, 1024):
        for tokens in (1, 63, 64, 65, 127, 128, 129, 500, 1024):
            ends = [min(start + 128, tokens) for start in range(0, tokens, 128)]
            assert causal_blocks(tokens, context) == sum(-(-(context + end) // 64) for end in ends)


def test_stream_bytes_by_hand() -> None:
    # 1024 and 10 tokens of 256 values at 2 and 4 bits: 1024 x 256 x 2 / 8 and 10 x 256 x 4 / 8 bytes.
    trace = ChunkTrace(np.array([[[2.0]], [[4.0]]]), np.array([[[5]], [[17]]]), np.array([1024, 10]))
    assert trace.stream_bytes(256).ravel().tolist() == [65536, 1280]
    assert trace.context_tokens.tolist() == [0, 1024]
    assert trace.causal_blocks.tolist() == [72, 17]


@pytest.mark.parametrize(
    ("entropy", "blocks", "tokens"),
    [(4.1, 5, 1024), (-0.1, 5, 1024), (np.nan, 5, 1024), (2.0, 73, 1024), (2.0, -1, 1024), (2.0, 1, 0), (2.0, 1, 9.5)],
)
def test_impossible_chunks_are_refused(entropy: float, blocks: int, tokens: float) -> None:
    with pytest.raises(ValueError, match="must"):
        ChunkTrace(np.array([[[entropy]]]), np.array([[[blocks]]]), np.array([tokens]))


def test_a_longer_context_begins_with_the_shorter_one() -> None:
    short = generate_chunks("vlm", 4700, layers=3, kv_heads=2, seed=4, sequence=1)
    long = generate_chunks("vlm", 9000, layers=3, kv_heads=2, seed=4, sequence=1)
    assert short.shape == (5, 3, 2)
    assert short.tokens.tolist() == [1024] * 4 + [604]
    np.testing.assert_array_equal(short.entropy_bits, long.entropy_bits[:5])
    # The last chunk of the short one is partial: fewer blocks.
    np.testing.assert_array_equal(short.active_blocks[:4], long.active_blocks[:4])
    assert (short.active_blocks[4] < long.active_blocks[4]).all()


def test_a_small_context_is_drawn_once_and_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    first = generate_chunks("text", 2048, layers=3, kv_heads=2, seed=4)
    assert generate_chunks("text", 2048, layers=3, kv_heads=2, seed=4) is first
    assert generate_chunks("text", 2048, layers=3, kv_heads=2, seed=5) is not first
    for shared in (first.entropy_bits, first.active_blocks, first.tokens):
        with pytest.raises(ValueError, match="read-only"):
            shared[0] = 0
    # 2 x 3 x 2 units are one more than are kept: it is drawn each time, and is the same.
    monkeypatch.setattr(chunks, "_MOST_KEPT_UNITS", 11)
    again = generate_chunks("text", 2048, layers=3, kv_heads=2, seed=4)
    assert again is not first
    np.testing.assert_array_equal(again.active_blocks, first.active_blocks)


def test_heads_keep_their_character_from_sequence_to_sequence() -> None:
    one, other = (generate_chunks("text", 16384, 16, 8, seed=4, sequence=n) for n in (0, 1))
    another_model = generate_chunks("text", 16384, 16, 8, seed=5)
    by_head = [trace.active_blocks[-1].ravel() for trace in (one, other, another_model)]
    assert not np.array_equal(by_head[0], by_head[1])
    assert np.corrcoef(by_head[0], by_head[1])[0, 1] > 0.9
    assert abs(np.corrcoef(by_head[0], by_head[2])[0, 1]) < 0.3


def test_heterogeneity_is_as_measured() -> None:
    """SparKV III-B: entropies over 0 to 4 bits, 3-5x in compute among chunks at one position."""
    for seed in range(3):
        trace = generate_chunks("text", 10240, 36, 8, seed)
        assert trace.entropy_bits.min() < 0.3
        assert trace.entropy_bits.max() > 3.7
        assert 2.6 < trace.entropy_bits.mean() < 3.2
        low, high = np.percentile(trace.active_blocks[5], [10, 90])
        assert 3 < high / low < 6
        assert 12 < trace.active_blocks.max() / trace.active_blocks.min() < 30


def test_video_varies_more_from_chunk_to_chunk_than_text() -> None:
    def along_t(content: str, seed: int) -> tuple[float, float]:
        trace = generate_chunks(content, 40960, 16, 8, seed)
        bits = trace.entropy_bits.mean(axis=(1, 2))
        density = (trace.active_blocks / trace.causal_blocks[:, None, None]).mean(axis=(1, 2))[8:]
        return bits.std() / bits.mean(), density.std() / density.mean()

    for seed in range(3):
        (text_bits, text_density), (vlm_bits, vlm_density) = along_t("text", seed), along_t("vlm", seed)
        assert vlm_bits > 4 * text_bits
        assert vlm_density > 3 * text_density


def test_an_unknown_content_names_the_nearest() -> None:
    with pytest.raises(InputError, match="'text'"):
        generate_chunks("texts", 1024, 1, 1, 0)


def test_files_bring_back_the_same_and_are_the_same_bytes(tmp_path: Path) -> None:
    trace = generate_chunks("vlm", 5000, 3, 2, seed=1)
    trace.save(tmp_path / "a.npz")
    trace.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    back = ChunkTrace.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(back.entropy_bits, trace.entropy_bits)
    np.testing.assert_array_equal(back.active_blocks, trace.active_blocks)
    np.testing.assert_array_equal(back.tokens, trace.tokens)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_other_files_are_refused_with_their_name(tmp_path: Path) -> None:
    tag = json.dumps({"format": "kvferry-trace", "version": 1, "kind": "chunks"})
    one = np.ones((1, 1, 1))
    np.savez(tmp_path / "untagged.npz", entropy_bits=one, active_blocks=one, tokens=np.array([9]))
    np.savez(tmp_path / "incomplete.npz", tag=np.array(tag), entropy_bits=one)
    np.savez(tmp_path / "impossible.npz", tag=np.array(tag), entropy_bits=9 * one, active_blocks=one, tokens=np.ones(1))
    np.savez(tmp_path / "pickled.npz", tag=np.array(tag), entropy_bits=np.array([{}]), active_blocks=one, tokens=one)
    np.savez(tmp_path / "other.npz", tag=np.array(tag.replace("chunks", "keys")))
    (tmp_path / "text.npz").write_text("hello")
    for path in [*sorted(tmp_path.iterdir()), tmp_path / "missing.npz"]:
        with pytest.raises(InputError, match=path.name):
            ChunkTrace.load(path)


def test_a_damaged_file_is_an_input_error_or_the_same_trace(tmp_path: Path) -> None:
    trace = generate_chunks("text", 2048, 2, 2, seed=1)
    trace.save(tmp_path / "good.npz")
    good, path = (tmp_path / "good.npz").read_bytes(), tmp_path / "damaged.npz"
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(good)
        damaged[rng.integers(len(good))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            np.testing.assert_array_equal(ChunkTrace.load(path).active_blocks, trace.active_blocks)
        except InputError:
            refused += 1
    assert refused > 100
    for length in range(0, len(good), 97):
        path.write_bytes(good[:length])
        with pytest.raises(InputError):
            ChunkTrace.load(path)

"""Block-sparse prefill: masks from real attention mass, the attention under them, and traces recorded from both."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tiny import tiny_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from logits import LOGIT_TOLERANCE

from kvferry.model import attention
from kvferry.model.attention import (
    BlockSparse,
    Recorder,
    active_blocks,
    block_mask,
    block_mass,
    dense,
    masked,
)
from kvferry.model.block_masks import BlockMasks
from kvferry.model.kv import SessionKv
from kvferry.model.models import random_model
from kvferry.model.recording import Recording, entropy_bits, record
from kvferry.model.session import Session
from kvferry.specs.errors import InputError
from kvferry.traces.chunks import ChunkTrace

pytestmark = pytest.mark.torch

SPEC = tiny_model(hidden=64, head_dim=16, ffn=64, vocabulary=50)
CHUNK = 256
# Two whole chunks, and one that ends inside a query block and inside a key block. Tokens come in runs, so that blocks
# differ: random weights find some tokens more alike than others.
CONTEXT = np.random.default_rng(1).integers(0, SPEC.vocabulary, 24).repeat(32)[: 2 * CHUNK + 150].tolist()
QUESTION = [3, 1, 4]
# Rows are counted from each chunk's own beginning, 150 queries make two.
SHAPES = [(2, 2, 4), (2, 2, 8), (2, 2, 11)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def recording() -> Recording:
    """Weights large enough that attention is uneven."""
    return record(random_model("qwen2", SPEC, seed=5, spread=0.3), CONTEXT, chunk_tokens=CHUNK, room=40)


def queries_of(recording: Recording, t: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(t)
    return torch.randn(1, SPEC.query_heads, recording.session.kv.tokens[t], SPEC.head_dim, generator=generator)


def test_mass_by_hand() -> None:
    # 65 equal keys, 65 queries: query i gives 1 / (i + 1) to each key up to itself. Key 64, alone in the second
    # block, is seen by query 64 only: 1 / 65. One query head; all else is the first block's.
    zeros = torch.zeros(1, 1, 65, 4)
    np.testing.assert_allclose(block_mass(zeros, zeros), [[[65 - 1 / 65, 1 / 65]]])


def test_mass_is_the_softmax_summed_over_blocks_and_query_heads(recording: Recording) -> None:
    kv, queries = recording.session.kv, queries_of(recording, 2)
    keys, _ = kv.attended(2, 1)
    scores = queries[0] @ keys[0].repeat_interleave(2, 0).mT / 16**0.5
    later = torch.ones(150, 662, dtype=torch.bool).triu(512 + 1)
    weights = scores.masked_fill(later, -torch.inf).softmax(-1).unflatten(0, (2, 2)).sum(1).numpy()
    mass = block_mass(queries, keys)
    assert mass.shape == (2, 2, 11)
    for row, column in np.ndindex(2, 11):
        block = weights[:, 128 * row : 128 * (row + 1), 64 * column : 64 * (column + 1)]
        np.testing.assert_allclose(mass[:, row, column], block.sum((1, 2)), rtol=1e-4, atol=1e-6)


def test_active_blocks_by_hand() -> None:
    # 256 queries after no others: rows end in blocks 1 and 3. Row 0 has all its mass in block 0; block 1 is on its
    # diagonal. Row 1: 60 + 38 of 100 hold 98 % exactly, and blocks 2 and 3 are on its diagonal.
    mass = np.array([[[100.0, 0, 0, 0], [38, 2, 60, 0]]])
    wanted = [[[True, True, False, False], [True, False, True, True]]]
    np.testing.assert_array_equal(active_blocks(mass, 256, 256, 0.98), wanted)
    # A little more, and the next largest is needed.
    np.testing.assert_array_equal(active_blocks(mass, 256, 256, 0.981)[0, 1], [True] * 4)


def test_active_blocks_hold_the_mass_and_none_can_be_spared(recording: Recording) -> None:
    kv = recording.session.kv
    mass = block_mass(queries_of(recording, 2), kv.attended(2, 0)[0])
    active = active_blocks(mass, 150, 662)
    total, held = mass.sum(-1), np.where(active, mass, 0).sum(-1)
    np.testing.assert_allclose(total, [[256, 44], [256, 44]], rtol=1e-5)
    assert (held >= 0.98 * total).all()
    # Rows begin at keys 512 and 640: blocks 8 and 9, or 10, are there for the diagonal. Of the others the least is
    # needed: those of more mass hold too little.
    for head, (row, diagonal) in ((head, at) for head in range(2) for at in ((0, 8), (1, 10))):
        least = mass[head, row, :diagonal][active[head, row, :diagonal]].min()
        assert mass[head, row][mass[head, row] > least].sum() < 0.98 * total[head, row]


def test_a_recorded_context_makes_a_chunk_trace(recording: Recording, tmp_path: Path) -> None:
    trace = recording.chunks
    assert trace.shape == (3, 2, 2)
    assert trace.tokens.tolist() == [256, 256, 150]
    # 2 rows of the first chunk see 2 and 4 blocks: 6; of the second 6 and 8; of the last 10 and 11.
    assert trace.causal_blocks.tolist() == [6, 14, 21]
    assert (trace.active_blocks > 0).all()
    assert trace.active_blocks[2].min() < 21
    assert trace.entropy_bits.min() > 2
    trace.save(tmp_path / "chunks.npz")
    np.testing.assert_array_equal(ChunkTrace.load(tmp_path / "chunks.npz").active_blocks, trace.active_blocks)


def test_recording_changes_no_answer(recording: Recording) -> None:
    plain = recording.session.decoder.model
    with torch.no_grad():
        wanted = plain(torch.tensor([CONTEXT + QUESTION])).logits[0, -1]
    recorded = record(plain, CONTEXT, chunk_tokens=CHUNK).session
    assert recorded.complete
    assert (recorded.read(QUESTION) - wanted).abs().max() < LOGIT_TOLERANCE[torch.float32] * wanted.std()


def test_entropies_by_hand() -> None:
    # -1 and 1 in turn: deviation 1, range 2; steps of 1/4 and not of 2/31, two symbols, one bit. Constant: none.
    turns = torch.tensor([[-1.0], [1.0]]).repeat(50, 3)
    assert entropy_bits(turns, turns) == pytest.approx(1.0)
    assert entropy_bits(torch.ones(10, 2), torch.ones(10, 2)) == 0.0
    # Keys in turn, values constant: half the numbers are one symbol, the others two: 0.5 x 1 + 2 x 0.25 x 2.
    assert entropy_bits(turns, torch.ones(100, 3)) == pytest.approx(1.5)
    generator = torch.Generator().manual_seed(0)
    gaussian = torch.randn(1024, 16, generator=generator)
    assert 3.9 < entropy_bits(gaussian, gaussian) <= 4.0
    # Even numbers span sqrt(12) deviations, 13.86 steps of a quarter: 13 whole ones and two ends of 0.43, hence
    # (13 log2(13.86) + 0.86 log2(13.86 / 0.43)) / 13.86 bits.
    even = torch.linspace(0, 1, 1024)[:, None]
    assert entropy_bits(even, even) == pytest.approx(3.868, abs=0.01)
    outlier = gaussian.clone()
    outlier[0] = 100.0  # 31 steps span it: all else falls on one or two symbols
    assert entropy_bits(outlier, outlier) < 1.0


def test_masks_as_bits(recording: Recording, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens = recording.chunks.tokens
    active = {(t, l): rng.random(SHAPES[t]) < 0.5 for t in range(3) for l in range(2)}
    masks = BlockMasks.of(active, tokens)
    masks.save(tmp_path / "masks.npz")
    for read in (masks, BlockMasks.load(tmp_path / "masks.npz")):
        for (t, l), mask in active.items():
            np.testing.assert_array_equal(read.active(t, l), mask)
            assert read.counts[t, l].tolist() == mask.sum((1, 2)).tolist()
    recording.chunks.save(tmp_path / "chunks.npz")
    with pytest.raises(InputError, match="chunks trace; a masks trace is needed"):
        BlockMasks.load(tmp_path / "chunks.npz")
    np.testing.assert_array_equal(recording.masks.counts, recording.chunks.active_blocks)


def everywhere(recording: Recording) -> BlockMasks:
    """All blocks, those after the diagonal too."""
    active = {(t, l): np.ones(SHAPES[t], dtype=bool) for t in range(3) for l in range(2)}
    return BlockMasks.of(active, recording.chunks.tokens)


def test_with_all_blocks_it_is_dense_attention(recording: Recording) -> None:
    sparse = BlockSparse(everywhere(recording), compiled=False)
    for t in range(3):
        queries, kv = queries_of(recording, t), recording.session.kv
        torch.testing.assert_close(sparse(queries, kv, t, 1), dense(queries, kv, t, 1))


def test_attention_under_a_mask_is_attention_to_its_blocks(recording: Recording) -> None:
    """Query by query, from the masks alone."""
    t, kv = 2, recording.session.kv
    queries, active = queries_of(recording, t), recording.masks.active(2, 1)
    keys, values = kv.attended(t, 1)
    got = masked(queries, kv, t, 1, active)
    for head, query in ((0, 0), (1, 127), (2, 128), (3, 149)):
        allowed = np.repeat(active[head // 2, query // 128], 64)[: 512 + query + 1]
        seen = np.flatnonzero(allowed)
        weights = (keys[0, head // 2, seen] @ queries[0, head, query] / 4).softmax(0)
        torch.testing.assert_close(got[0, head, query], weights @ values[0, head // 2, seen])


def test_the_flex_mask_lists_those_blocks(recording: Recording) -> None:
    active = recording.masks.active(2, 1)
    mask = block_mask(active, 512, 150, rows=3, columns=13, group=2, device=torch.device("cpu"))
    listed = np.zeros((4, 3, 13), dtype=bool)
    for counts, which, whole in (
        (mask.kv_num_blocks, mask.kv_indices, False),
        (mask.full_kv_num_blocks, mask.full_kv_indices, True),
    ):
        for head, row in np.ndindex(4, 3):
            for column in which[0, head, row, : counts[0, head, row]].tolist():
                assert not listed[head, row, column]
                listed[head, row, column] = True
                # Whole blocks end before the row's first query: rows begin at 512 and 640, blocks 8 and 10 on.
                assert whole == (column < (8, 10)[row])
    np.testing.assert_array_equal(listed[:, :2, :11], active.repeat(2, axis=0))
    assert not listed[:, 2].any()
    assert not listed[:, :, 11:].any()


def test_a_sparse_prefill_is_close_to_the_dense_one(recording: Recording) -> None:
    model, reference = recording.session.decoder.model, recording.session.read(QUESTION)
    sparse = Session(model, CONTEXT, chunk_tokens=CHUNK, attention=BlockSparse(recording.masks, compiled=False))
    sparse.prefill()
    error = float((sparse.read(QUESTION) - reference).abs().max() / reference.std())
    assert LOGIT_TOLERANCE[torch.float32] < error < 0.2
    # Closer with more of the mass.
    nearly = record(model, CONTEXT, chunk_tokens=CHUNK, mass=0.9999)
    finer = Session(model, CONTEXT, chunk_tokens=CHUNK, attention=BlockSparse(nearly.masks, compiled=False))
    finer.prefill()
    assert float((finer.read(QUESTION) - reference).abs().max() / reference.std()) < error / 4
    assert nearly.chunks.active_blocks.sum() > recording.chunks.active_blocks.sum()


def test_masks_of_another_context_are_refused(recording: Recording) -> None:
    session = Session(recording.session.decoder.model, CONTEXT, chunk_tokens=128)
    session.project(0, 0)
    with pytest.raises(InputError, match=r"is \(2, 2, 4\), this context needs \(2, 1, 2\)"):
        BlockSparse(recording.masks)(queries_of(recording, 0)[:, :, :128], session.kv, 0, 0)
    with pytest.raises(InputError, match="multiples of 64 tokens, not 100"):
        record(recording.session.decoder.model, CONTEXT, chunk_tokens=100)


def test_where_nothing_compiles_the_result_is_the_same(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler() -> object:
        raise RuntimeError("no C++ compiler\nand a long story")

    monkeypatch.setattr(attention, "_compiled_flex", no_compiler)
    sparse, queries, kv = BlockSparse(recording.masks), queries_of(recording, 1), recording.session.kv
    with pytest.warns(RuntimeWarning, match=r"\(no C\+\+ compiler\)"):
        got = sparse(queries, kv, 1, 0)
    assert not sparse.compiled
    torch.testing.assert_close(got, masked(queries, kv, 1, 0, recording.masks.active(1, 0)))


def test_recorder_notes_what_it_saw(recording: Recording) -> None:
    recorder, queries, kv = Recorder(mass=0.5), queries_of(recording, 1), recording.session.kv
    torch.testing.assert_close(recorder(queries, kv, 1, 0), dense(queries, kv, 1, 0))
    wanted = active_blocks(block_mass(queries, kv.attended(1, 0)[0]), 256, 512, 0.5)
    np.testing.assert_array_equal(recorder.active[1, 0], wanted)


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_flex_attention_keeps_the_mask(recording: Recording, dtype: torch.dtype) -> None:
    model = random_model("qwen2", SPEC, seed=5, spread=0.3, dtype=str(dtype).removeprefix("torch."))
    session = Session(model, CONTEXT, chunk_tokens=CHUNK)
    session.prefill()
    kv: SessionKv = session.kv
    sparse = BlockSparse(recording.masks)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for t in range(3):
            queries = queries_of(recording, t).to(dtype)
            got, wanted = sparse(queries, kv, t, 1), masked(queries, kv, t, 1, recording.masks.active(t, 1))
            close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
            torch.testing.assert_close(got, wanted, **close)
    assert sparse.compiled

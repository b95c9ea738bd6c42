"""Centroids against plain computation: how clusters are cut, what is nearest, and means that follow every change."""

import itertools
from typing import Any

import numpy as np
import pytest

from kvferry.policies.decode.index import IndexSpec

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
SEQUENCES, KV_HEADS, HEAD_DIM = 2, 2, 8


def centroids(heads: int) -> Any:
    from kvferry.backends.live.decoding.indexes.centroids import Centroids

    spec = IndexSpec(kind="centroids", heads=heads, rank=16, block_tokens=4, clusters=True)
    return Centroids(spec, layers=1, kv_heads=KV_HEADS, head_dim=HEAD_DIM, sequences=SEQUENCES, room_tokens=48)


def keys(tokens: int, seed: int = 0) -> Any:
    return torch.randn(SEQUENCES, KV_HEADS, tokens, HEAD_DIM, generator=torch.Generator().manual_seed(seed))


def rows(of: Any, heads: int) -> Any:
    """[sequences, KV heads, tokens, head_dim] as [rows, tokens, numbers of a row], one by one."""
    each = KV_HEADS // heads
    parts = [
        torch.cat([of[s, h * each + n] for n in range(each)], dim=-1) for s in range(SEQUENCES) for h in range(heads)
    ]
    return torch.stack(parts)


@pytest.mark.parametrize("heads", [1, 2])
def test_clusters_follow_what_happens_to_them(heads: int) -> None:
    index, first = centroids(heads), keys(14)
    by_row = rows(first, heads).numpy()
    labels = index.cluster(0, by_row, 3, 0)
    members = {(row, block): by_row[row, labels[row] == block] for row in range(len(by_row)) for block in range(3)}
    assert index.prefill(0, torch.empty(0), first) is None
    for step in range(20):
        new = keys(1, seed=step + 1)
        nearest, squared = index.nearest(0, new)
        for row, key in enumerate(rows(new, heads)[:, 0].numpy()):
            there = [block for of, block in members if of == row]
            apart = [float(((members[row, block].mean(0) - key) ** 2).sum()) for block in there]
            best = nearest.flatten()[row]
            assert best == np.argmin(apart)
            assert squared.flatten()[row] == pytest.approx(apart[best], rel=1e-5)
            members[row, best] = np.concatenate([members[row, best], key[None]])
            index.join(0, row, best, key)
            if len(members[row, best]) > 8 and len(there) < 12:
                whole = members[row, best]
                members[row, best], members[row, len(there)] = whole[:-4], whole[-4:]
                index.set(0, row, best, whole[:-4])
                assert index.set(0, row, len(there), whole[-4:]) == pytest.approx(whole[-4:].var(0).sum(), rel=1e-5)
    for row in range(len(by_row)):
        own = [members[row, block] for of, block in sorted(members) if of == row]
        assert index.sizes(0, row) == [len(one) for one in own]
        np.testing.assert_allclose(
            index.centroids(0, row), np.stack([one.mean(0) for one in own]), rtol=1e-5, atol=1e-6
        )
    assert index.n_bytes == len(members) * by_row.shape[2] * 4
    if heads > 1:
        # Rows differ.
        assert len({len(index.sizes(0, row)) for row in range(len(by_row))}) > 1
    check_scores(index, heads)


def check_scores(index: Any, heads: int) -> None:
    """Sums over query heads of products with centroids; what a row does not have comes last."""
    queries = torch.randn(SEQUENCES, 2 * KV_HEADS, 1, HEAD_DIM, generator=torch.Generator().manual_seed(99))
    scores = index.scores(0, queries, heads)
    for sequence, head in itertools.product(range(SEQUENCES), range(heads)):
        means = index.centroids(0, sequence * heads + head).unflatten(-1, (-1, HEAD_DIM))
        each = KV_HEADS // heads
        by_kv_head = queries[sequence, :, 0].unflatten(0, (KV_HEADS, 2)).sum(1)[head * each : (head + 1) * each]
        expected = torch.einsum("chd,hd->c", means, by_kv_head)
        found = scores[sequence, head]
        torch.testing.assert_close(found[: len(expected)], expected)
        assert (found[len(expected) :] == -torch.inf).all()

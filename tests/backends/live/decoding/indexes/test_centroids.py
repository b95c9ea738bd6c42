"""Centroids against plain computation: how clusters are cut, what is nearest, and means that follow every change."""

import itertools
from typing import Any

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
    order = index.prefill(0, torch.empty(0), first)
    by_row = rows(first, heads)
    # Three clusters of even sizes, each token in one of them.
    members = {
        (row, block): by_row[row, part]
        for row in range(len(by_row))
        for block, part in enumerate(order[row].split([5, 5, 4]))
    }
    assert all(sorted(of_row.tolist()) == list(range(14)) for of_row in order)
    for step in range(20):
        new = keys(1, seed=step + 1)
        nearest = index.nearest(0, new).flatten().tolist()
        for row, key in enumerate(rows(new, heads)[:, 0]):
            there = [block for of, block in members if of == row]
            best = min(there, key=lambda block: float((members[row, block].mean(0) - key).square().sum()))
            assert nearest[row] == best
            members[row, best] = torch.cat([members[row, best], key[None]])
            index.join(0, row, best, key)
            if len(members[row, best]) > 8 and len(there) < 12:
                cut = index.split(0, row, best, len(there), members[row, best], 4)
                whole = members[row, best][cut]
                members[row, best], members[row, len(there)] = whole[:-4], whole[-4:]
    for row in range(len(by_row)):
        own = [members[row, block] for of, block in sorted(members) if of == row]
        assert index.sizes(0, row) == [len(one) for one in own]
        torch.testing.assert_close(index.centroids(0, row), torch.stack([one.mean(0) for one in own]))
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


def test_a_cut_is_the_best_for_its_means() -> None:
    """Two heaps of different size are told apart, whichever half is asked for first."""
    from kvferry.backends.live.decoding.indexes.centroids import clustered, halved

    heap = torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(1))
    vectors = torch.cat([heap[:, :3] + 20, heap[:, 3:]], dim=1)
    for first in (3, 6):
        parts = halved(vectors, first)[0].split([first, 9 - first])
        assert {tuple(sorted(part.tolist())) for part in parts} == {(0, 1, 2), (3, 4, 5, 6, 7, 8)}
    four = torch.cat([heap[:, :4] * 0.01 + centre for centre in (0, 10, 30, 100)], dim=1)
    found = clustered(four, [4, 4, 4, 4])[0].split(4)
    assert {tuple(sorted(part.tolist())) for part in found} == {tuple(range(n, n + 4)) for n in (0, 4, 8, 12)}


def test_keys_that_are_all_equal_are_cut_all_the_same() -> None:
    index = centroids(1)
    order = index.prefill(0, torch.empty(0), torch.ones(SEQUENCES, KV_HEADS, 9, HEAD_DIM))
    assert index.sizes(0, 0) == [5, 4]
    assert sorted(order[0].tolist()) == list(range(9))
    assert torch.isfinite(index.centroids(0, 0)).all()

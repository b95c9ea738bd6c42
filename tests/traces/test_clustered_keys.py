"""Clusters of generated keys: answers to ops, one by one, and a recording of them."""

import numpy as np
import pytest

from kvferry.machine.answers import Assigned, Selection
from kvferry.machine.ops import Assign, Cluster, OutputHead, Select, Split
from kvferry.policies.decode.splits import Clustered, ClusterSplit, Joined, SplitParts
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.workload import KeysSpec
from kvferry.traces.cluster_answers import RecordedClusters, place_of
from kvferry.traces.clustered_keys import ClusteredKeys
from kvferry.traces.drawn_clusters import DrawnClusters
from kvferry.traces.key_process import KeyProcess


def clustered(layers: int = 5) -> DrawnClusters:
    """Two rows in each of five layers, of which the first and the last are alike."""
    keys = ClusteredKeys(
        KeyProcess(KeysSpec()), layers=layers, sequences=1, heads=2, context=40, output=20, most=12, seed=1
    )
    clusters = DrawnClusters(keys)
    for layer in range(layers):
        answer = clusters(Cluster(1, 40, 5, layer, heads=2))
        assert isinstance(answer, Clustered) and answer.tokens.shape == (2, 5)
        assert answer.tokens.sum(1).tolist() == [40, 40]
    return clusters


def test_answers_are_of_the_keys_that_there_are() -> None:
    clusters = clustered()
    keys = clusters.keys
    for layer in range(5):
        chosen, joined = clusters(Select(1, 5, 3, 0, layer, heads=2)), clusters(Assign(1, 5, 0, layer, heads=2))
        assert isinstance(chosen, Selection) and isinstance(joined, Assigned)
        for row in range(2):
            at = layer % 4 * 2 + row
            means = np.stack([keys.keys[at, :40][keys.members.labels[at, :40] == n].mean(0) for n in range(5)])
            best = np.argsort(-(means @ keys.queries[at, 40]))[:3]
            assert chosen.ids[0, row].tolist() == best.tolist()
            apart = ((means - keys.keys[at, 40]) ** 2).sum(1)
            assert joined.ids[0, row] == apart.argmin()
            assert joined.squared[0, row] == pytest.approx(apart.min(), rel=1e-5)


def test_a_cut_and_what_joins_by_hand() -> None:
    clusters = clustered(layers=1)
    keys = clusters.keys
    clusters(Select(1, 5, 3, 0, 0, heads=2))
    before = keys.table.counts.copy()
    split = ClusterSplit(1, 2, 5, True, int(before[1, 2]) + 1)
    answer = clusters(Split(1, split.tokens, 0, 0, heads=2, splits=(split,)))
    assert isinstance(answer, SplitParts) and answer.tokens.sum() == before[1, 2] + 1
    assert answer.tokens[0, 0] >= answer.tokens[0, 1] > 0
    assert keys.members.labels[1, 40] in (2, 5)
    clusters(OutputHead(1, joined=[[Joined(0, 3, True)]]))
    # The key of row 0 waits for cluster 3.
    assert keys.members.waits[0, 40] and keys.members.labels[0, 40] == 3
    assert keys.table.counts[0].tolist() == before[0].tolist()
    clusters(Select(1, 6, 3, 1, 0, heads=2))
    clusters(OutputHead(1, joined=[[Joined(0, 1), Joined(1, 0)]]))
    assert keys.table.counts[0, 1] == before[0, 1] + 1
    clusters(Select(1, 6, 3, 2, 0, heads=2))
    late = ClusterSplit(0, 3, 5, False, int(before[0, 3]) + 1)
    answer = clusters(Split(1, late.tokens, 2, 0, heads=2, splits=(late,)))
    assert isinstance(answer, SplitParts) and answer.tokens.sum() == before[0, 3] + 1
    assert not keys.members.waits.any()


def test_layers_that_are_alike_are_cut_alike() -> None:
    clusters = clustered()
    keys = clusters.keys
    clusters(Select(1, 5, 3, 0, 0, heads=2))
    split = ClusterSplit(0, 1, 5, True, int(keys.table.counts[0, 1]) + 1)
    first = clusters(Split(1, split.tokens, 0, 0, heads=2, splits=(split,)))
    again = clusters(Split(1, split.tokens, 0, 4, heads=2, splits=(split,)))
    assert isinstance(first, SplitParts) and isinstance(again, SplitParts)
    assert (first.tokens == again.tokens).all()
    with pytest.raises(KvferryError, match="layer 4 splits other clusters than layer 0, which is like it"):
        clusters(Split(1, split.tokens, 0, 4, heads=2, splits=(ClusterSplit(0, 2, 5, True, 9),)))


def test_a_recording_says_what_it_has_nothing_for() -> None:
    op = Assign(1, 4, 0, 1, heads=2)
    recorded = RecordedClusters({place_of(op): Assigned(np.array([[3, 0]], np.int32), np.ones((1, 2)))})
    answer = recorded(op)
    assert isinstance(answer, Assigned) and answer.ids.tolist() == [[3, 0]]
    assert recorded(OutputHead(1)) is None
    for other in (Assign(1, 4, 1, 1, heads=2), Select(1, 4, 2, 0, 1, heads=2), Cluster(1, 9, 3, 1)):
        with pytest.raises(InputError, match="the recorded answers of clusters are of another run: they have nothing"):
            recorded(other)


def test_clusters_are_paired_by_each_query_of_the_prompt() -> None:
    def retrieved(references: int) -> np.ndarray:
        keys = ClusteredKeys(
            KeyProcess(KeysSpec()), layers=1, sequences=1, heads=2, context=40, output=1, most=9, seed=1
        )
        answer = DrawnClusters(keys)(Cluster(1, 40, 5, 0, heads=2, references=references, k=2))
        assert isinstance(answer, Clustered) and answer.retrieved is not None
        for row, queries in enumerate(answer.retrieved):
            means = np.stack([keys.keys[row, :40][keys.members.labels[row, :40] == n].mean(0) for n in range(5)])
            for query, best in zip(keys.queries[row, 40 - len(queries) : 40], queries, strict=True):
                assert best.tolist() == np.argsort(-(means @ query))[:2].tolist()
        return answer.retrieved

    assert retrieved(40).shape == (2, 40, 2)
    # No query comes before the first, and fewer are the last ones.
    assert retrieved(64).tolist() == retrieved(40).tolist()
    assert retrieved(3).tolist() == retrieved(40)[:, 37:].tolist()

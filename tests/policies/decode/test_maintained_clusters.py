"""DynaKV's Algorithm 1 by hand: what joins, what waits, what is split, and what has to be read for it."""

from typing import Any

import numpy as np
import pytest

from kvferry.layouts.pools import PoolLayout
from kvferry.policies.decode.kept_clusters import Regroup
from kvferry.policies.decode.maintained_clusters import MaintainedClusters
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.splits import Clustered, ClusterSplit, Joined, SplitParts
from kvferry.policies.decode.upkeep import Learned


class Row:
    """One layer with a row of two clusters of four keys, each with a variance of 3; a threshold of 4 in all. Clusters
    that are split leave half of their keys, with a variance of 1 and 2."""

    def __init__(self, *, threshold: float = 4 / 3, buffer_tokens: int = 3, **settings: Any) -> None:
        like = {"layers": 1, "sequences": 1, "blocks": 4, "first_blocks": 2, "block_tokens": 4, "token_bytes": 16}
        most_tokens = settings.pop("most_tokens", None)
        layout = PoolLayout(**{**like, "alignment_bytes": 16, "spare": 4, "row_tokens": 99, **settings})
        self.kept = MaintainedClusters(
            layout.start(), threshold=threshold, buffer_tokens=buffer_tokens, most_tokens=most_tokens
        )
        self.kept.filled(0, Clustered(np.array([[4, 4]]), np.array([[3.0, 3.0]])))

    def key(self, block: int, squared: float, *here: int) -> tuple[list[Joined | ClusterSplit], list[int]]:
        """A key that is nearest to a block, while those blocks are retrieved: what became of it, and what was read."""
        wanted = BlockRows(np.array(here, np.int64), np.array([0, len(here)]))
        found = Lookup(wanted, np.ones(len(here), bool))
        splits = self.kept.maintain(0, np.array([block]), np.array([squared]), found)
        assert not isinstance(splits, Regroup)
        if splits:
            leave = np.array([0 if split.new is None else split.tokens // 2 for split in splits])
            tokens = np.stack([[split.tokens for split in splits] - leave, leave], axis=1)
            self.kept.maintained(0, SplitParts(tokens, np.tile([1.0, 2.0], (len(tokens), 1))))
        update = self.kept.append(Learned([None]))
        self.kept.places.check()
        return [*splits, *update.joined[0]], [split.block for split in splits if split.read]

    @property
    def sizes(self) -> list[int]:
        tokens = self.kept.places.all_tokens[0, 0]
        return [int(n) for n in tokens[: self.kept.places.blocks(0, 0)]]


def test_a_key_near_enough_joins_whether_or_not_its_cluster_was_retrieved() -> None:
    row = Row()
    # Of five keys: 4/5 * (3 + 5/5) = 3.2, below 4.
    assert row.key(0, 5.0) == ([Joined(0, 0)], [])
    assert row.sizes == [5, 4]
    np.testing.assert_allclose(row.kept.splitting.variances[0, 0, :2], [3.2, 3.0])
    assert row.kept.splitting.thresholds[0, 0] == pytest.approx(4.0)


def test_a_cluster_beyond_the_threshold_is_cut_at_once_where_it_was_retrieved() -> None:
    row = Row()
    # 4/5 * (3 + 15/5) = 4.8. Three of the five stay, two leave for cluster 2.
    assert row.key(1, 15.0, 0, 1) == ([ClusterSplit(0, 1, 2, True, 5)], [])
    assert row.sizes == [4, 3, 2]
    np.testing.assert_allclose(row.kept.splitting.variances[0, 0, :3], [3.0, 1.0, 2.0])
    assert (row.kept.splitting.splits, row.kept.splitting.delayed) == (1, 0)


def test_a_key_waits_until_its_cluster_is_retrieved() -> None:
    row = Row()
    assert row.key(1, 15.0, 0) == ([Joined(0, 1, True)], [])
    assert row.sizes == [4, 4]
    # It comes with its cluster, to attention too.
    assert row.kept.tokens_of(0, BlockRows(np.array([[0, 1]]))).tolist() == [[4, 5]]
    # The variance counts on from there, as in the algorithm: 4/5 * (4.8 + 0/5) = 3.84 lets a near key join.
    assert row.key(1, 0.0, 0) == ([Joined(0, 1)], [])
    assert row.sizes == [4, 5]
    # A key joins cluster 0, and the flagged one is cut, now that it was retrieved: five keys and one that waited.
    assert row.key(0, 1.0, 1) == ([ClusterSplit(0, 1, 2, False, 6), Joined(0, 0)], [])
    assert row.sizes == [5, 3, 3]
    assert (row.kept.splitting.splits, row.kept.splitting.delayed, row.kept.splitting.waiting.counts.sum()) == (1, 1, 0)


def test_a_key_is_cut_together_with_what_waited() -> None:
    row = Row()
    row.key(1, 15.0, 0)
    # One cut for both, whether the new key is beyond the threshold or not.
    assert row.key(1, 50.0, 1) == ([ClusterSplit(0, 1, 2, True, 6)], [])
    assert row.sizes == [4, 3, 3]
    row = Row()
    row.key(1, 15.0, 0)
    assert row.key(1, 0.0, 1) == ([ClusterSplit(0, 1, 2, True, 6)], [])


def test_the_cluster_that_most_keys_wait_for_is_read_when_the_buffer_is_full() -> None:
    row = Row()
    row.key(1, 15.0)
    row.key(0, 15.0)
    # The third that waits: cluster 1 is read, and cut with its two; the one of cluster 0 waits on.
    assert row.key(1, 50.0) == ([ClusterSplit(0, 1, 2, True, 6)], [1])
    assert row.sizes == [4, 3, 3]
    assert row.kept.splitting.waiting.counts[0, 0].tolist() == [1, 0, 0, 0]
    # Its four keys that lay on storage.
    assert row.kept.splitting.unasked == 4


def test_without_a_buffer_a_cluster_is_read_for_every_key_beyond_the_threshold() -> None:
    for buffer_tokens in (0, 1):
        row = Row(buffer_tokens=buffer_tokens)
        assert row.key(1, 15.0, 0) == ([ClusterSplit(0, 1, 2, True, 5)], [1])
        assert row.kept.splitting.waiting.counts.sum() == 0


def test_a_row_without_room_for_a_cluster_more_is_not_cut() -> None:
    row = Row(blocks=2)
    assert row.key(1, 15.0, 1) == ([Joined(0, 1)], [])
    assert row.sizes == [4, 5]
    # A key that waits while there is room, and is retrieved when there is none, joins a cluster that stays whole.
    row = Row(blocks=3)
    row.key(1, 15.0)
    assert row.key(0, 15.0, 0, 1) == ([ClusterSplit(0, 0, 2, True, 5), ClusterSplit(0, 1, None, False, 5)], [])
    assert row.sizes == [3, 5, 2]


def test_a_cluster_at_its_largest_is_cut_whatever_its_variance() -> None:
    row = Row(most_tokens=5, threshold=np.inf)
    assert row.key(1, 0.0)[0] == [Joined(0, 1)]
    assert row.key(1, 0.0, 1)[0] == [ClusterSplit(0, 1, 2, True, 6)]


def test_keys_that_wait_count_as_a_clusters_own() -> None:
    row = Row(most_tokens=6)
    # One of four waits, as it is far away; with a fifth that joins, six belong to it.
    assert row.key(0, 15.0) == ([Joined(0, 0, True)], [])
    assert row.key(0, 0.0) == ([Joined(0, 0)], [])
    # A seventh is one too many, however near.
    assert row.key(0, 0.0) == ([Joined(0, 0, True)], [])
    assert row.sizes == [5, 4]


def test_a_cluster_too_large_as_it_is_made_is_cut_once_it_is_retrieved() -> None:
    row = Row(most_tokens=3, threshold=np.inf)
    assert row.key(0, 1.0) == ([Joined(0, 0, True)], [])
    # No key is near cluster 1, but it has four.
    assert row.key(0, 1.0, 1) == ([ClusterSplit(0, 1, 2, False, 4), Joined(0, 0, True)], [])
    assert row.sizes == [4, 2, 2]
    # With its two that waited and a third; its parts are too large still.
    assert row.key(0, 1.0, 0, 1, 2) == ([ClusterSplit(0, 0, 3, True, 7)], [])
    assert row.sizes == [4, 2, 2, 3]
    assert row.key(1, 1.0, 3) == ([Joined(0, 1)], [])


def test_a_cluster_without_room_is_read_and_moves() -> None:
    row = Row(spare=1, threshold=np.inf)
    # Its pool holds four keys.
    assert row.key(1, 0.0, 0) == ([ClusterSplit(0, 1, None, True, 5)], [1])
    assert row.sizes == [4, 5]
    assert row.kept.splitting.moves == 1
    # One that was retrieved need not be read.
    assert row.key(0, 0.0, 0) == ([Joined(0, 0)], [])
    assert row.kept.splitting.moves == 2

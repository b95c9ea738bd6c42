"""Membership of tokens by hand: a row of three prompt tokens in two clusters, and a token after the other."""

import numpy as np

from kvferry.backends.live.decoding.cluster_members import ClusterMembers
from kvferry.policies.decode.splits import ClusterSplit, Joined


def begun() -> ClusterMembers:
    members = ClusterMembers(layers=1, context=3)
    members.prompts(0, np.array([[0, 1, 0]]))
    return members


def test_a_key_waits_for_its_cluster_and_is_split_with_it() -> None:
    members = begun()
    assert members.joined(0, [Joined(0, 0, delayed=True)]) == []
    assert (members.of(0, (0, 0)).tolist(), members.with_waiting(0, (0, 0)).tolist()) == ([0, 2], [0, 2, 3])
    members.token = 4
    members.split(0, ClusterSplit(0, 0, 2, True, 4), np.array([False, True, True, False]))
    assert (members.of(0, (0, 0)).tolist(), members.of(0, (0, 2)).tolist()) == ([0, 4], [2, 3])


def test_a_key_of_a_split_is_not_among_those_that_belong_to_none() -> None:
    members = begun()
    members.split(0, ClusterSplit(0, 1, None, True, 2), np.zeros(2, bool))
    assert members.joined(0, []) == []
    members.token = 4
    # It belongs to no cluster, so that it becomes one with the next.
    assert members.joined(0, None) == []
    members.token = 5
    members.grouped(0, 2, np.array([[0, 0]]), whole=False)
    assert (members.of(0, (0, 1)).tolist(), members.of(0, (0, 2)).tolist()) == ([1, 3], [4, 5])

"""What a new key does to clusters, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from decoding import sum_of
from tiny import tiny_model

from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.centroids import Centroids
from kvferry.policies.decode.cluster_places import ClusterPools
from kvferry.policies.decode.cluster_upkeep import AdaptiveClusters, StaticClusters
from kvferry.policies.decode.local_clusters import LocalClusters
from kvferry.policies.decode.ranked import Ranked
from kvferry.policies.decode.residency import DoubleBuffer, Reuse
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.scored_keys import LowRankKeys
from kvferry.policies.decode.stages import Stage
from kvferry.policies.decode.upkeep import RollingGroups
from kvferry.specs.errors import InputError

# Two layers of 2 heads: 32 B per token.
MODEL = tiny_model(layers=2, kv_heads=2, head_dim=4)
ROOM = Room(model=MODEL, block_tokens=3, context=8, output=4, budget_bytes=1e6)


def test_pools_and_memory_by_hand() -> None:
    layout = ClusterPools(group_tokens=3).layout(ROOM, 2, 1, 32)
    # Eight tokens make two clusters; twelve would make four, and there is room for twice as many.
    assert (layout.block_tokens, layout.first_blocks, layout.more) == (4, 2, 0)
    assert (layout.blocks, layout.token_bytes) == (8, 32)
    longer = replace(ROOM, context=11)
    layout = ClusterPools(group_tokens=3).layout(longer, 1, 1, 32)
    assert (layout.block_tokens, layout.first_blocks, layout.more) == (3, 3, 2)
    # In two layers up to five tokens wait.
    assert sum_of(StaticClusters().holdings(ROOM, 2)) == 0
    assert sum_of(AdaptiveClusters(buffer_tokens=5).holdings(ROOM, 2)) == 2 * 5 * 32
    assert AdaptiveClusters().mean_recent(3, 4) == 0
    with pytest.raises(ValueError, match="spare is 1 or more, got 0"):
        ClusterPools(spare=0).layout(ROOM, 1, 1, 32)
    with pytest.raises(ValueError, match="references is 0 or more, got -1"):
        ClusterPools(references=-1).layout(ROOM, 1, 1, 32)


def test_the_best_clusters_are_taken_until_they_hold_enough() -> None:
    selector = Centroids(selected_tokens=7)
    ranked, tokens = BlockRows(np.array([[3, 0, 2, 1], [1, 0, 3, 2]])), np.array([[4, 3, 1, 9], [5, 1, 5, 0]])

    def taken_by(one: Centroids, tokens: np.ndarray = tokens, stored: int = 20, most: int | None = None) -> BlockRows:
        return one.take(Ranked(ranked, 0, 3, 4, stored, tokens, most_blocks=most))

    taken = taken_by(selector)
    assert taken.starts is not None
    # The second row has three clusters alone.
    assert (taken.ids.tolist(), taken.starts.tolist()) == ([3, 0, 1, 0, 3], [0, 2, 5])
    few = taken_by(selector, np.array([[4, 3, 1, 9], [1, 1, 0, 0]]))
    assert few.row(1).tolist() == [1, 0]
    # No more than there are slots for; and a share of 30 tokens.
    assert taken_by(selector, most=2).ids.tolist() == [3, 0, 1, 0]
    share = Centroids(selected_share=0.2)
    assert taken_by(share, stored=30).row(1).tolist() == [1, 0]
    assert (share.selected(3, 24), Centroids(selected_tokens=7).selected(3, 24)) == (5, 3)
    with pytest.raises(ValueError, match="selected_share lies above 0 and up to 1, got 0"):
        Centroids(selected_share=0).index(ROOM, 0)
    assert Centroids(selected_share=0.01).selected(3, 24) == 1


def test_centroids_are_in_single_precision() -> None:
    # Four blocks of two layers, 8 numbers each.
    index = Centroids().index(ROOM, 0)
    assert index is not None
    assert (index.n_bytes, index.spec.clusters) == (2 * 4 * 8 * 4, True)
    with pytest.raises(ValueError, match="clusters are chosen with the layer's own query, not ahead"):
        Centroids(ahead=True).index(ROOM, 0)


def test_a_layer_is_projected_before_it_chooses() -> None:
    kinds = [stage.kind for stage in Centroids().stages(1, ("assign",), ("maintain",))]
    assert kinds == ["project", "select", "look_up", "bring", "project_kv", "assign", "attend", "maintain", "rest"]
    assert Stage("project", 1, (("rest", 0),)) in Centroids().stages(2, ())


@pytest.mark.parametrize("role", ["selector", "layout", "upkeep"])
@pytest.mark.parametrize("own", [True, False])
def test_clusters_take_three_roles_together(role: str, own: bool) -> None:
    clustered = {"selector": Centroids(), "layout": ClusterPools(), "upkeep": AdaptiveClusters()}
    plain = {"selector": LowRankKeys(), "layout": TokenGroups(), "upkeep": RollingGroups()}
    one, others = (clustered, plain) if own else (plain, clustered)
    roles = Roles(**{**others, role: one[role]})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="policies: clusters take a selector, a layout and an upkeep"):
        plan_of(roles, MODEL, sequences=1, context=8, output=4, budget_bytes=1e6)


def test_a_window_takes_no_more_room_than_new_tokens_do() -> None:
    windows = [LocalClusters(window_tokens=tokens, window_clusters=1) for tokens in (3, 4, 4000)]
    each = MODEL.layers * MODEL.kv_entry_bytes
    assert [sum_of(window.holdings(ROOM, 1)) / each for window in windows] == [3, 4, 4]


def test_slots_leave_room_for_what_upkeep_takes() -> None:
    for residency in (Reuse(), DoubleBuffer()):
        roles = Roles(
            selector=Centroids(selected_tokens=6),
            residency=residency,
            layout=ClusterPools(group_tokens=3),
            upkeep=AdaptiveClusters(),
        )
        plan = plan_of(roles, MODEL, sequences=1, context=80, output=4, budget_bytes=12_000)
        assert plan.memory.sequence_bytes <= 12_000
        assert (plan.staying.slots > 0) == isinstance(residency, Reuse)

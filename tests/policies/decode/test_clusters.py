"""What a new key does to clusters, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from tiny import tiny_model

from kvferry.pipelines.decoding.plan import plan_of
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.centroids import Centroids
from kvferry.policies.decode.clusters import ClusterPools, Clusters, SplitClusters
from kvferry.policies.decode.pools import PoolLayout
from kvferry.policies.decode.residency import DoubleBuffer, Reuse
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows, Joined, Lookup
from kvferry.policies.decode.scored_keys import LowRankKeys
from kvferry.policies.decode.stages import Stage
from kvferry.policies.decode.upkeep import Learned, RollingGroups
from kvferry.specs.errors import InputError

# Two layers of 2 heads: 32 B per token.
MODEL = tiny_model(layers=2, kv_heads=2, head_dim=4)
ROOM = Room(model=MODEL, block_tokens=3, context=8, output=4, budget_bytes=1e6)


def clusters(**settings: int) -> Clusters:
    """One layer with a row of two clusters of four tokens, in pools for as many; a pool has room for its own tokens."""
    like = {"layers": 1, "sequences": 1, "blocks": 4, "first_blocks": 2, "block_tokens": 4, "token_bytes": 10}
    pools = PoolLayout(**{**like, "alignment_bytes": 10, "spare": 1, "file_spare": 4, **settings}).start()
    return Clusters(pools, most_tokens=5)


def joined(kept: Clusters, block: int, *here: int) -> tuple[Joined, list[tuple[int, int]]]:
    """A key joins a block while those blocks are in memory."""
    wanted = BlockRows(np.array(here, np.int64), np.array([0, len(here)]))
    update = kept.append(Learned([np.array([[block]])], [Lookup(wanted, np.ones(len(here), bool))]))
    kept.pools.check()
    (one,) = update.joined[0]
    assert update.changed[0].ids.tolist() == [[one.block]]
    offsets, lengths = update.written(np.array([0]))
    return one, list(zip(offsets.tolist(), lengths.tolist(), strict=True))


def test_a_key_finds_its_place_by_hand() -> None:
    kept = clusters()
    # The pool of cluster 1 is full, and nothing of it is in memory: the key opens cluster 2, behind both pools.
    assert joined(kept, 1, 0) == (Joined(0, 2), [(80, 10)])
    # In memory, it moves to a pool of 50 B and is written as a whole.
    assert joined(kept, 1, 1) == (Joined(0, 1), [(90, 50)])
    assert (kept.opened, kept.moves, kept.splits) == (1, 1, 0)
    # With six tokens it is too large: three leave. It had to move once more before, to a pool of 60 B.
    assert joined(kept, 1, 1) == (Joined(0, 1, 3, 3), [(140, 30), (200, 30)])
    assert [kept.pools.tokens(0, 0, block) for block in range(4)] == [4, 3, 1, 3]
    # There is room where three left, and no read is needed to append.
    assert joined(kept, 1) == (Joined(0, 1), [(170, 10)])
    assert (kept.opened, kept.moves, kept.splits) == (1, 2, 1)
    assert (kept.stored(0), kept.in_all_rows(0), kept.recent(0)) == (4, 4, 0)


def test_a_full_row_is_not_split_and_refuses_a_new_cluster() -> None:
    kept = clusters(blocks=2)
    assert joined(kept, 0, 0)[0] == joined(kept, 0, 0)[0] == Joined(0, 0)
    assert kept.pools.tokens(0, 0, 0) == 6
    with pytest.raises(InputError, match="policies.layout: a row has room for 2 blocks, and has them"):
        joined(kept, 1)


def test_pools_and_memory_by_hand() -> None:
    layout = ClusterPools(group_tokens=3).layout(ROOM, 2, 1, 32)
    # Eight tokens make two clusters; twelve would make four, and there is room for twice as many.
    assert (layout.first_tokens.tolist(), layout.blocks, layout.token_bytes) == ([4, 4], 8, 32)
    longer = replace(ROOM, context=11)
    assert ClusterPools(group_tokens=3).layout(longer, 1, 1, 32).first_tokens.tolist() == [4, 4, 3]
    assert SplitClusters().n_bytes(ROOM, 2) == 2 * 2 * 32
    assert SplitClusters().mean_recent(3, 4) == 0
    with pytest.raises(ValueError, match="spare and room are 1 or more, got 0 and 2"):
        ClusterPools(spare=0).layout(ROOM, 1, 1, 32)


def test_the_best_clusters_are_taken_until_they_hold_enough() -> None:
    selector = Centroids(selected_tokens=7)
    ranked, tokens = BlockRows(np.array([[3, 0, 2, 1], [1, 0, 3, 2]])), np.array([[4, 3, 1, 9], [5, 1, 5, 0]])
    taken = selector.take(ranked, tokens)
    assert taken.starts is not None
    # The second row has three clusters alone.
    assert (taken.ids.tolist(), taken.starts.tolist()) == ([3, 0, 1, 0, 3], [0, 2, 5])
    few = selector.take(ranked, np.array([[4, 3, 1, 9], [1, 1, 0, 0]]))
    assert few.row(1).tolist() == [1, 0]


def test_centroids_are_in_single_precision() -> None:
    # Four blocks of two layers, 8 numbers each.
    index = Centroids().index(ROOM, 0)
    assert index is not None
    assert (index.n_bytes, index.spec.clusters) == (2 * 4 * 8 * 4, True)
    with pytest.raises(ValueError, match="clusters are chosen with the layer's own query, not ahead"):
        Centroids(ahead=True).index(ROOM, 0)


def test_a_layer_is_projected_before_it_chooses() -> None:
    kinds = [stage.kind for stage in Centroids().stages(1, ())]
    assert kinds == ["project", "select", "look_up", "bring", "assign", "attend", "rest"]
    assert Stage("project", 1, (("rest", 0),)) in Centroids().stages(2, ())


@pytest.mark.parametrize("role", ["selector", "layout", "upkeep"])
@pytest.mark.parametrize("own", [True, False])
def test_clusters_take_three_roles_together(role: str, own: bool) -> None:
    clustered = {"selector": Centroids(), "layout": ClusterPools(), "upkeep": SplitClusters()}
    plain = {"selector": LowRankKeys(), "layout": TokenGroups(), "upkeep": RollingGroups()}
    one, others = (clustered, plain) if own else (plain, clustered)
    roles = Roles(**{**others, role: one[role]})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="policies: clusters take a selector, a layout and an upkeep"):
        plan_of(roles, MODEL, sequences=1, context=8, output=4, budget_bytes=1e6)


def test_slots_leave_room_for_what_upkeep_takes() -> None:
    for residency in (Reuse(), DoubleBuffer()):
        roles = Roles(
            selector=Centroids(selected_tokens=6),
            residency=residency,
            layout=ClusterPools(group_tokens=3),
            upkeep=SplitClusters(),
        )
        plan = plan_of(roles, MODEL, sequences=1, context=80, output=4, budget_bytes=12_000)
        assert plan.memory_bytes <= 12_000
        assert (plan.slots > 0) == isinstance(residency, Reuse)

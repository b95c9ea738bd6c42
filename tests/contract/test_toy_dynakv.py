"""What DynaKV needs of the roles and of every world: clusters of like keys as ragged KV blocks, new keys that are
assigned to them, and clusters that split, move and are written."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from toys import RunToy, decoded, toy_plan

from kvferry.layouts.cluster_layout import PlacedClusters
from kvferry.policies.decode.centroids import Centroids
from kvferry.policies.decode.cluster_caches import VirtualCache, WholeCache
from kvferry.policies.decode.cluster_places import ClusterByCluster, ClusterPools, DualHeads, SequenceOrdered
from kvferry.policies.decode.cluster_upkeep import AdaptiveClusters
from kvferry.policies.decode.global_clusters import GlobalClusters, RegroupedClusters
from kvferry.policies.decode.local_clusters import LocalClusters, WindowedClusters
from kvferry.policies.decode.maintained_clusters import MaintainedClusters
from kvferry.policies.decode.residency import Reuse
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.rows import BlockRows

COUNTED = ("splits", "delayed", "moves")
CLUSTERS = Roles(
    selector=Centroids(selected_tokens=20, per_head=True),
    residency=Reuse(),
    layout=ClusterPools(group_tokens=3, spare=1),
    upkeep=AdaptiveClusters(threshold=1.0, buffer_tokens=2),
)


@pytest.mark.torch
def test_what_a_real_run_assigned_is_replayed() -> None:
    """The modelled world cuts and moves the very clusters that the real one did."""
    plan = toy_plan(CLUSTERS, sequences=2, context=50, output=24)
    with decoded("torch", plan) as live:
        assert live.world is not None
        inputs = live.world.content.inputs()
    with decoded("sim", plan, inputs) as simulated:
        for run in (live, simulated):
            assert isinstance(run.decode.now.kept, MaintainedClusters)
        real, modelled = live.decode.now.kept, simulated.decode.now.kept
        assert [vars(real.splitting)[what] for what in COUNTED] == [vars(modelled.splitting)[what] for what in COUNTED]
        assert (real.places.all_tokens == modelled.places.all_tokens).all()
        assert (real.splitting.waiting.counts == modelled.splitting.waiting.counts).all()
        assert live.decode.record.blocks_reused == simulated.decode.record.blocks_reused > 0


LAYOUTS: list[Any] = [SequenceOrdered, ClusterByCluster, ClusterPools, DualHeads]
RESIDENCIES: list[Any] = [WholeCache(cache_share=0.3), VirtualCache(cache_share=0.3)]


@pytest.mark.parametrize("layout", [*LAYOUTS[2:], *(pytest.param(one, marks=pytest.mark.long) for one in LAYOUTS[:2])])
def test_every_layout_holds_every_token(toy: RunToy, layout: Any) -> None:
    plan = toy_plan(replace(CLUSTERS, layout=layout(group_tokens=3)), sequences=2, context=50, output=16)
    with toy(plan) as run:
        blocks, kept = run.decode.now.blocks, run.decode.now.kept
        assert isinstance(blocks, PlacedClusters) and isinstance(kept, MaintainedClusters)
        blocks.check()
        assert (blocks.all_tokens + kept.splitting.waiting.counts).sum(axis=2).tolist() == [
            [50 + 16 - 1] * plan.rows
        ] * plan.model.layers
        assert 1 <= run.decode.record.accesses <= run.decode.record.accessed
        assert blocks.taken_bytes >= blocks.entry_bytes > 0


@pytest.mark.parametrize("residency", RESIDENCIES, ids=str)
def test_every_residency_keeps_what_it_may(toy: RunToy, residency: Any) -> None:
    layout = DualHeads(group_tokens=3, page_buffers=1, page_bytes=4096, hot_steps=8)
    roles = replace(CLUSTERS, layout=layout, residency=residency)
    plan = toy_plan(roles, sequences=2, context=50, output=16)
    with toy(plan) as run:
        record = run.decode.record
        assert 0 < record.blocks_reused < record.blocks_wanted
        for one in run.decode.now.layers:
            one.resident.check()


def test_clusters_grow_split_and_are_written(toy: RunToy) -> None:
    plan = toy_plan(CLUSTERS, sequences=2, context=50, output=24)
    with toy(plan) as run:
        clusters = run.decode.now.kept
        assert isinstance(clusters, MaintainedClusters)
        assert min(clusters.splitting.splits, clusters.splitting.delayed) > 0
        for layer in range(plan.model.layers):
            run.decode.now.layers[layer].resident.check()
            # Every row has every token, in clusters of different sizes.
            for row in range(plan.rows):
                blocks = np.arange(clusters.places.blocks(layer, row))
                starts = np.array([0] * (row + 1) + [len(blocks)] * (plan.rows - row))
                tokens = clusters.tokens_of(layer, BlockRows(blocks, starts))
                assert tokens.sum() == 50 + 24 - 1
                assert len(set(tokens.tolist())) > 1
        assert len(run.decode.record.token_times_s) == 24


def test_new_tokens_become_clusters_of_their_own(toy: RunToy) -> None:
    """Three windows of seven tokens are two clusters each, in every row; two tokens are in none yet."""
    roles = replace(CLUSTERS, upkeep=LocalClusters(window_tokens=7, window_clusters=2))
    plan = toy_plan(roles, sequences=2, context=50, output=24)
    with toy(plan) as run:
        clusters = run.decode.now.kept
        assert isinstance(clusters, WindowedClusters)
        assert clusters.tokens == 2
        for layer in range(plan.model.layers):
            run.decode.now.layers[layer].resident.check()
            assert clusters.places.counts(layer, np.arange(plan.rows)).tolist() == [16 + 3 * 2] * plan.rows
            assert clusters.places.all_tokens[layer].sum(1).tolist() == [50 + 21] * plan.rows
        assert len(run.decode.record.token_times_s) == 24


def test_all_tokens_become_clusters_anew(toy: RunToy) -> None:
    """Twice, after eight and sixteen tokens: 66 tokens make 22 clusters, and seven more join those."""
    plan = toy_plan(replace(CLUSTERS, upkeep=GlobalClusters(every_tokens=8)), sequences=2, context=50, output=24)
    with toy(plan) as run:
        clusters = run.decode.now.kept
        assert isinstance(clusters, RegroupedClusters)
        for layer in range(plan.model.layers):
            run.decode.now.layers[layer].resident.check()
            assert clusters.places.counts(layer, np.arange(plan.rows)).tolist() == [22] * plan.rows
            assert clusters.places.all_tokens[layer].sum(1).tolist() == [50 + 23] * plan.rows
        clusters.places.check()
        assert len(run.decode.record.token_times_s) == 24

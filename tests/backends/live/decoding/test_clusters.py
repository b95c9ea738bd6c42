"""Clusters of a real model's keys: full attention over all of them, and every entry where the pools say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_decoding import SmallDecoding, exact_logits

from kvferry.machine.handles import Attended
from kvferry.machine.ops import (
    Assign,
    DecodeAttention,
    Extents,
    OutputHead,
    PrefillLayer,
    ProjectKv,
    ProjectQ,
    RestOfLayer,
)
from kvferry.policies.decode.centroids import Centroids
from kvferry.policies.decode.cluster_caches import VirtualCache, WholeCache
from kvferry.policies.decode.cluster_places import ClusterByCluster, ClusterPools, DualHeads, SequenceOrdered
from kvferry.policies.decode.cluster_upkeep import AdaptiveClusters
from kvferry.policies.decode.global_clusters import GlobalClusters
from kvferry.policies.decode.local_clusters import LocalClusters
from kvferry.policies.decode.maintained_clusters import MaintainedClusters
from kvferry.policies.decode.placement import OneTier, Progressive
from kvferry.policies.decode.residency import DoubleBuffer, Residency, Reuse
from kvferry.policies.decode.roles import Roles
from kvferry.specs.errors import KvferryError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
# Of a layer: 2 sides, 2 heads, 16 numbers of 4 B.
TOKEN_BYTES = 2 * 2 * 16 * 4


def roles(selected: int = 1000, *, per_head: bool = True, **others: Any) -> Roles:
    parts = {
        "layout": ClusterPools(group_tokens=3, spare=1),
        "upkeep": AdaptiveClusters(threshold=1.0, buffer_tokens=2),
        **others,
    }
    return Roles(selector=Centroids(selected_tokens=selected, per_head=per_head), **parts)


# Page buffers of 2 tokens of a head.
BUFFERS: dict[str, Any] = {"page_buffers": 2, "page_bytes": 256, "hot_steps": 4}
LAYOUTS = [
    DualHeads(group_tokens=3, most_tokens=2, whole_pairs=False),
    ClusterPools(group_tokens=3, spare=1, **BUFFERS),
    ClusterByCluster(group_tokens=3, references=8),
    SequenceOrdered(group_tokens=3),
]
FURTHER_LAYOUTS = [
    DualHeads(group_tokens=3),
    DualHeads(group_tokens=3, **BUFFERS),
    ClusterByCluster(group_tokens=3),
    ClusterByCluster(group_tokens=3, **BUFFERS),
]


def named(some: list[Any], further: list[Any]) -> list[Any]:
    """Parameters of a test, the further ones of its long part."""
    return [pytest.param(one, id=str(one)) for one in some] + [
        pytest.param(one, id=str(one), marks=pytest.mark.long) for one in further
    ]


class ClusterDecoding(SmallDecoding):
    """Every key and value is noted as it is computed."""

    def __init__(self, *given: Any, **sizes: Any) -> None:
        super().__init__(*given, **sizes)
        self.computed: list[list[Any]] = [[] for _ in range(self.plan.model.layers)]
        really = self.runner.decoder.keys_values

        def noted(layer: int, hidden: Any, rotary: Any) -> Any:
            both = really(layer, hidden, rotary)
            self.computed[layer].append(self.runner.blocks.format.entries(*both))
            return both

        self.runner.decoder.keys_values = noted

    def run(self) -> list[list[int]]:
        """Also looks, before the world closes, whether each tier has every entry."""
        with self.storage, self.machine:
            env = self.machine.env
            env.run(until=env.process(self.flow.run(self.output)))
            # What was handed over for the last token is written behind it.
            env.run(
                until=env.all_of(
                    [
                        self.machine.move(Extents(*self.flow.now.whole(layer).arrays), tier, "device")
                        for layer, tier in enumerate(self.flow.now.tiers)
                        if tier != "device"
                    ]
                )
            )
            self.check_entries()
        answers: list[list[int]] = self.runner.answers
        return answers

    def check_entries(self) -> None:
        """Each row's tokens, all of them and none twice, lie in its clusters, byte for byte, in the layer's tier."""
        pools, tiers = self.flow.now.kept.places, self.flow.now.tiers  # type: ignore[attr-defined]
        pools.check()
        stores = {"storage": self.storage, "host": self.tiers.host, "device": self.tiers.device}
        for layer in range(self.plan.model.layers):
            expected = torch.cat(self.computed[layer], dim=1)
            for row in range(self.plan.rows):
                found = []
                for block in range(pools.blocks(layer, row)):
                    # What is in a page buffer is not in the file.
                    unwritten = self.runner.blocks._by_layer[layer]._unwritten
                    found += [part for at, part in unwritten.items() if at == (row, block)]
                    reads = pools.reads(layer, np.array([row]), np.array([block]))
                    data = bytes(stores[tiers[layer]].read(Extents(*reads.ranges)))
                    for at, length, down in zip(reads.ats, reads.pieces.lengths, reads.pieces.down, strict=True):
                        found.append(self.runner.blocks.format.unpacked(data[at : at + length], bool(down)))
                waiting = self.runner.blocks._by_layer[layer]._waiting.items()
                found += [one for (of, _), some in waiting if of == row for one in some]
                entries = torch.cat(found).flatten(1)
                wanted = expected[row].flatten(1)
                assert sorted(entries.tolist()) == sorted(wanted.tolist())

    @property
    def kept(self) -> MaintainedClusters:
        kept = self.flow.now.kept
        assert isinstance(kept, MaintainedClusters)
        return kept


def far_apart(model: Any, decoding: SmallDecoding, answers: list[list[int]]) -> float:
    told = torch.stack(decoding.logits)
    exact = exact_logits(model, decoding.ids, answers)
    return float((told - exact).abs().max() / exact.std())


@pytest.mark.parametrize("per_head", [True, False])
@pytest.mark.parametrize("residency", [DoubleBuffer(), Reuse(slots=80)])
def test_all_clusters_are_full_attention(model: Any, tmp_path: Path, per_head: bool, residency: Residency) -> None:
    """As clusters grow, split and move, with a context that makes no whole number of them."""
    wanted = roles(per_head=per_head, residency=residency)
    decoding = ClusterDecoding(model, tmp_path, wanted, context=26, batch=2, output=20)
    answers = decoding.run()
    assert far_apart(model, decoding, answers) < 1e-4
    assert min(decoding.kept.splitting.splits, decoding.kept.splitting.moves) > 0


def test_what_is_selected_is_less_and_all_is_kept(model: Any, tmp_path: Path) -> None:
    """Clusters that are not in memory grow too, or keys open new ones: nothing is lost, and the index agrees."""
    wanted = roles(12, residency=Reuse(slots=12))
    decoding = ClusterDecoding(model, tmp_path, wanted, context=26, batch=2, output=20)
    decoding.run()
    kept, index = decoding.kept, decoding.runner._index
    assert min(kept.splitting.splits, kept.splitting.delayed, kept.splitting.moves) > 0
    assert decoding.flow.record.blocks_reused > 0
    for layer in range(decoding.plan.model.layers):
        entries = torch.cat(decoding.computed[layer], dim=1)
        for row in range(decoding.plan.rows):
            blocks = np.arange(kept.places.blocks(layer, row))
            tokens = kept.places.tokens_of(layer, np.full(len(blocks), row), blocks)
            assert index.sizes(layer, row) == tokens.tolist()
            # The centroids' mean, by size, is that of all keys but those that wait.
            waiting = decoding.runner.blocks._by_layer[layer]._waiting.items()
            late = [one[0] for (of, _), some in waiting if of == row for one in some]
            whole = (index.centroids(layer, row) * torch.tensor(tokens)[:, None]).sum(0)
            keys = entries[row, :, 0].flatten(1)
            expected = keys.sum(0) - sum(one[0].flatten() for one in late)
            torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
            assert tokens.sum() + len(late) == len(keys)


@pytest.mark.parametrize("layout", named(LAYOUTS, FURTHER_LAYOUTS))
def test_every_layout_gives_back_what_was_written(model: Any, tmp_path: Path, layout: Any) -> None:
    """Of all clusters in a real file, and of some of them, as they grow, are cut and move."""
    wanted = roles(layout=layout, residency=Reuse(slots=80))
    decoding = ClusterDecoding(model, tmp_path, wanted, context=26, batch=2, output=20)
    answers = decoding.run()
    assert far_apart(model, decoding, answers) < 1e-4
    some = ClusterDecoding(model, tmp_path, roles(12, layout=layout), context=26, batch=2, output=20)
    some.run()


REPLACEMENTS: list[Any] = ["fifo", "lru", "lfu"]
CACHES = [WholeCache(cache_share=0.3, replacement="cluster-aligned"), VirtualCache(cache_share=0.3)]
FURTHER_CACHES = [WholeCache(cache_share=0.3, replacement=one) for one in REPLACEMENTS] + [
    VirtualCache(cache_share=1.0)
]


@pytest.mark.parametrize("residency", named(CACHES, FURTHER_CACHES))
def test_a_cache_has_what_the_file_has(model: Any, tmp_path: Path, residency: Residency) -> None:
    """Clusters that grow and are cut while they are kept are those that would have been read."""
    layout = DualHeads(group_tokens=3, **BUFFERS)
    sizes = {"context": 26, "batch": 2, "output": 20}
    read = ClusterDecoding(model, tmp_path, roles(12, layout=layout, residency=DoubleBuffer()), **sizes)
    kept = ClusterDecoding(model, tmp_path, roles(12, layout=layout, residency=residency), **sizes)
    assert read.run() == kept.run()
    torch.testing.assert_close(torch.stack(read.logits), torch.stack(kept.logits), rtol=1e-4, atol=1e-4)
    assert kept.flow.record.blocks_reused > read.flow.record.blocks_reused == 0
    for resident in (one.resident for one in kept.flow.now.layers):
        resident.check()


UPKEEPS = [LocalClusters(window_tokens=4, window_clusters=2), GlobalClusters(every_tokens=5)]


@pytest.mark.parametrize("upkeep", UPKEEPS, ids=str)
@pytest.mark.parametrize("residency", [WholeCache(cache_share=0.5), VirtualCache(cache_share=0.5)], ids=str)
def test_a_cache_has_clusters_that_are_made_anew(model: Any, tmp_path: Path, residency: Residency, upkeep: Any) -> None:
    sizes = {"context": 26, "batch": 2, "output": 20}
    both = [
        SmallDecoding(model, tmp_path, roles(12, residency=one, upkeep=upkeep), **sizes)
        for one in (DoubleBuffer(), residency)
    ]
    assert both[0].run() == both[1].run()
    told = [torch.stack(one.logits) for one in both]
    torch.testing.assert_close(*told, rtol=1e-4, atol=1e-4)
    assert both[1].flow.record.blocks_reused > 0
    for resident in (one.resident for one in both[1].flow.now.layers):
        resident.check()


@pytest.mark.parametrize("tier", ["device", "host"])
def test_clusters_in_memory(model: Any, tmp_path: Path, tier: Any) -> None:
    decoding = ClusterDecoding(model, tmp_path, roles(placement=OneTier(tier)), context=40, output=12)
    answers = decoding.run()
    assert far_apart(model, decoding, answers) < 1e-4
    assert decoding.storage.peak_buffer_bytes == 0


def test_what_moves_moves_in_the_hosts_memory_too(model: Any, tmp_path: Path) -> None:
    wanted = roles(layout=ClusterByCluster(group_tokens=3), placement=OneTier("host"))
    decoding = ClusterDecoding(model, tmp_path, wanted, context=26, output=12)
    assert far_apart(model, decoding, decoding.run()) < 1e-4


def test_clusters_move_from_tier_to_tier(model: Any, tmp_path: Path) -> None:
    placement = Progressive(host_bytes=44 * TOKEN_BYTES)
    free_bytes = 3 * 41 * TOKEN_BYTES
    decoding = ClusterDecoding(
        model, tmp_path, roles(placement=placement), context=40, output=20, free_bytes=free_bytes
    )
    answers = decoding.run()
    assert decoding.flow.now.tiers == ("device", "device", "storage")
    assert far_apart(model, decoding, answers) < 1e-4


def test_ops_out_of_turn_are_refused(model: Any, tmp_path: Path) -> None:
    decoding = ClusterDecoding(model, tmp_path, roles(), context=12, output=3)
    run = decoding.runner.run
    for op, told in (
        (Assign(1, 4, 0, 0, heads=2), "Assign of layer 0: its keys have not been projected"),
        (ProjectQ(1, 1), "ProjectQ of layer 1: the hidden state stands below 0"),
        (ProjectKv(1, 0), "ProjectKv of layer 0: its query has not been projected"),
        (RestOfLayer(1, 0), "RestOfLayer of layer 0: it has not been projected"),
        (DecodeAttention(1, 1), "DecodeAttention does not say which KV it attends to"),
    ):
        with pytest.raises(KvferryError, match=told):
            run(op, None)
    for layer in range(3):
        run(PrefillLayer(1, 12, layer), None)
    run(OutputHead(1), None)
    run(ProjectQ(1, 0), None)
    with pytest.raises(KvferryError, match="layer 0 has not attended yet"):
        run(RestOfLayer(1, 0), None)
    assert Attended(0, None, None, 0).at is None
    decoding.storage.close()
    decoding.machine.close()

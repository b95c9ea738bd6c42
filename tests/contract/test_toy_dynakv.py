"""What DynaKV needs of the roles and of every machine: blocks and rows of different length, new keys that are assigned
to clusters, and clusters that split, move and are written. A toy of its roles, carried out by the pipeline."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from tiny import unit_model
from worlds import World, finish

from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.plan import plan_of
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.layout import Ranges
from kvferry.policies.decode.pools import PoolLayout, Pools
from kvferry.policies.decode.residency import Reuse
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.stages import Stage, Stages
from kvferry.policies.decode.top_blocks import TopBlocks
from kvferry.policies.decode.upkeep import KeepNewest, Learned, Update

LAYERS, SEQUENCES, CONTEXT, STEPS, MOST_TOKENS = 2, 2, 12, 6, 4


@dataclass(frozen=True, kw_only=True)
class Centroids(TopBlocks):
    """The best clusters, as many as hold the selected tokens."""

    kind = "centroids"
    fixed = True

    def index(self, room: Room, reserved_bytes: float) -> Index:
        return Index(self.spec(room, room.model.key_width), room.key_cache_bytes(1))

    def vectors(self, block_tokens: int, stored: int) -> int:
        return stored

    def take(self, ranked: BlockRows, tokens: np.ndarray | None) -> BlockRows:
        assert tokens is not None
        before = np.cumsum(tokens, axis=1) - tokens
        wanted = before < self.selected_tokens
        return BlockRows(ranked.ids[wanted], np.cumsum([0, *wanted.sum(axis=1)]))

    def stages(self, layers: int, beside: tuple[str, ...]) -> Stages:
        stages: list[Stage] = []
        for n in range(layers):
            stages += [
                Stage("project", n, (("rest", n - 1),) if n else ()),
                Stage("select", n, (("project", n),), awaited=True),
                Stage("look_up", n),
                Stage("bring", n, (("look_up", n),)),
                Stage("assign", n, (("project", n),), awaited=True),
                Stage("attend", n, (("bring", n),)),
                Stage("rest", n, (("attend", n),)),
            ]
        return tuple(stages)


class ClusterPools(TokenGroups):
    def layout(self, room: Room, sequences: int, heads: int, alignment_bytes: int) -> Any:
        return PoolLayout(
            layers=room.model.layers,
            sequences=sequences,
            heads=heads,
            blocks=4 * room.context_blocks,
            first_blocks=room.context_blocks,
            block_tokens=room.block_tokens,
            token_bytes=room.model.kv_entry_bytes,
            alignment_bytes=alignment_bytes,
            spare=1,
            file_spare=4,
        )


class SplitClusters(KeepNewest):
    """A new key joins the cluster that it was assigned to, which is split once it is in memory and too large."""

    def start(self, context: int, block_tokens: int, layout: Pools) -> "Clusters":
        return Clusters(layout)


class Clusters:
    def __init__(self, pools: Pools) -> None:
        self.pools, self.splits, self.moved = pools, 0, 0

    def stored(self, layer: int) -> int:
        return min(self.pools.blocks(layer, row) for row in range(SEQUENCES))

    def recent(self, layer: int) -> int:
        return 0

    def tokens_of(self, layer: int, blocks: BlockRows) -> np.ndarray:
        return self.pools.tokens_of(layer, blocks.spread(np.arange(blocks.rows)), blocks.ids)

    def append(self, learned: Learned) -> Update:
        written = [self._layer(layer, ids.ravel(), learned.found[layer]) for layer, ids in enumerate(learned.assigned)]
        changed = [BlockRows(ids.reshape(-1, 1)) for ids in learned.assigned]
        return Update(lambda layers: joined([one for n in layers for one in written[n]]), changed=changed)

    def _layer(self, layer: int, ids: np.ndarray, found: Lookup | None) -> list[Ranges]:
        written = []
        for row, cluster in enumerate(ids.tolist()):
            place = layer, np.array([row]), np.array([cluster])
            before = self.pools.ranges(*place)[0]
            written.append(self.pools.append(layer, row, cluster))
            self.moved += int((self.pools.ranges(*place)[0] != before)[0])
            size = int(self.pools.tokens_of(*place)[0])
            assert found is not None
            here = found.wanted.ids[found.wanted.starts[row] : found.wanted.starts[row + 1]]
            if size > MOST_TOKENS and cluster in here:
                self.splits += 1
                written.append(self.pools.split(layer, row, cluster, size // 2)[1])
        self.pools.check()
        return written


def joined(ranges: list[Ranges]) -> Ranges:
    offsets, lengths = zip(*ranges, strict=True)
    return np.concatenate(offsets), np.concatenate(lengths)


def test_clusters_grow_split_and_are_written(world: World) -> None:
    roles = Roles(
        selector=Centroids(selected_tokens=7),
        residency=Reuse(slots=8),
        layout=ClusterPools(group_tokens=3),
        upkeep=SplitClusters(),
    )
    model = unit_model(kv_value_bytes=1.0, layers=LAYERS)
    sizes = {"sequences": SEQUENCES, "context": CONTEXT, "output": STEPS}
    plan = plan_of(roles, model, **sizes, budget_bytes=1e9, alignment_bytes=4)
    decode = LockStepDecode(world.machine, plan)
    finish(world, world.machine.env.process(decode.run(STEPS)))
    clusters: Any = decode.now.kept
    assert clusters.splits > 0
    assert clusters.moved > 0
    for layer in range(LAYERS):
        decode.now.residents[layer].check()
        # Every row has every token, in clusters of different sizes; rows have selected different numbers of them.
        rows, blocks = np.nonzero(np.arange(plan.layout.blocks) < [[clusters.pools.blocks(layer, r)] for r in range(2)])
        tokens = clusters.pools.tokens_of(layer, rows, blocks)
        assert [tokens[rows == row].sum() for row in range(SEQUENCES)] == [CONTEXT + STEPS - 1] * 2
        assert len(set(tokens.tolist())) > 1
    assert len(decode.record.token_times_s) == STEPS

"""KV blocks that are clusters: their pools on storage, and what a new key does to them (DynaKV 4 and 5.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.layout import Ranges
from kvferry.policies.decode.pools import PoolLayout, Pools
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows, Joined, Lookup
from kvferry.policies.decode.upkeep import Learned, Update


@dataclass(frozen=True, kw_only=True)
class ClusterPools(TokenGroups):
    """A block is a cluster with a pool of its own. The context makes clusters of ``group_tokens``; what is left over
    lies in the first ones, one token in each.

    A pool has room for ``spare`` times the tokens that it is made for, a row for ``room`` times the clusters that all
    tokens, those of the output among them, would make at first.
    """

    clusters = True

    spare: int = 2
    room: int = 2

    def layout(self, room: Room, sequences: int, heads: int, alignment_bytes: int) -> PoolLayout:
        if min(self.spare, self.room) < 1:
            raise ValueError(f"spare and room are 1 or more, got {self.spare} and {self.room}")
        first = room.context_blocks
        block_tokens, more = divmod(room.context, first)
        return PoolLayout(
            layers=room.model.layers,
            sequences=sequences,
            heads=heads,
            blocks=self.room * room.blocks,
            first_blocks=first,
            block_tokens=block_tokens,
            more=more,
            token_bytes=room.model.kv_entry_bytes // heads,
            alignment_bytes=alignment_bytes,
            spare=self.spare,
        )


@dataclass(frozen=True)
class SplitClusters:
    """A new key joins the cluster that it was assigned to. A cluster of more than ``most_tokens`` is split in halves as
    soon as it is in memory anyway, so that nothing has to be read for it; None: of twice the tokens that clusters have
    at first. A full pool moves when its cluster is in memory; otherwise the key opens a cluster of its own.

    Left out: DynaKV's measure, a variance that is too large, and its buffer for what waits for a split.
    """

    clusters = True

    most_tokens: int | None = None

    def n_bytes(self, room: Room, selected: int | None) -> float:
        # The storage block in which a cluster ends is in memory, to be written again: some tokens of each.
        return room.model.layers * room.context_blocks * room.model.kv_entry_bytes

    def mean_recent(self, block_tokens: int, output: int) -> float:
        return 0.0

    def start(self, context: int, block_tokens: int, layout: Any) -> "Clusters":
        assert isinstance(layout, Pools)
        return Clusters(layout, self.most_tokens or 2 * block_tokens)


class Clusters:
    """A run's clusters: every token of every row is in one of them.

    ``splits``, ``moves`` and ``opened`` count what has happened to them.
    """

    def __init__(self, pools: Pools, most_tokens: int) -> None:
        self.pools, self._most_tokens = pools, most_tokens
        self.splits = self.moves = self.opened = 0

    def stored(self, layer: int) -> int:
        return self.pools.most(layer)

    def in_all_rows(self, layer: int) -> int:
        return self.pools.fewest(layer)

    def recent(self, layer: int) -> int:
        return 0

    def tokens_of(self, layer: int, blocks: BlockRows) -> np.ndarray:
        return self.pools.tokens_of(layer, blocks.spread(np.arange(blocks.rows)), blocks.ids)

    def append(self, learned: Learned) -> Update:
        joined, ranges = [], []
        for layer, (ids, found) in enumerate(zip(learned.assigned, learned.found, strict=True)):
            assert found is not None
            rows = [self._join(layer, row, block, found) for row, block in enumerate(ids.ravel().tolist())]
            joined.append([one for one, _ in rows])
            ranges.append(_together([written for _, written in rows]))
        changed = [BlockRows(np.array([[one.block] for one in of_layer])) for of_layer in joined]
        return Update(lambda layers: _together([ranges[layer] for layer in layers]), changed=changed, joined=joined)

    def _join(self, layer: int, row: int, block: int, found: Lookup) -> tuple[Joined, Ranges]:
        """A key joins a block: what became of it, and what has to be written."""
        here, fits = block in found.wanted.row(row), self.pools.fits(layer, row, block)
        if not here and not fits:
            self.opened += 1
            new, written = self.pools.open(layer, row, 1)
            return Joined(row, new), written
        written = self.pools.append(layer, row, block)
        self.moves += not fits
        tokens = self.pools.tokens(layer, row, block)
        if not here or tokens <= self._most_tokens or self.pools.full(layer, row):
            return Joined(row, block), written
        # Both parts are written whole, the new key in one of them.
        self.splits += 1
        new, written = self.pools.split(layer, row, block, tokens // 2)
        return Joined(row, block, new, tokens // 2), written


def _together(ranges: Sequence[Ranges]) -> Ranges:
    offsets, lengths = zip(*ranges, strict=True)
    return np.concatenate(offsets), np.concatenate(lengths)

"""Caches of clusters: by hand, against plain code, and that no replacement beats the optimum."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from decoding import buffer_bytes, metadata_bytes, sum_of
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model

from kvferry.pipelines.decoding.sizing import plan_of
from kvferry.policies.decode.caches_of_layers import CachesOfLayers
from kvferry.policies.decode.centroids import Centroids
from kvferry.policies.decode.cluster_cache import ClusterCache
from kvferry.policies.decode.cluster_caches import VirtualCache, WholeCache
from kvferry.policies.decode.cluster_places import ClusterByCluster, DualHeads
from kvferry.policies.decode.cluster_upkeep import AdaptiveClusters
from kvferry.policies.decode.placement import OneTier
from kvferry.policies.decode.read_ahead import ReadAhead
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.stages import Stage
from kvferry.specs.errors import InputError

REPLACEMENTS: list[Any] = ["fifo", "lru", "lfu", "cluster-aligned"]


def rows(*ids: list[int]) -> BlockRows:
    starts = np.cumsum([0, *(len(row) for row in ids)])
    return BlockRows(np.array([one for row in ids for one in row], np.int64), starts)


def steps(cache: ClusterCache, *wanted: list[int], tokens: list[int]) -> list[list[int]]:
    """What is kept after each look-up of a single row."""
    sizes, found = np.array(tokens), []
    for ids in wanted:
        cache.look_up(rows(ids), sizes[ids])
        found.append(cache.held()[1].tolist())
        cache.check()
    return found


@pytest.mark.parametrize("replacement", REPLACEMENTS)
@pytest.mark.parametrize("limit", [None, ReadAhead(window_s=30, command_s=3, byte_s=0.1)])
def test_caches_of_layers_go_on_as_each_by_itself(replacement: Any, limit: ReadAhead | None) -> None:
    def made() -> list[ClusterCache]:
        return [ClusterCache(2, 9, 12, replacement, 0.25) for _ in range(3)]

    chance, alone, parts = np.random.default_rng(5), made(), made()
    together, dropped = CachesOfLayers(parts), 0
    for turn in range(40):
        asked = [rows(*(np.flatnonzero(chance.random(9) < 0.4).tolist() for _ in range(2))) for _ in alone]
        sizes = [chance.integers(1, 6, len(wanted.ids)) for wanted in asked]
        # Looked up by themselves or in one call.
        pairs = list(zip(asked, sizes, strict=True))
        of_parts = together.look_up_each(pairs) if turn % 3 else [p.look_up(*of) for p, of in zip(parts, pairs)]
        for one, part, wanted, tokens, of_part in zip(alone, parts, asked, sizes, of_parts, strict=True):
            changed = wanted.ids[:1] if len(wanted.row(0)) else None
            found = one.look_up(wanted, tokens)
            assert of_part.wanted is wanted and of_part.slots is wanted.ids
            assert found.missing.tolist() == of_part.missing.tolist()
            assert [of.tolist() for of in found.dropped or ()] == [of.tolist() for of in of_part.dropped or ()]
            dropped += len((found.dropped or wanted.places)[0])
            if changed is not None:
                for cache in (one, part):
                    cache.renew(rows(changed.tolist(), [8]), np.array([6, 2]), [(1, 8)])
        for one, ahead in zip(alone, together.ahead_each(limit, 10), strict=True):
            assert [of.tolist() for of in one.ahead(limit, 10)] == [of.tolist() for of in ahead]
    assert dropped > 100
    assert [part.held()[1].tolist() for part in parts] == [one.held()[1].tolist() for one in alone]


def test_replacements_by_hand() -> None:
    """Clusters of 4, 1, 2 and 2 tokens, room for 5."""
    tokens = [4, 1, 2, 2]
    asked = [0], [1], [0], [2], [3]
    # 0 came first, and leaves first, whenever it was wanted last.
    assert steps(ClusterCache(1, 4, 5, "fifo"), *asked, tokens=tokens) == [[0], [0, 1], [0, 1], [1, 2], [1, 2, 3]]
    # 2 and 0 are too much together: 1 was not wanted for longer than 0, but behind 0 there is no room either.
    assert steps(ClusterCache(1, 4, 5, "lru"), *asked, tokens=tokens)[3:] == [[2], [2, 3]]
    # 0 was wanted twice, so that the newcomers have no place.
    assert steps(ClusterCache(1, 4, 5, "lfu"), *asked, tokens=tokens)[3:] == [[0], [0]]
    # The largest leaves, although it was wanted twice.
    assert steps(ClusterCache(1, 4, 5, "cluster-aligned"), *asked, tokens=tokens)[3:] == [[1, 2], [1, 2, 3]]


def test_what_there_is_time_for_is_read_ahead_by_hand() -> None:
    """Clusters of 4, 1, 2 and 2 tokens of 10 B; a read takes 3 s and 0.1 s for each byte."""
    cache, sizes = ClusterCache(1, 4, 9, "cluster-aligned"), np.array([4, 1, 2, 2])
    for ids in ([1, 2], [0, 2, 3]):
        cache.look_up(rows(ids), sizes[ids])
    # All are kept, and 1 was not wanted last. 2 was wanted twice and takes 5 s, 0 takes 7 s; for 3 there would be
    # time at 17 s.
    assert cache.held()[1].tolist() == [0, 1, 2, 3]
    assert cache.ahead(ReadAhead(window_s=16.9, command_s=3, byte_s=0.1), 10)[1].tolist() == [0, 2]
    assert cache.look_up(rows([0, 1, 2, 3]), sizes).missing.tolist() == [False, True, False, True]
    # There is time for all, then for none; without a limit all come.
    assert cache.ahead(ReadAhead(window_s=21, command_s=3, byte_s=0.1), 10)[1].tolist() == [0, 1, 2, 3]
    assert cache.look_up(rows([0, 1]), sizes[[0, 1]]).hits == 2
    assert cache.ahead(ReadAhead(window_s=3, command_s=3, byte_s=0.1), 10)[1].tolist() == []
    assert cache.look_up(rows([0, 1]), sizes[[0, 1]]).hits == 0
    assert cache.ahead(None, 10)[1].tolist() == [0, 1, 2, 3]
    # What is changing is not there, whether there would be time for it or not.
    assert cache.ahead(ReadAhead(window_s=13, command_s=3, byte_s=0.1), 10, rows([0]))[1].tolist() == [1]
    assert cache.look_up(rows([0, 1]), sizes[[0, 1]]).missing.tolist() == [True, False]


def test_hits_and_what_left_are_told() -> None:
    cache = ClusterCache(2, 4, 2)
    first = cache.look_up(rows([0, 1], [3]), np.array([1, 1, 2]))
    assert (first.hits, first.slots.tolist()) == (0, [0, 1, 3])
    second = cache.look_up(rows([1, 2], [3]), np.array([1, 1, 2]))
    assert second.missing.tolist() == [False, True, False]
    third = cache.look_up(rows([0], []), np.array([1]))
    assert third.missing.tolist() == [True]
    assert [part.tolist() for part in third.dropped] == [[0], [0]]


def test_updated_clusters_stay_in_their_room() -> None:
    """Of 6 tokens a third is reserved. Cluster 0 of 2 is cut in two, then others are wanted."""
    cache = ClusterCache(1, 8, 6, "cluster-aligned", 1 / 3)
    cache.look_up(rows([0]), np.array([3]))
    cache.renew(rows([0, 5]), np.array([2, 1]), [(0, 0), (0, 5)])
    assert cache.held()[1].tolist() == [0, 5]
    for _ in range(10):
        cache.look_up(rows([1, 2, 3]), np.array([2, 1, 1]))
    # The last update counts: of the parts, which were updated together, the first by number has its place.
    assert cache.held()[1].tolist() == [0, 1, 2, 3]
    for _ in range(10):
        cache.look_up(rows([1, 2, 3, 4]), np.array([2, 1, 1, 2]))
    assert cache.held()[1].tolist() == [1, 2, 3, 4]
    # One that is not in memory does not come in because it has changed.
    cache.renew(rows([6]), np.array([1]))
    assert cache.held()[1].tolist() == [1, 2, 3, 4]
    cache.forget(rows([1]))
    assert cache.held()[1].tolist() == [2, 3, 4]


@pytest.mark.parametrize("replacement", REPLACEMENTS)
@given(st.data())
def test_nothing_is_found_that_is_not_kept(replacement: Any, data: st.DataObject) -> None:
    """Hits are what was kept; no row keeps more than there is room for; what left was there before."""
    n_rows, blocks = data.draw(st.integers(1, 3), "rows"), data.draw(st.integers(1, 8), "blocks")
    capacity = data.draw(st.integers(0, 12), "capacity")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32), "seed"))
    cache, tokens = ClusterCache(n_rows, blocks, capacity, replacement, 0.5), rng.integers(1, 5, (n_rows, blocks))
    in_memory: set[tuple[int, int]] = set()
    for _ in range(10):
        kept = set(zip(*(part.tolist() for part in cache.held()), strict=True))
        cache.check()
        ids = [rng.permutation(blocks)[: rng.integers(0, blocks + 1)].tolist() for _ in range(n_rows)]
        asked = [(row, one) for row, of_row in enumerate(ids) for one in of_row]
        found = cache.look_up(rows(*ids), np.array([tokens[place] for place in asked], np.int64))
        assert [place not in kept for place in asked] == found.missing.tolist()
        assert found.dropped is not None
        left = set(zip(*(part.tolist() for part in found.dropped), strict=True))
        assert in_memory - left == kept
        in_memory = kept | set(asked)
        changed = [one for one in asked if rng.random() < 0.3]
        for place in changed:
            tokens[place] += 1
        cache.renew(
            rows(*([one for row, one in changed if row == of] for of in range(n_rows))),
            np.array([tokens[place] for place in changed], np.int64),
        )


def best(stream: list[list[int]], capacity: int) -> int:
    """The most hits of all ways to keep clusters of one size."""
    reached: dict[frozenset[int], int] = {frozenset(): 0}
    for wanted in stream:
        following: dict[frozenset[int], int] = {}
        for kept, hits in reached.items():
            there, now = kept | set(wanted), hits + len(kept & set(wanted))
            for n in range(min(capacity, len(there)) + 1):
                for choice in combinations(sorted(there), n):
                    key = frozenset(choice)
                    following[key] = max(following.get(key, 0), now)
        reached = following
    return max(reached.values())


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True), min_size=1, max_size=7),
    st.integers(1, 3),
)
def test_no_replacement_has_more_hits_than_the_best_choice(stream: list[list[int]], capacity: int) -> None:
    asked = [rows(ids) for ids in stream]
    for replacement in REPLACEMENTS:
        cache = ClusterCache(1, 5, capacity, replacement)
        assert sum(cache.look_up(wanted).hits for wanted in asked) <= best(stream, capacity)


# Two layers of 2 heads: 32 B per entry; clusters of 4.
MODEL = tiny_model(layers=4, kv_heads=2, head_dim=4)
ROOM = Room(model=MODEL, block_tokens=4, context=100, output=20, budget_bytes=1e6)


def test_memory_by_hand() -> None:
    # 12 of 120 tokens of four layers, or of two; and a selection of 3 clusters.
    assert sum_of(WholeCache().holdings(ROOM, 3, 0)) == 4 * 12 * 32 + 3 * 128
    assert sum_of(VirtualCache().holdings(ROOM, 3, 0)) == 2 * 12 * 32 + 3 * 128
    for cache_share in (-0.1, 1.1):
        with pytest.raises(ValueError, match="cache_share lies in 0..1"):
            WholeCache(cache_share=cache_share).kept_tokens(ROOM)
    with pytest.raises(ValueError, match="reserved_share lies in 0..1"):
        WholeCache(reserved_share=2).kept_tokens(ROOM)


def plan(residency: Any, **layout: Any) -> Any:
    roles = Roles(
        selector=Centroids(selected_tokens=12),
        residency=residency,
        layout=DualHeads(group_tokens=4, **layout),
        upkeep=AdaptiveClusters(),
    )
    return plan_of(roles, MODEL, sequences=2, context=100, output=20, budget_bytes=1e6)


def test_a_virtual_cache_takes_less_of_memory_and_more_of_the_file() -> None:
    whole, virtual = plan(WholeCache()), plan(VirtualCache())
    assert metadata_bytes(whole) == 4 * metadata_bytes(virtual)
    assert buffer_bytes(whole) - buffer_bytes(virtual) == 2 * 12 * 32
    # A representative of 8 numbers of 4 B; room for 60 clusters in each of 4 layers and 2 rows, in whole blocks.
    assert virtual.keys.vector_bytes == 32
    assert virtual.file_bytes == virtual.layout.file_bytes + 4 * 2 * 2048
    begins, lengths = virtual.file.index_rows(1, 50)
    assert (begins - virtual.layout.file_bytes).tolist() == [2 * 2048, 3 * 2048] and lengths.tolist() == [1600] * 2
    assert whole.file_bytes == whole.layout.file_bytes
    # With pipeline 2 alone, representatives stay in memory.
    alone = plan(VirtualCache(index_on_storage=False))
    assert metadata_bytes(alone) == metadata_bytes(whole) and alone.file_bytes == alone.layout.file_bytes
    assert "bring_index" not in {stage.kind for stage in alone.stages}
    # Page buffers are in memory, too: of 4 layers one of 512 B.
    assert buffer_bytes(plan(WholeCache(), page_buffers=1)) - buffer_bytes(whole) == 4 * 512
    with pytest.raises(InputError, match="policies: page_bytes of 1000 B is no power of two"):
        plan(WholeCache(), page_bytes=1000)


def test_clusters_that_move_are_not_in_the_processors_own_memory() -> None:
    roles = Roles(
        selector=Centroids(selected_tokens=12),
        layout=ClusterByCluster(group_tokens=4),
        upkeep=AdaptiveClusters(),
        placement=OneTier("device"),
    )
    with pytest.raises(InputError, match="policies.layout: what lies behind a cluster moves as it grows"):
        plan_of(roles, MODEL, sequences=2, context=100, output=20, budget_bytes=1e6)


def test_the_next_layer_is_swapped_in_while_one_computes() -> None:
    stages = plan(VirtualCache()).stages
    kinds = [(stage.kind, stage.layer) for stage in stages]
    assert kinds[:6] == [("swap", 0), ("bring_index", 0), ("project", 0), ("select", 0), ("look_up", 0), ("bring", 0)]
    assert kinds.index(("swap", 1)) == kinds.index(("bring", 0)) + 1
    by_key = {stage.key: stage for stage in stages}
    assert by_key["swap", 1].after == (("bring", 0),)
    assert ("bring_index", 1) in by_key["select", 1].after
    assert ("swap", 1) in by_key["attend", 1].after
    assert by_key["bring_index", 1] == Stage("bring_index", 1, by_key["project", 1].after)

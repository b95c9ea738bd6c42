"""Pairs of clusters that the last tokens retrieved together, by hand."""

import numpy as np
import pytest

from kvferry.layouts.dual_head import DualHeadLayout
from kvferry.layouts.pools import PoolLayout
from kvferry.policies.decode.maintained_clusters import MaintainedClusters
from kvferry.policies.decode.retrieved_together import RetrievedTogether
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.policies.decode.splits import Clustered
from kvferry.policies.decode.upkeep import Learned, Update
from kvferry.specs.errors import InputError

# Blocks 0 and 1 are a pair, and 2 and 3.
PAIRED = [1, 0, 3, 2]
LAYER, ROW = np.array([0]), np.array([0])


def seen(*steps: set[int], tokens: int = 8) -> RetrievedTogether:
    found = RetrievedTogether((1, 1, 4), tokens)
    for step in steps:
        found.see(LAYER, ROW, np.array([[block in step for block in range(4)]]))
    return found


def pairs(found: RetrievedTogether, here: set[int], partner: list[int]) -> list[tuple[int, int, int]]:
    return found.pairs(LAYER, ROW, np.array([[block in here for block in range(4)]]), np.array([partner]))


def test_a_pair_has_to_save_more_accesses_than_it_costs() -> None:
    """0 and 2 were retrieved together four times, 0 and its partner once: four less one, less the writes of both."""
    four = [{0, 2}] * 4
    assert pairs(seen(*four, {0, 1}), {0, 2}, PAIRED) == [(0, 0, 2)]
    assert pairs(seen(*four, {0, 1}, {0, 1}), {0, 2}, PAIRED) == []
    # Where 2 is alone it is enough to write one of them.
    assert pairs(seen(*four, {0, 1}, {0, 1}), {0, 2}, [1, 0, -1, -1]) == [(0, 0, 2)]


def test_blocks_that_are_not_in_memory_and_partners_make_no_pair() -> None:
    found = seen(*[{0, 1, 2}] * 6)
    assert pairs(found, {0, 1}, PAIRED) == []
    assert pairs(found, {2}, PAIRED) == []
    # 0 and 2 would gain six, and lose the six that 0 and 1 gain now.
    assert pairs(found, {0, 1, 2}, PAIRED) == []
    assert pairs(found, {0, 1, 2}, [-1] * 4) == [(0, 0, 1)]


def test_older_tokens_are_forgotten() -> None:
    steps = [*[{0, 2}] * 4, *[{3}] * 6]
    assert pairs(seen(*steps, tokens=10), {0, 2}, PAIRED) == [(0, 0, 2)]
    assert pairs(seen(*steps, tokens=8), {0, 2}, PAIRED) == []


def test_a_part_was_retrieved_when_its_block_was() -> None:
    found = seen(*[{0, 2}] * 4)
    found.split(0, 0, 0, 1)
    assert pairs(found, {1, 2}, [-1, -1, 3, 2]) == [(0, 1, 2)]


def clusters(kind: type[DualHeadLayout] | type[PoolLayout]) -> MaintainedClusters:
    """A row of four clusters of four keys of 16 B, none of which is ever split."""
    sizes = {"layers": 1, "sequences": 1, "blocks": 4, "first_blocks": 4, "block_tokens": 4, "token_bytes": 16}
    own = {"most_tokens": 8} if kind is DualHeadLayout else {}
    layout = kind(**{**sizes, **own, "alignment_bytes": 16, "row_tokens": 40})  # type: ignore[arg-type]
    kept = MaintainedClusters(layout.start(), threshold=99.0, buffer_tokens=2, most_tokens=None, paired_by=8)
    kept.filled(0, Clustered(np.full((1, 4), 4), np.ones((1, 4))))
    return kept


def key(kept: MaintainedClusters, block: int, *here: int) -> Update:
    wanted = BlockRows(np.array(here), np.array([0, len(here)]))
    assert not kept.maintain(0, np.array([block]), np.array([1.0]), Lookup(wanted, np.ones(len(here), bool)))
    update = kept.append(Learned([None]))
    kept.places.check()
    return update


def test_clusters_in_memory_are_paired_anew_by_hand() -> None:
    """Pools of 256 B: 0 and 1 at 0, 2 and 3 at 256. At the third token the pair of 0 and 2 would have saved three
    accesses and costs two writes: to 512 upwards, and from 768 downwards. Then the key joins 0, behind its four."""
    kept = clusters(DualHeadLayout)
    for _ in range(2):
        assert [len(change) for change in key(kept, 1, 0, 2).changes] == [1]
    (change,) = key(kept, 0, 0, 2).changes
    found = sorted(zip(change.offsets.tolist(), change.blocks.tolist(), change.tokens.tolist(), strict=True))
    assert found == [(512, 0, 4), (512 + 64, 0, 1), (768 - 64, 2, 4)]
    assert kept.places.partners(LAYER, ROW).tolist() == [[2, -1, 0, -1]]  # type: ignore[union-attr]
    assert kept.places.counted.moved_bytes == 2 * 64
    reads = kept.places.reads(0, np.array([0, 0]), np.array([0, 2]))
    assert (reads.offsets.tolist(), reads.lengths.tolist()) == ([512], [256])
    # What lay beside them is alone: one write is enough for 1 and 3.
    key(kept, 2, 1, 3)
    update = key(kept, 2, 1, 3)
    (change,) = update.changes
    assert sorted(change.blocks.tolist()) == [1, 2]
    assert kept.places.partners(LAYER, ROW).tolist() == [[2, 3, 0, 1]]  # type: ignore[union-attr]
    assert update.changed[0].row(0).tolist() == [1, 2, 3]


def test_a_layout_without_pairs_is_refused() -> None:
    with pytest.raises(InputError, match="policies.paired_by: pairs of clusters take `layout: dual-head`"):
        clusters(PoolLayout)

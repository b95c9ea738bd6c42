"""What new tokens do, counted by hand."""

import numpy as np
from decoding import sum_of
from tiny import tiny_model

from kvferry.layouts.layout import Layout
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.upkeep import KeepNewest, Learned, RollingGroups

# Two layers of one sequence with room for five blocks of 64 B.
NOTHING = Learned([])
LAYOUT = Layout(layers=2, sequences=1, blocks=5, block_bytes=64, alignment_bytes=64)


def test_rolling_groups_by_hand() -> None:
    # 10 tokens in blocks of 4: blocks 0 and 1 are on storage, two tokens wait.
    kept = RollingGroups().start(10, 4, LAYOUT)
    seen = []
    for _ in range(6):
        seen.append((kept.stored(0), kept.recent(1)))
        update = kept.append(NOTHING)
        assert (update is not None) == (len(seen) in (2, 6))
        if update is not None:
            # The block of both layers, after 5 blocks each.
            assert update.complete == kept.stored(0) - 1
            offsets, lengths = update.written(np.array([0, 1]))
            assert offsets.tolist() == [64 * update.complete, 64 * (5 + update.complete)]
            assert lengths.tolist() == [64, 64]
            assert update.written(np.array([1]))[0].tolist() == [64 * (5 + update.complete)]
    assert seen == [(2, 2), (2, 3), (3, 0), (3, 1), (3, 2), (3, 3)]
    assert (kept.stored(1), kept.recent(1)) == (4, 0)


def test_without_rolling_attention_sees_the_newest_token_alone() -> None:
    kept = RollingGroups(rolling=False).start(3, 4, LAYOUT)
    assert kept.recent(0) == 0
    update = kept.append(NOTHING)
    assert update is not None
    assert update.complete == 0


def test_newest_tokens_stay_by_hand() -> None:
    kept = KeepNewest().start(10, 4, LAYOUT)
    assert [kept.append(NOTHING) for _ in range(5)] == [None] * 5
    assert (kept.stored(0), kept.recent(0)) == (2, 7)


def test_memory_by_hand() -> None:
    # 2 layers x 4 tokens x 32 B; two tokens of the context and 6 of output.
    room = Room(
        model=tiny_model(layers=2, kv_heads=2, head_dim=4), block_tokens=4, context=10, output=6, budget_bytes=0
    )
    assert sum_of(RollingGroups().holdings(room, 2)) == 2 * 4 * 32
    assert sum_of(KeepNewest().holdings(room, 2)) == 2 * 8 * 32
    # Where everything is read, there is room for them already.
    assert sum_of(RollingGroups().holdings(room, None)) == 0
    assert (RollingGroups().mean_recent(4, 6), KeepNewest().mean_recent(4, 6)) == (1.5, 4.5)

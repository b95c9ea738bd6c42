"""KVSwap's four parameters, and the memory that they take."""

import pytest
from tiny import tiny_model

from kvferry.policies.decode.grouping import Grouping
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.tuning_limits import most_slots, n_bytes, scored_bytes

# Two layers, two heads of four numbers: 8 numbers per key, 32 B per entry.
MODEL = tiny_model(layers=2, kv_heads=2, head_dim=4)


def test_memory_by_hand() -> None:
    # 100 tokens x 2 layers x rank 4 x 2 B; 2 layers x (6 slots + a rolling buffer) x 4 tokens x 32 B.
    room = Room(model=MODEL, block_tokens=4, context=97, output=3, budget_bytes=1600 + 10 * 256 + 255)
    grouping = Grouping(group_tokens=4, compression=2, groups=3, slots=6)
    assert scored_bytes(2, room) == 1600
    assert n_bytes(grouping, room) == 1600 + 2 * 7 * 128
    # Without reuse two preload buffers of 3 groups serve both layers.
    alone = Grouping(group_tokens=4, compression=2, groups=3)
    assert n_bytes(alone, room) == 1600 + (2 * 3 + 2) * 128
    # The budget has room for ten groups of both layers beside the keys: nine slots, and the newest tokens.
    assert most_slots(2, 3, room) == most_slots(2, 9, room) == 9
    assert most_slots(2, 10, room) == 0


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"group_tokens": 0}, "1 group of 1 token"),
        ({"groups": 0}, "1 group of 1 token at least, got 0 of 4"),
        ({"compression": 0.5}, "compression is 1 or more"),
        ({"slots": -1}, "1 slot or more, or 0 for no reuse, not -1"),
    ],
)
def test_impossible_groupings(wrong: dict[str, float], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Grouping(**{"group_tokens": 4, "compression": 2, "groups": 3, **wrong})


def test_the_least_groupings() -> None:
    assert Grouping(group_tokens=1, compression=1, groups=1, slots=0).selected_tokens == 1

"""Memory of a plan as sums over its holdings, by hand."""

from typing import Any

import pytest
from tiny import tiny_model

from kvferry.policies.decode.kv_memory import KvMemory, Managed
from kvferry.policies.decode.placement import OneTier
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.scored_keys import LowRankKeys
from kvferry.policies.decode.sizes import Choice
from kvferry.policies.decode.upkeep import KeepNewest
from kvferry.policies.ledger import NEW_TOKENS, Holding
from kvferry.specs.tier import Tier

# Two layers of two heads of four numbers: an entry has 32 B, a new token 64 B.
MODEL = tiny_model(layers=2, kv_heads=2, head_dim=4)
# Of each sequence: 100 B of keys, and room for its ten new tokens.
HELD = Holding.of("kv: index", 100, "sequence"), Holding.of(NEW_TOKENS, 640, "sequence")


def memory(tier: Tier, holdings: tuple[Holding, ...] = (), **managed: Any) -> KvMemory:
    """Two sequences of 20 tokens and ten more."""
    return KvMemory(
        roles=Roles(selector=LowRankKeys(), upkeep=KeepNewest(), placement=OneTier(tier)),
        model=MODEL,
        sequences=2,
        context=20,
        output=10,
        choice=Choice(group_tokens=4, heads=1, blocks=5, selected=2),
        newest_tokens=None,
        managed=Managed(holdings=holdings, **managed),
    )


def test_new_tokens_without_room_lie_on_the_host() -> None:
    whole = memory("host", HELD, budget_bytes=740)
    assert (whole.sequence_bytes, whole.least_bytes) == (740, 100)
    # 101 B too few: two tokens of 64 B.
    less = whole.within(639)
    assert (less.newest_tokens, less.sequence_bytes) == (8, 740 - 128)
    assert [less.ledger.at(30, tier)[NEW_TOKENS] for tier in ("device", "host")] == [2 * 512, 2 * 128]
    # Not one of them has to be in memory, and the keys have.
    assert (whole.within(100).newest_tokens, whole.within(99).newest_tokens) == (0, None)
    # On storage they have no place.
    assert memory("storage", HELD, budget_bytes=740).least_bytes == 740


@pytest.mark.parametrize(
    ("tier", "managed", "held_bytes"),
    [
        # All 20 tokens of the context in both layers, and half a layer's besides.
        ("device", {"index_layers": 0.5}, 2 * 20 * 32 * 2.5),
        # Slots for six tokens in both layers.
        ("host", {"away_tokens": 6}, 2 * 6 * 32 * 2),
    ],
)
def test_what_the_budget_lacks(tier: Tier, managed: dict[str, Any], held_bytes: float) -> None:
    assert memory(tier, HELD, budget_bytes=800, **managed).over_bytes == held_bytes + 2 * 740 - 2 * 800
    assert memory(tier, HELD, budget_bytes=1e6, **managed).over_bytes == 0
    assert memory(tier, HELD, budget_bytes=1).over_bytes == 0

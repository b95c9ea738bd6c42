"""Where layers lie as their KV grows, by hand."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.decode.placement import AllOrNothing, KvSize, OneTier, Progressive, thresholds


def size(tokens: int, memory_bytes: float = 100.0) -> KvSize:
    """Four layers of 2 B per token, ten tokens at the end."""
    return KvSize(layers=4, tokens=tokens, most_tokens=10, token_bytes=2, memory_bytes=memory_bytes)


def test_one_tier_stays() -> None:
    assert OneTier("host").tiers(size(1)) == OneTier("host").tiers(size(10)) == ("host",) * 4


def test_all_or_nothing_counts_the_whole_output() -> None:
    assert AllOrNothing().tiers(size(1, 80)) == ("device",) * 4
    assert AllOrNothing().tiers(size(1, 79)) == ("storage",) * 4


def test_all_or_nothing_overflows_to_the_host() -> None:
    assert AllOrNothing(overflow="host").tiers(size(1, 79)) == ("host",) * 4
    assert not AllOrNothing(overflow="host").mapped
    # With two layers' worth beside, (4 + 2) x 10 x 2 B.
    beside = replace(size(1, 119), beside_layers=2.0)
    assert AllOrNothing().tiers(beside) == ("storage",) * 4
    assert AllOrNothing().tiers(replace(beside, memory_bytes=120)) == ("device",) * 4


def test_layers_move_from_the_last_one_on() -> None:
    # A layer of 4 tokens takes 8 B, of 5 tokens 10 B, of 10 tokens 20 B.
    near = [Progressive().tiers(size(tokens, 39)).count("device") for tokens in (4, 5, 6, 7, 10)]
    assert near == [4, 3, 3, 2, 1]
    assert Progressive(overflow="storage").tiers(size(5, 39)) == ("device", "device", "device", "storage")
    assert Progressive().tiers(size(5, -1)) == ("host",) * 4


def test_what_the_host_has_no_room_for_lies_on_storage() -> None:
    # Layers of 5 tokens take 10 B: three are near, and 9 B beside are too few for one; of 4 tokens, one of 8 B fits.
    assert Progressive(host_bytes=9).tiers(size(5, 39)) == ("device",) * 3 + ("storage",)
    assert Progressive(host_bytes=9).tiers(size(4, 20)) == ("device", "device", "host", "storage")
    assert Progressive(host_bytes=100).tiers(size(4, 20)) == ("device", "device", "host", "host")


def test_thresholds_by_hand() -> None:
    # Memory for 60 tokens of one layer; 4 layers and 1 + 1 beside, room for 5 tokens of each that is away:
    # 60 / 6, (60 - 5) / 5, (60 - 10) / 4, (60 - 15) / 3, (60 - 20) / 2.
    wanted = KvSize(layers=4, tokens=1, most_tokens=99, token_bytes=2, memory_bytes=120, beside_layers=2, away_tokens=5)
    assert thresholds(wanted) == (10, 11, 12, 15, 20)
    near = [Progressive().tiers(replace(wanted, tokens=n)).count("device") for n in (10, 11, 12, 13, 16, 21)]
    assert near == [4, 3, 2, 1, 0, 0]
    # Where all of it takes as much elsewhere, nothing is won by moving.
    assert thresholds(replace(wanted, away_tokens=11)) == (10,) * 5
    # Nothing beside, and no room for what is away: any length fits with all layers elsewhere.
    assert thresholds(size(1, 39)) == (4, 6, 9, 19, math.inf)
    assert thresholds(size(1, -1)) == (0, 0, 0, 0, math.inf)


def test_thresholds_of_llama_on_80_gb_by_hand() -> None:
    # SpeContext Eq. 7, 32 requests: 4 x 8 heads x 128 x 32 requests = 131,072 B per token and layer; of 80e9 B, 1.3
    # times 16.06e9 B of weights and 42e6 B of a head are taken: 59.07e9 B, 450,648 tokens of one layer. Of these 37
    # grow, 32 + 1 + 4: 12,179 tokens; with ten layers away (450,648 - 20,480) / 27; with all, (450,648 - 65,536) / 5.
    memory_bytes = 80e9 - 1.3 * (16.06e9 + 0.042e9)
    wanted = KvSize(
        layers=32,
        tokens=1,
        most_tokens=1,
        token_bytes=131_072,
        memory_bytes=memory_bytes,
        beside_layers=5,
        away_tokens=2048,
    )
    found = thresholds(wanted)
    assert (found[0], found[10], found[32]) == (12_179, 15_932, 77_022)


def test_thresholds_that_are_given() -> None:
    tiers = [Progressive(thresholds=(3, 5)).tiers(size(n)) for n in (3, 4, 5, 6)]
    assert [one.count("device") for one in tiers] == [4, 3, 3, 2]
    with pytest.raises(ValueError, match="thresholds: 4 stands behind 5: .* an ascending list would do"):
        Progressive(thresholds=(3, 5, 4))


@given(
    layers=st.integers(1, 6),
    tokens=st.integers(1, 40),
    memory_bytes=st.integers(0, 400),
    beside=st.integers(0, 3),
    away_tokens=st.integers(0, 20),
)
def test_as_many_layers_stay_as_memory_holds(
    layers: int, tokens: int, memory_bytes: int, beside: int, away_tokens: int
) -> None:
    wanted = KvSize(
        layers=layers,
        tokens=tokens,
        most_tokens=tokens,
        token_bytes=2,
        memory_bytes=memory_bytes,
        beside_layers=beside,
        away_tokens=away_tokens,
    )
    known, near = thresholds(wanted), Progressive().tiers(wanted).count("device")
    assert list(known) == sorted(known)
    fitting = [n for n in range(layers + 1) if wanted.held_bytes(n) <= memory_bytes]
    assert near == max(fitting, default=0)

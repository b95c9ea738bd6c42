"""Where layers lie as their KV grows, by hand."""

from kvferry.policies.decode.placement import AllOrNothing, KvSize, OneTier, Progressive


def size(tokens: int, memory_bytes: float = 100.0) -> KvSize:
    """Four layers of 2 B per token, ten tokens at the end."""
    return KvSize(layers=4, tokens=tokens, most_tokens=10, token_bytes=2, memory_bytes=memory_bytes)


def test_one_tier_stays() -> None:
    assert OneTier("host").tiers(size(1)) == OneTier("host").tiers(size(10)) == ("host",) * 4


def test_all_or_nothing_counts_the_whole_output() -> None:
    assert AllOrNothing().tiers(size(1, 80)) == ("device",) * 4
    assert AllOrNothing().tiers(size(1, 79)) == ("storage",) * 4


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

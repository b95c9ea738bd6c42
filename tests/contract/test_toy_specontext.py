"""What SpeContext needs of the roles and of every world: one selection before the pass, KV on three tiers, and layers
that move one by one as memory fills."""

from toys import RunToy, toy_plan

from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.elastic_slots import Elastic
from kvferry.policies.decode.placement import OneTier, Progressive
from kvferry.policies.decode.retrieval_head import RetrievalHead
from kvferry.policies.decode.roles import Roles
from kvferry.specs.tier import Tier

# Bytes of a token in one layer of byte-small, whose four KV heads choose each for itself.
TOKEN = 2 * 4 * 32 * 2


def test_layers_move_one_by_one_as_memory_fills(toy: RunToy) -> None:
    # The host has room for one layer of 43 tokens.
    roles = Roles(
        selector=RetrievalHead(selected_tokens=16),
        residency=Elastic(),
        layout=TokenGroups(group_tokens=4),
        placement=Progressive(host_bytes=43 * TOKEN),
    )
    plan = toy_plan(roles, sequences=1, context=40, output=9, free_bytes=11 * 40 * TOKEN)
    seen: list[tuple[Tier, ...]] = []
    with toy(plan, on_token=lambda decode: seen.append(decode.now.tiers)) as run:
        # Eight layers of 40 tokens fit, beside three layers' worth of the retrieval head; with room for 16 tokens of
        # each that is away, seven of up to 42, six of up to 45, five of up to 49. The host is too small from 44 on.
        near = {
            tokens: 8 if tokens == 40 else 7 if tokens <= 42 else 6 if tokens <= 45 else 5 for tokens in range(40, 48)
        }
        beside = {tokens: 1 if 40 < tokens <= 43 else 0 for tokens in near}
        expected = [("device",) * near[n] + ("host",) * beside[n] for n in near]
        assert seen[1:] == [(*tiers, *["storage"] * (8 - len(tiers))) for tiers in expected]
        # One table of slots serves all layers.
        assert len({id(one.resident) for one in run.decode.now.layers}) == 1
        assert run.machine.memory_of("host").peak_of("kv") == 43 * TOKEN
        # One selection serves all layers.
        assert len({id(one.chosen) for one in run.decode.now.layers}) == 1
        # Four blocks of four heads, for each layer that is away in each step.
        assert run.decode.record.blocks_wanted == sum(8 - n for n in near.values()) * 4 * 4


def test_elastic_loading_moves_the_set_difference(toy: RunToy) -> None:
    # The retrieval head's selections are shared by all layers; those in memory fill the slots too.
    roles = Roles(
        selector=RetrievalHead(selected_tokens=16),
        residency=Elastic(),
        layout=TokenGroups(group_tokens=4),
        placement=OneTier("host"),
    )
    plan = toy_plan(roles, sequences=1, context=40, output=6)
    with toy(plan) as run:
        record = run.decode.record
        assert record.blocks_wanted == (6 - 1) * 8 * 4 * 4
        assert record.brought_entries == 4 * (record.blocks_wanted - record.blocks_reused)
        assert record.blocks_reused > 0
        for one in run.decode.now.layers:
            one.resident.check()

"""What SpeContext needs of the roles and of every machine: one selection before the pass, KV on three tiers, and layers
that move one by one as memory fills. A toy of its roles, carried out by the pipeline."""

from dataclasses import dataclass

from tiny import unit_model
from worlds import World, finish

from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.plan import plan_of
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.placement import KvSize
from kvferry.policies.decode.residency import AllThere, Reuse
from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.roles import Roles
from kvferry.policies.decode.room import Room
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.stages import Key, Stage, Stages, before_pass
from kvferry.policies.decode.top_blocks import TopBlocks
from kvferry.specs.tier import Tier

# Layers of a model whose KV takes two bytes per token and layer.
LAYERS, CONTEXT, STEPS = 3, 4, 5


@dataclass(frozen=True, kw_only=True)
class RetrievalHead(TopBlocks):
    kind = "retrieval-head"
    fixed = True

    def index(self, room: Room, reserved_bytes: float) -> Index:
        return Index(self.spec(room, room.model.key_width), room.key_cache_bytes(room.model.key_width))

    def vectors(self, block_tokens: int, stored: int) -> int:
        return stored * block_tokens

    def stages(self, layers: int, beside: tuple[str, ...]) -> Stages:
        def fetch(layer: int, after: tuple[Key, ...]) -> list[Stage]:
            return [Stage("look_up", layer), Stage("bring", layer, (("look_up", layer),))]

        return before_pass(Stage("retrieve", 0, awaited=True), fetch, "bring", layers)


@dataclass(frozen=True)
class Spilling:
    """The first layers in the processor's memory, the next in `host_bytes` beside it, the rest on storage."""

    host_bytes: float

    def tiers(self, size: KvSize) -> tuple[Tier, ...]:
        layer_bytes = size.tokens * size.token_bytes
        near = min(size.layers, int(size.memory_bytes // layer_bytes))
        beside = min(size.layers - near, int(self.host_bytes // layer_bytes))
        return ("device",) * near + ("host",) * beside + ("storage",) * (size.layers - near - beside)


def test_layers_move_one_by_one_as_memory_fills(world: World) -> None:
    # Elastic loading is a buffer with a slot for each selected block.
    roles = Roles(
        selector=RetrievalHead(selected_tokens=2),
        residency=Reuse(slots=2),
        layout=TokenGroups(group_tokens=1),
        placement=Spilling(host_bytes=14.0),
    )
    model = unit_model(layers=LAYERS, kv_value_bytes=1.0)
    plan = plan_of(roles, model, sequences=1, context=CONTEXT, output=STEPS, budget_bytes=1e9)
    # Beside metadata and buffers there is room for three layers of four tokens, or two of six.
    plan = plan_of(
        roles, model, sequences=1, context=CONTEXT, output=STEPS, budget_bytes=plan.memory_bytes + 3 * 2 * CONTEXT
    )
    seen: list[tuple[Tier, ...]] = []
    decode = LockStepDecode(world.machine, plan, lambda tokens: seen.append(decode.now.tiers))
    finish(world, world.machine.env.process(decode.run(STEPS)))
    d, h, s = "device", "host", "storage"
    # After prefill and the first token, four tokens; then five, six and seven.
    assert seen == [(d, d, d), (d, d, d), (d, d, h), (d, d, h), (d, h, s)]
    assert [type(one) for one in decode.now.residents] == [AllThere, ReuseBuffer, ReuseBuffer]
    assert world.machine.memory.peak_of("kv") == 3 * 2 * CONTEXT
    assert world.machine.memory_of("host").peak_of("kv") == 2 * 7
    # One selection serves all layers.
    assert len({id(ticket) for ticket in decode.now.chosen}) == 1
    assert decode.record.blocks_wanted == (STEPS - 1) * LAYERS * 2

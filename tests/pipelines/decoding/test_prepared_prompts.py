"""Systems that prepare the prompt alone and keep new tokens in memory, as SpeContext runs its baselines."""

from decoding import roles_of
from tiny import tiny_model

from kvferry.pipelines.decoding.computing import Attend
from kvferry.pipelines.decoding.plan import DecodePlan, plan_of

# 64 B for a token's KV in a layer: keys of 2 x 8 numbers of 2 B, and as many values.
MODEL = tiny_model()


def plan(slots: int) -> DecodePlan:
    roles = roles_of(
        "shadowkv",
        layout={"name": "value-groups", "group_tokens": 8, "compression": 4.0},
        selector={"name": "landmarks", "selected_tokens": 24, "per_head": True},
        residency={"name": "reuse", "slots": slots},
        upkeep="none",
        placement="host",
    )
    return plan_of(roles, MODEL, sequences=2, context=80, output=40, budget_bytes=1e9)


def test_memory_of_shadowkv_by_hand() -> None:
    # Of the prompt alone: in 2 layers 10 landmarks of 16 numbers, and 80 keys of rank 4, of 2 B.
    assert plan(3).metadata_bytes == 2 * (10 * 32 + 80 * 8)
    # Values of 3 slots of 8 tokens in 2 layers, keys rebuilt in two buffers, and 40 new tokens in every layer.
    assert plan(3).buffer_bytes == 2 * 3 * 8 * 32 + 2 * 3 * 8 * 32 + 2 * 40 * 64
    assert plan(5).buffer_bytes == 2 * 5 * 8 * 32 + 2 * 3 * 8 * 32 + 2 * 40 * 64


def test_slots_that_hold_the_selection_alone_are_attended_to_where_they_lie() -> None:
    assert not Attend.op(plan(3), 24).gathered
    assert Attend.op(plan(5), 24).gathered
    # In the processor's own memory a selection lies scattered among all of the KV.
    assert Attend.op(plan(3), 24, away=False).gathered

"""Ops as arithmetic, and the roofline on top: by hand on a model small enough for it."""

from dataclasses import fields as dataclass_fields
from dataclasses import replace

import numpy as np
import pytest
from tiny import by_hand_model

from kvferry.machine.ops import (
    Advance,
    Assign,
    Cluster,
    DecodeAttention,
    DecodeStep,
    Decompress,
    FeedForward,
    OutputHead,
    Prefill,
    PrefillHead,
    PrefillLayer,
    Project,
    ProjectKv,
    ProjectQ,
    RestOfLayer,
    Retrieve,
    Select,
)
from kvferry.policies.decode.attention_kernel import EAGER, FLASH, PAGED
from kvferry.sim.costs.op_rules import Arithmetic
from kvferry.sim.costs.roofline import Roofline, round_up
from kvferry.sim.costs.table import TABLES
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec

MODEL = by_hand_model()
WORK = Arithmetic(MODEL)
# K and V projections: 2 x 10 x (2 x 5) = 200 weights. Q and output: 2 x 10 x (4 x 5) = 400. FFN: 3 x 10 x 20 = 600.
PROJECTION, LAYER = 200, 1200
# A block: 128 x 64 pairs x 2 query heads of the group x (2 + 2) x 5 flop; 64 keys and values x 5 x 2 bytes.
BLOCK_FLOP, BLOCK_BYTES = 128 * 64 * 2 * 4 * 5, 64 * 2 * 5 * 2


def processor(**changes: object) -> ProcessorSpec:
    fields: dict[str, object] = {
        "kind": "gpu",
        "flop_per_s": 1e6,
        "bytes_per_s": 1e3,
        "efficiency": {"gemm": 0.5, "gemv": 0.25, "sparse_attention": 0.1},
        "default_efficiency": 1.0,
    }
    return ProcessorSpec.model_validate(fields | changes)


def test_a_layer_in_two_parts_is_the_layer() -> None:
    # Q: 10 x 20 weights, and as many for K and V together; batch of 2.
    ((_, flop_q, bytes_q),) = WORK(ProjectQ(2))
    ((_, flop_kv, bytes_kv),) = WORK(ProjectKv(2))
    assert (flop_q, bytes_q) == (flop_kv, bytes_kv) == (2 * 2 * 200, 200)
    flop, n_bytes = flop_q + flop_kv, bytes_q + bytes_kv
    ((_, rest_flop, rest_bytes),) = WORK(RestOfLayer(2))
    assert WORK(FeedForward(2)) == [("gemv", flop + rest_flop, n_bytes + rest_bytes)]
    eager = Roofline(processor(eager_layer_s=3.0, layer_s=0.5), MODEL)
    assert (eager.fixed_s(ProjectQ(2)), eager.fixed_s(RestOfLayer(2))) == (0.0, 3.5)
    assert eager.fixed_s(FeedForward(2)) == 3.5


def test_attention_moves_what_its_kernel_says_by_hand() -> None:
    # 2 sequences x 7 tokens x 2 x 2 heads x 5 numbers x 2 B = 560 B of KV in each of 3 layers; two query heads share a
    # KV head. Joined: 2 x; repeated: 1 x read, 2 x written; attention reads the copies, 2 x.
    flop = 3 * 2 * 7 * 4 * 4 * 5
    for kernel, copied, reads, read in (
        (EAGER, 5, "unsplit_attention", 2),
        (FLASH, 2, "unsplit_attention", 1),
        (PAGED, 0, "decode_attention", 1),
    ):
        copies = [("gather", 0, copied * 3 * 560)] if copied else []
        assert WORK(DecodeStep(2, 7, kernel=kernel))[:-2] == [*copies, (reads, flop, read * 3 * 560)]
        gathered = ("gather", 0, 2 * 560)
        copies = [("gather", 0, copied * 560)] if copied else []
        own = (reads, flop / 3, read * 560)
        assert WORK(DecodeAttention(2, 7, True, kernel=kernel)) == [gathered, *copies, own]
    # 8 B for each of 2 x 4 heads x 6 x 6 scores, written and read.
    assert WORK(PrefillLayer(2, 6, kernel=EAGER))[2:] == [("gather", 0, 2 * 8 * 2 * 4 * 36)]
    assert WORK(PrefillLayer(2, 6, kernel=FLASH)) == WORK(PrefillLayer(2, 6))


def test_the_host_takes_its_time_per_sequence_in_pages_and_per_layer_that_was_not_captured() -> None:
    host = Roofline(processor(eager_layer_s=3.0, layer_s=0.5, sequence_s=0.25), MODEL)
    assert host.fixed_s(DecodeStep(2, 7)) == 3 * 0.5
    assert host.fixed_s(DecodeStep(2, 7, kernel=PAGED)) == 3 * 0.5 + 2 * 0.25
    assert host.fixed_s(DecodeStep(2, 7, kernel=FLASH)) == 3 * 3.5
    # Beside a retrieval that takes a while, tables take no time.
    chosen = Retrieve(2, groups=7, k=2, tokens=7, step=0)
    retrieval_s = host.cost(chosen).duration_s
    assert host.cost(replace(chosen, paged=True)).duration_s == max(0.5, retrieval_s)
    slow = Roofline(processor(sequence_s=2 * retrieval_s), MODEL)
    assert slow.cost(replace(chosen, paged=True)).duration_s == 4 * retrieval_s
    assert slow.durations_s(replace(chosen, paged=True)) == 4 * retrieval_s
    assert (host.fixed_s(OutputHead(2)), host.fixed_s(OutputHead(2, paged=True))) == (0.0, 2 * 0.25)
    assert (host.fixed_s(FeedForward(2)), host.fixed_s(FeedForward(2, captured=True))) == (3.5, 0.5)
    assert host.fixed_s(RestOfLayer(2, captured=True)) == 0.5


def test_kernels_launched_one_by_one_are_slower_and_launching_is_a_floor_by_hand() -> None:
    seconds = Roofline(processor(), MODEL).cost(FeedForward(2)).duration_s
    for floor_s, expected in ((1.0, 1.5 * seconds), (2 * seconds, 2 * seconds)):
        one_by_one = Roofline(processor(eager_slowdown=1.5, eager_floor_s=floor_s, layer_s=0.5), MODEL)
        assert one_by_one.cost(FeedForward(2)).duration_s == pytest.approx(0.5 + expected)
        assert one_by_one.durations_s(FeedForward(2)) == pytest.approx(0.5 + expected)
        assert one_by_one.cost(FeedForward(2, captured=True)).duration_s == pytest.approx(0.5 + seconds)
        # What is no layer is not launched by itself, and a step goes through all of its layers.
        plain = Roofline(processor(), MODEL)
        assert one_by_one.cost(OutputHead(2)) == plain.cost(OutputHead(2))
        step = DecodeStep(2, 7, kernel=FLASH)
        kernels_s = 1.5 * plain.cost(step).duration_s
        assert one_by_one.cost(step).duration_s == pytest.approx(3 * 0.5 + max(3 * floor_s, kernels_s))


def test_top_k_goes_through_a_score_per_group_and_row() -> None:
    ranks = Roofline(processor(topk_per_s=10.0), MODEL)
    # 3 sequences x 2 heads x 7 groups; one row for all heads.
    assert ranks.fixed_s(Select(3, 7, 2, step=0, layer=0, heads=2)) == 4.2
    assert ranks.fixed_s(Retrieve(3, groups=7, k=2, tokens=7, step=0)) == 2.1
    assert Roofline(processor(), MODEL).fixed_s(Select(3, 7, 2, step=0, layer=0)) == 0
    more = Roofline(processor(topk_per_s=10.0, unexplained_score_s=0.4), MODEL)
    assert more.fixed_s(Retrieve(3, groups=7, k=2, tokens=7, step=0)) == pytest.approx(21 * 0.5)


def test_choosing_before_the_pass_and_assigning_by_hand() -> None:
    # Q and K: 10 x (20 + 10) weights of 2 B; 7 keys of 10 numbers, of 2 B, read, written for either query head of a
    # group, and these copies scored by 4 query heads of 5.
    assert WORK(Retrieve(2, groups=7, k=2, tokens=7, step=0)) == [
        ("gemv", 2 * 2 * 300, 2 * 300),
        ("gather", 0, (1 + 2) * 2 * 7 * 20),
        ("scoring", 2 * 7 * 2 * 4 * 5, 2 * 2 * 7 * 20),
    ]
    # 6 centroids of 10 numbers of 2 B, for two sequences.
    assert WORK(Assign(2, centroids=6, step=0, layer=0)) == [("scoring", 2 * 2 * 60, 2 * 60 * 2)]


def test_clusters_are_made_in_eight_rounds_of_comparing_by_hand() -> None:
    # 2 sequences of 7 keys of 10 numbers of 2 B, each compared with 3 centroids.
    assert WORK(Cluster(2, tokens=7, clusters=3, layer=0)) == [("product", 2 * 8 * 2 * 7 * 3 * 10, 8 * 2 * 7 * 10 * 2)]


def test_an_op_without_a_price_is_refused_by_its_name() -> None:
    with pytest.raises(InputError, match="Decompress has no price"):
        WORK(Decompress(5))


def test_a_table_is_named_after_its_op() -> None:
    assert TABLES["rest_of_layer"] is RestOfLayer


def test_a_head_does_its_blocks_and_its_share_of_the_layer() -> None:
    attention, dense = WORK(PrefillHead(tokens=8, active_blocks=3))
    assert attention == ("sparse_attention", 3 * BLOCK_FLOP, 3 * BLOCK_BYTES)
    assert dense == ("gemm", 2 * 8 * LAYER / 2, LAYER / 2)


def test_at_the_last_layer_a_head_is_only_projected() -> None:
    attention, dense = WORK(PrefillHead(tokens=8, active_blocks=3, final_layer=True))
    assert attention == ("sparse_attention", 0, 0)
    assert dense == ("gemm", 2 * 8 * PROJECTION / 2, PROJECTION / 2)


def test_project_and_advance_make_a_layer_of_all_heads() -> None:
    heads = [work for blocks in (3, 5) for work in WORK(PrefillHead(8, blocks))]
    whole = WORK(Project(8)) + WORK(Advance(8, 3 + 5))
    assert sum(flop for _, flop, _ in whole) == pytest.approx(sum(flop for _, flop, _ in heads))
    assert sum(n_bytes for _, _, n_bytes in whole) == pytest.approx(sum(n_bytes for _, _, n_bytes in heads))


def test_dense_prefill_counts_every_causal_pair_once() -> None:
    # 2 new tokens after 3: the first sees 4, the second 5, that is 9 pairs of 4 heads x 4 x 5 flop in 3 layers.
    # One block of queries reads 3 + (2 + 1) / 2 = 4.5 tokens of 40 bytes per layer.
    attention, dense, head = WORK(Prefill(tokens=2, context_tokens=3))
    assert attention == ("attention", 3 * 9 * 4 * 4 * 5, 3 * 4.5 * 40)
    assert dense == ("gemm", 3 * 2 * 2 * LAYER, 3 * LAYER)
    assert head == ("gemv", 2 * 1000, 2000)


def test_a_prompt_in_two_parts_computes_the_pairs_of_the_whole() -> None:
    def pairs(tokens: int, context: int) -> float:
        return WORK(Prefill(tokens, context))[0][1]

    assert pairs(700, 0) + pairs(324, 700) == pytest.approx(pairs(1024, 0))


def test_a_decoding_step_is_its_layers_and_the_output_head() -> None:
    costs = Roofline(processor(layer_s=0.5), MODEL)
    layer = costs.cost(DecodeAttention(2, 7)).duration_s + costs.cost(FeedForward(2)).duration_s
    # The head reads 1000 weights of 2 bytes at 250 B/s.
    assert costs.cost(DecodeStep(2, 7)).duration_s == pytest.approx(3 * layer + 8)


def test_decoding_reads_keys_values_and_weights() -> None:
    assert WORK(DecodeAttention(2, 7)) == [("decode_attention", 2 * 7 * 4 * 4 * 5, 2 * 7 * 40)]
    assert WORK(FeedForward(2)) == [("gemv", 2 * 2 * LAYER, LAYER)]


def test_select_scores_one_key_per_group_and_head() -> None:
    op = Select(batch=2, groups=6, k=3, step=0, layer=0)
    assert WORK(op) == [("scoring", 2 * 6 * 2 * 4 * 5, 2 * 6 * 20)]


def test_each_work_takes_the_longer_of_flop_and_bytes() -> None:
    costs = Roofline(processor(layer_s=2.0), MODEL)
    # Blocks: 3 x 327,680 flop at 100,000 flop/s = 9.8304 s, against 3 x 1,280 bytes at 100 B/s = 38.4 s.
    # Dense: 9,600 flop at 500,000 flop/s = 0.0192 s, against 600 bytes at 500 B/s = 1.2 s. Half a layer: 1 s.
    head = costs.cost(PrefillHead(tokens=8, active_blocks=3))
    assert head.duration_s == pytest.approx(38.4 + 1.2 + 1.0)
    assert head.n_bytes == 3 * 1280 + 600
    fast_memory = Roofline(processor(bytes_per_s=1e9), MODEL)
    assert fast_memory.cost(PrefillHead(8, 3)).duration_s == pytest.approx(9.8304 + 0.0192)


def test_compiled_shapes_round_tokens_up() -> None:
    shapes = np.array([32, 128])
    assert [int(round_up(tokens, shapes)) for tokens in (0, 1, 32, 33, 128, 129, 161, 300)] == [
        0,
        32,
        32,
        128,
        128,
        160,
        256,
        384,
    ]
    fixed = Roofline(processor(kind="npu", compiled_tokens=(128, 32)), MODEL)
    free = Roofline(processor(), MODEL)
    assert fixed.cost(Project(33)) == free.cost(Project(128))
    assert fixed.cost(DecodeStep(1, 33)) == free.cost(DecodeStep(1, 33))


OPS = [
    PrefillHead(np.array([[1024], [100]]), np.array([[40, 900], [3, 7]]), np.array([False, True])),
    Project(np.array([1, 1024])),
    Advance(np.array([1024, 7]), np.array([4000, 12])),
    Prefill(np.array([1, 129, 5000]), np.array([0, 64, 10])),
    DecodeStep(np.array([1, 64]), np.array([10, 32768])),
    DecodeAttention(np.array([1, 64]), np.array([10, 32768])),
    FeedForward(np.array([1, 64])),
]


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("compiled", [(), (128, 512)])
def test_arrays_are_priced_as_their_elements(op: object, compiled: tuple[int, ...]) -> None:
    costs = Roofline(processor(layer_s=0.1, compiled_tokens=compiled), MODEL)
    fixed = ("kernel", "captured")
    counts = [one.name for one in dataclass_fields(op) if one.compare and one.name not in fixed]  # type: ignore[arg-type]
    fields = {name: np.asarray(getattr(op, name)) for name in counts}
    together = costs.durations_s(op)  # type: ignore[arg-type]
    for index, duration_s in np.ndenumerate(together):
        element = {name: np.broadcast_to(value, together.shape)[index].item() for name, value in fields.items()}
        one = replace(op, **element)  # type: ignore[type-var]
        assert costs.cost(one).duration_s == pytest.approx(duration_s, rel=1e-12)  # type: ignore[arg-type]


# Queries of 3 + 2 numbers; a token caches 6 + 2; a value has 4. Q 10 x 20, to the cache 10 x 8, absorbed keys
# 4 x 6 x 3, absorbed values 4 x 6 x 4, output 10 x 16, FFN 600 weights.
LATENT = ModelSpec.model_validate(
    MODEL.model_dump()
    | {"kv_heads": 1, "latent": {"kv_lora_rank": 6, "qk_rope_head_dim": 2, "v_head_dim": 4}, "name": "latent-by-hand"}
)
LATENT_WORK = Arithmetic(LATENT)


def test_a_latent_cache_is_attended_to_with_absorbed_matrices_by_hand() -> None:
    before, whole = 200 + 80 + 72, 200 + 80 + 72 + 96 + 160 + 600
    # Of 4 heads, 8 numbers score and 6 are the value; 8 numbers of 2 B are read once for all heads.
    assert LATENT_WORK(DecodeStep(2, 7, kernel=PAGED)) == [
        ("decode_attention", 3 * 2 * 7 * 2 * 4 * (8 + 6), 3 * 2 * 7 * 16),
        ("gemv", 3 * 2 * 2 * whole, 3 * whole),
        ("gemv", 2 * 2 * 1000, 2 * 1000),
    ]
    parts = LATENT_WORK(ProjectQ(2, layer=0)), LATENT_WORK(ProjectKv(2, layer=0))
    assert [sum(part[n] for (part,) in parts) for n in (1, 2)] == [2 * 2 * before, before]
    assert LATENT_WORK(RestOfLayer(2)) == [("gemv", 2 * 2 * (whole - before), whole - before)]
    # Prompts attend to keys of 5 numbers and values of 4, of 4 heads.
    assert LATENT_WORK(PrefillLayer(2, 5)) == [
        ("attention", 2 * 15 * 2 * 4 * (5 + 4), 2 * 3 * 4 * 9 * 2),
        ("gemm", 2 * 5 * 2 * whole, whole),
    ]


def test_transformers_brings_a_latent_cache_up_in_every_step_by_hand() -> None:
    # 8 numbers become 4 x (5 + 4): 4.5 times as many, made by 6 x 4 x (3 + 4) weights.
    for kernel in (FLASH, EAGER):
        assert LATENT_WORK(DecodeAttention(2, 7, kernel=kernel)) == [
            ("gather", 0, (2 + 1 + 4.5) * 2 * 7 * 16),
            ("product", 2 * 7 * 2 * 6 * 4 * 7, 0),
            ("unsplit_attention", 2 * 7 * 2 * 4 * 9, 4.5 * 2 * 7 * 16),
        ]
        assert kernel.decode_bytes(LATENT, 20) == (1 + 4.5) * 20 * 16
    assert (PAGED.copied(LATENT), PAGED.attended(LATENT), PAGED.decode_bytes(LATENT, 20)) == (0, 1, 0)


def test_a_retrieval_head_scores_its_latent_keys_as_they_are_by_hand() -> None:
    assert LATENT_WORK(Retrieve(2, groups=7, k=2, tokens=7, step=0)) == [
        ("gemv", 2 * 2 * 352, 2 * 352),
        ("scoring", 2 * 7 * 2 * 4 * 8, 2 * 7 * 16),
    ]


def test_experts_are_read_as_far_as_tokens_choose_them_by_hand() -> None:
    experts = {"routed": 4, "active": 1, "shared": 1, "ffn": 5, "dense_layers": 1}
    mixed = Arithmetic(ModelSpec.model_validate(MODEL.model_dump() | {"experts": experts}))
    # One dense layer of 600 weights; two with a router of 40, experts of 150: a token passes two. Two tokens read the
    # shared one and 4 x (1 - (3/4)^2) others in the mean.
    [(_, flop, n_bytes)] = mixed(FeedForward(2))
    assert flop == pytest.approx(2 * 2 * (600 + (600 + 2 * (40 + 300)) / 3))
    assert n_bytes == pytest.approx(600 + (600 + 2 * (40 + 2.75 * 150)) / 3)
    # Prompts: the experts apart, as each is multiplied with a quarter of the tokens, in two of three layers.
    _, together, routed = mixed(Advance(2, 0))
    assert routed == ("gemm", pytest.approx(2 * 2 * 2 / 3 * 150), pytest.approx(2 / 3 * 1.75 * 150))
    assert together[1] == pytest.approx(2 * 2 * (600 - 200 + (600 + 2 * (40 + 150)) / 3))
    assert together[2] == pytest.approx(600 - 200 + (600 + 2 * (40 + 150)) / 3)
    _, last, none = mixed(PrefillHead(2, 0, final_layer=True))
    assert (last[1:], none[1:]) == ((2 * 2 * 200 / 2, 200 / 2), (0, 0))
    assert mixed.model.matrices.layer_parameters == pytest.approx(600 + (600 + 2 * (40 + 750)) / 3)
    assert mixed.model.weight_bytes == pytest.approx(3 * mixed.model.matrices.layer_parameters + 2 * 1000 * 2)

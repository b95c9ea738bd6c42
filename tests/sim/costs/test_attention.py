"""Block-sparse attention: the modelled kernel by hand, and cost models that price attention by it."""

import numpy as np
import pytest

from kvferry.backends.sim.machine import SimMachine
from kvferry.machine.ops import Advance, DecodeStep, PrefillHead, Project
from kvferry.scenarios.loader import load_device
from kvferry.sim.costs.block_sparse import BlockSparseKernel
from kvferry.sim.costs.cost_model import COST_MODELS, main_costs
from kvferry.sim.costs.roofline import Roofline
from kvferry.sim.costs.samples import measure
from kvferry.specs.device import BlockSparseSpec, ProcessorSpec
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec
from kvferry.traces.rate import RateTrace

# 4 query heads share 2 KV heads of 5 numbers: a block is 128 x 64 pairs x 4 x 5 = 163,840 flop per query head
# and reads 64 x 2 x 5 x 2 = 1,280 bytes.
MODEL = ModelSpec(
    name="by-hand", layers=3, hidden=10, query_heads=4, kv_heads=2, head_dim=5, ffn=20, vocabulary=100, source="made up"
)
# One multiprocessor makes 655,360 x 0.5 / 4 = 81,920 flop/s: 2 s per block. It reads 5,120 / 4 bytes/s: 1 s per block.
PROCESSOR = ProcessorSpec(
    kind="gpu",
    flop_per_s=655_360,
    bytes_per_s=5_120,
    block_sparse=BlockSparseSpec(multiprocessors=4, tile_efficiency=0.5, run_blocks=3, tile_s=0.25, launch_s=0.5),
)
KERNEL = BlockSparseKernel(PROCESSOR, MODEL)


def test_dense_tiles_are_bound_by_arithmetic() -> None:
    # 256 tokens x 2 query heads are 4 tiles, one wave. 20 blocks are 10 per tile: 20 s of arithmetic against
    # 10 + 3 s of reading.
    assert KERNEL.seconds(256, 20) == pytest.approx(0.5 + 0.25 + 20)


def test_sparse_tiles_are_bound_by_scattered_reads() -> None:
    # 4 blocks are 2 per tile: 4 s of arithmetic, but 2 blocks at 2 / (2 + 3) of the bandwidth take 5 s.
    assert KERNEL.seconds(256, 4) == pytest.approx(0.5 + 0.25 + 5)


def test_a_wave_that_is_not_full_takes_as_long() -> None:
    # 129 tokens need as many tiles as 256; 257 need 6 on 4 multiprocessors, two waves.
    assert KERNEL.seconds(129, 20) == KERNEL.seconds(256, 20)
    assert KERNEL.seconds(257, 30) == pytest.approx(0.5 + 2 * (0.25 + 20))


def test_heads_launched_together_fill_the_waves() -> None:
    # 128 tokens of one head are 2 tiles, half a wave; of both heads 4, a whole one, in the same time.
    assert KERNEL.seconds(128, 20, kv_heads=2) == KERNEL.seconds(128, 10)


def test_load_stretches_and_nothing_costs_nothing() -> None:
    assert KERNEL.seconds(256, 20, load=0.75) == pytest.approx(4 * KERNEL.seconds(256, 20))
    assert KERNEL.seconds(256, 0) == 0


def test_a_number_is_priced_as_in_an_array() -> None:
    blocks = np.array([0, 1, 4, 6, 20])
    together = KERNEL.seconds(np.full(5, 256), blocks, load=np.full(5, 0.5))
    assert together == pytest.approx([KERNEL.seconds(256, int(n), load=0.5) for n in blocks])


@pytest.mark.parametrize("name", ["block-sparse", "predictor"])
def test_cost_models_price_attention_and_leave_the_rest_to_the_roofline(name: str) -> None:
    costs, roofline = COST_MODELS[name](PROCESSOR, MODEL), Roofline(PROCESSOR, MODEL)
    for op in (Project(256), DecodeStep(1, 100), PrefillHead(256, 20, final_layer=True)):
        assert costs.cost(op) == roofline.cost(op)
        assert costs.durations_s(op) == pytest.approx(roofline.cost(op).duration_s)
    tolerance = 1e-9 if name == "block-sparse" else 0.15
    head, layer = PrefillHead(1024, 60), Advance(1024, 120)
    priced: list[tuple[PrefillHead | Advance, int]] = [(head, 1), (layer, 2)]
    for attends, kv_heads in priced:
        dense_s = roofline.price(roofline.arithmetic(attends)[1:])[0]
        rest_s = costs.cost(attends).duration_s - dense_s
        assert rest_s == pytest.approx(KERNEL.seconds(1024, attends.active_blocks, kv_heads=kv_heads), rel=tolerance)
        assert costs.cost(attends).n_bytes == roofline.cost(attends).n_bytes
        assert costs.durations_s(attends) == pytest.approx(costs.cost(attends).duration_s)


def test_a_device_without_a_kernel_says_so() -> None:
    for name in ("block-sparse", "predictor", "table"):
        with pytest.raises(InputError, match="has no"):
            COST_MODELS[name](PROCESSOR.model_copy(update={"block_sparse": None}), MODEL)


def test_measurements_are_seeded_and_scatter_by_the_noise() -> None:
    noisy = PROCESSOR.block_sparse.model_copy(update={"noise": 0.1})  # type: ignore[union-attr]
    kernel = BlockSparseKernel(PROCESSOR.model_copy(update={"block_sparse": noisy}), MODEL)
    one, again, other = (measure(kernel, MODEL, seed, count=4000) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.seconds, again.seconds)
    assert not np.array_equal(one.seconds, other.seconds)
    error = np.log(one.seconds / kernel.seconds(1024, one.active_blocks, load=one.load))
    # The spread of 4,000 draws is known to 1 / sqrt(8,000) = 1.1 %; the mean to 0.1 / sqrt(4,000).
    assert error.std() == pytest.approx(0.1, rel=0.05)
    assert abs(error.mean()) < 0.006
    training, rest = one.split(0.8, np.random.default_rng(0))
    assert (training.seconds.size, rest.seconds.size) == (3200, 800)
    assert sorted([*training.seconds, *rest.seconds]) == sorted(one.seconds)


def test_a_second_processor_without_a_kernel_does_not_matter() -> None:
    plain = PROCESSOR.model_copy(update={"block_sparse": None})
    device = load_device("tiny").model_copy(update={"processors": {"gpu": PROCESSOR, "cpu": plain}, "main": "gpu"})
    SimMachine(device, MODEL, RateTrace.constant(1e6), costs=COST_MODELS["block-sparse"])
    other = device.model_copy(update={"main": "cpu"})
    with pytest.raises(
        InputError, match="block-sparse cannot price processor cpu of tiny: its profile has no block_sp"
    ):
        main_costs("block-sparse", other, MODEL)

"""How fast ops are priced, one by one and a context at a time."""

from collections.abc import Iterator
from functools import partial
from time import perf_counter

import numpy as np

from benchmarks.row import Row, best_s, lower
from kvferry.machine.ops import (
    Advance,
    DecodeAttention,
    DecodeStep,
    FeedForward,
    Op,
    Prefill,
    PrefillHead,
    Project,
    Select,
)
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.cost import Cost
from kvferry.sim.costs.block_sparse import BlockSparseKernel
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.sim.costs.mlp import BATCH_ROWS
from kvferry.sim.costs.predictor import Predictor
from kvferry.sim.costs.samples import measure
from kvferry.traces.chunks import generate_chunks

OPS: list[Op] = [
    PrefillHead(1024, 300),
    Project(1024),
    Advance(1024, 2400),
    Prefill(2048, 0),
    DecodeStep(1, 8192),
    DecodeAttention(1, 512),
    FeedForward(1),
    Select(1, 8192, 100, 0, 0),
]
# 200 token chunks x 36 layers x 8 heads.
CONTEXT_TOKENS = 204_800


def rows() -> Iterator[Row]:
    processor, model = load_device("jetson-agx-orin-sparkv").processors["gpu"], load_model("qwen3-4b")
    models = {name: COST_MODELS[name](processor, model) for name in ("roofline", "block-sparse", "predictor")}

    answer_s = best_s(lambda: Cost(1.0, 1.0), times=20_000)
    for op in OPS:
        for name, costs in models.items():
            took_s = best_s(partial(costs.cost, op), times=2_000)
            yield lower(f"{type(op).__name__}, {name} (ceiling: its answer)", 1e6 * took_s, "us", 1e6 * answer_s)

    chunks = generate_chunks("text", CONTEXT_TOKENS, model.layers, model.kv_heads, seed=0)
    final = (np.arange(model.layers) == model.layers - 1)[None, :, None]
    before = chunks.context_tokens[:, None, None]
    context = PrefillHead(chunks.tokens[:, None, None], chunks.active_blocks, final, before)
    blocks = chunks.active_blocks.astype(float)
    product_s = best_s(lambda: blocks * 2.0, times=100)
    for name, costs in models.items():
        took_s = best_s(partial(costs.durations_s, context), times=3)
        yield lower(f"{blocks.size:,} units, {name} (one product)", 1e3 * took_s, "ms", 1e3 * product_s)
    took_s = best_s(lambda: generate_chunks("text", CONTEXT_TOKENS, model.layers, model.kv_heads, seed=0), times=3)
    yield lower(f"generate {blocks.size:,} chunks", 1e3 * took_s, "ms")

    samples = measure(BlockSparseKernel(processor, model), model, seed=0)
    training, _ = samples.split(0.8, np.random.default_rng(0))
    began_s = perf_counter()
    predictor = Predictor.trained(training, seed=0)
    yield lower(f"train the predictor on {training.seconds.size:,} samples", perf_counter() - began_s, "s")
    place = np.broadcast_to(np.arange(1, blocks.shape[0] + 1)[:, None, None], blocks.shape).ravel()
    widths = [3, *(bias.size for bias in predictor.network.biases)]
    factors = [np.random.default_rng(0).random((blocks.size, i)) for i in widths[:-1]]
    parts = [
        (x[row : row + BATCH_ROWS], w)
        for x, w in zip(factors, predictor.network.weights, strict=True)
        for row in range(0, blocks.size, BATCH_ROWS)
    ]
    products_s = best_s(lambda: [x @ w for x, w in parts], times=3)
    took_s = best_s(lambda: predictor.predict_s(place, blocks.ravel(), 0.2), times=3)
    yield lower("predict them at once (its matrix products)", 1e3 * took_s, "ms", 1e3 * products_s)
    yield lower("predict one", 1e6 * best_s(lambda: predictor.predict_s(9, 300, 0.2), times=2_000), "us")

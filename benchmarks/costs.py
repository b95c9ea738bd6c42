"""How fast ops are priced, one by one and a context at a time: python benchmarks/costs.py"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

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

REPEATS = 5
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


def best_s(work: Callable[[], Any], times: int) -> float:
    """Seconds per call, the best of some runs."""
    runs = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(times):
            work()
        runs.append((time.perf_counter() - start) / times)
    return min(runs)


def main() -> None:
    processor, model = load_device("jetson-agx-orin-64gb").processors["gpu"], load_model("qwen3-4b")
    models = {name: COST_MODELS[name](processor, model) for name in ("roofline", "block-sparse", "predictor")}

    print("one op, microseconds (ceiling: making the answer and nothing else)")
    ceiling_s = best_s(lambda: Cost(1.0, 1.0), 20_000)
    for op in OPS:
        figures = [f"{name} {1e6 * best_s(partial(costs.cost, op), 2_000):6.2f}" for name, costs in models.items()]
        print(f"  {type(op).__name__:16} {'   '.join(figures)}   ceiling {1e6 * ceiling_s:.2f}")

    chunks = generate_chunks("text", CONTEXT_TOKENS, model.layers, model.kv_heads, seed=0)
    final = (np.arange(model.layers) == model.layers - 1)[None, :, None]
    before = chunks.context_tokens[:, None, None]
    context = PrefillHead(chunks.tokens[:, None, None], chunks.active_blocks, final, before)
    blocks = chunks.active_blocks.astype(float)
    print(f"a context of {blocks.size:,} units, milliseconds (ceiling: one multiplication of the array)")
    ceiling_s = best_s(lambda: blocks * 2.0, 100)
    for name, costs in models.items():
        seconds = best_s(partial(costs.durations_s, context), 3)
        each = f"{1e9 * seconds / blocks.size:.0f} ns/unit"
        print(f"  {name:16} {1e3 * seconds:8.3f}   ceiling {1e3 * ceiling_s:.3f}   {each}")
    seconds = best_s(lambda: generate_chunks("text", CONTEXT_TOKENS, model.layers, model.kv_heads, seed=0), 3)
    print(f"  generate_chunks  {1e3 * seconds:8.3f}")

    samples = measure(BlockSparseKernel(processor, model), model, seed=0)
    training, _ = samples.split(0.8, np.random.default_rng(0))
    start = time.perf_counter()
    predictor = Predictor.trained(training, seed=0)
    print(f"the predictor: trained on {training.seconds.size:,} samples in {time.perf_counter() - start:.2f} s")
    place = np.broadcast_to(np.arange(1, blocks.shape[0] + 1)[:, None, None], blocks.shape).ravel()
    widths = [3, *(bias.size for bias in predictor.network.biases)]
    factors = [np.random.default_rng(0).random((blocks.size, i)) for i in widths[:-1]]
    parts = [
        (x[row : row + BATCH_ROWS], w)
        for x, w in zip(factors, predictor.network.weights, strict=True)
        for row in range(0, blocks.size, BATCH_ROWS)
    ]
    ceiling_s = best_s(lambda: [x @ w for x, w in parts], 3)
    seconds = best_s(lambda: predictor.predict_s(place, blocks.ravel(), 0.2), 3)
    print(
        f"  {blocks.size:,} chunks at once: {1e3 * seconds:.1f} ms, {1e6 * seconds / blocks.size:.3f} us each; "
        f"its matrix products alone {1e3 * ceiling_s:.1f} ms"
    )
    print(f"  one chunk: {1e6 * best_s(lambda: predictor.predict_s(9, 300, 0.2), 2_000):.1f} us")


if __name__ == "__main__":
    main()

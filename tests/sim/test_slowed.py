"""A processor that is slower than its profile, by hand."""

import pytest
from tiny import LOADING, tiny

from kvferry.scenarios.loader import load_scenario
from kvferry.sim.slowed import in_fp16, slowed


def test_decoding_is_slower_with_what_it_costs_once_and_prefill_by_its_kernels_alone() -> None:
    costs = "{dispatch_s: 1 ms, layer_s: 2 ms, step_s: 3 ms, default_efficiency: 0.5}"
    scenario = tiny(LOADING, f"device={{extends: tiny, processors: {{gpu: {costs}}}}}")
    before, slow = (one.device.processors["gpu"] for one in (scenario, slowed(scenario, decoding=2.0, prefill=4.0)))
    assert (slow.dispatch_s, slow.layer_s, slow.step_s) == pytest.approx((2e-3, 4e-3, 6e-3))
    assert (slow.efficiency["gemv"], slow.efficiency["gemm"]) == (0.25, 0.125)
    assert (slow.flop_per_s, slow.bytes_per_s) == (before.flop_per_s, before.bytes_per_s)


def test_no_kernel_reaches_more_than_its_peak() -> None:
    scenario = tiny(LOADING, "device={extends: tiny, processors: {gpu: {default_efficiency: 0.5}}}")
    fast = slowed(scenario, decoding=0.1, prefill=0.8).device.processors["gpu"]
    assert (fast.efficiency["gemv"], fast.efficiency["gemm"]) == (1.0, 0.625)


def test_products_in_int8_are_slower_as_those_of_prefill() -> None:
    card = load_scenario("decode", ["device=rtx-4090", "precision.weights=q4_k_m"])
    for factor, share in ((2.0, 0.125), (0.1, 1.0)):
        gpu = slowed(card, prefill=factor).device.processors["gpu"]
        assert gpu.int8_gemm is not None and gpu.int8_gemm.efficiency == share
    there = in_fp16(card)
    assert there is not None and there.device.processors["gpu"].int8_gemm is None
    assert in_fp16(there) is None
    assert in_fp16(load_scenario("decode", ["device=rtx-4090", "precision.weights=bf16"])) is None

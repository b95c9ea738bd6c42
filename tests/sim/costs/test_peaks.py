"""Prompts that are multiplied with quantised weights as INT8, by hand on a model of small numbers."""

import numpy as np
import pytest
from tiny import by_hand_model

from kvferry.machine.ops import Advance, Cluster, DecodeStep, Op, Prefill, PrefillHead, PrefillLayer, Project
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_device, load_scenario
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.device import ProcessorSpec

MODEL = by_hand_model()
IN_16_BITS = by_hand_model(weight_bits=16)
# Memory that takes no time: 1 / 500,000 s a flop in 16 bits, 1 / 2,000,000 s in INT8.
FP16 = ProcessorSpec.model_validate(
    {
        "kind": "gpu",
        "flop_per_s": 1e6,
        "int8_flop_per_s": 8e6,
        "bytes_per_s": 1e14,
        "efficiency": {"gemm": 0.5},
        "default_efficiency": 1.0,
    }
)
INT8 = ProcessorSpec.model_validate(FP16.model_dump() | {"int8_gemm": {"efficiency": 0.25, "vendors": ["nvidia"]}})


def seconds(op: Op, processor: ProcessorSpec, model: object = MODEL) -> float:
    roofline = Roofline(processor, model)  # type: ignore[arg-type]
    found = roofline.cost(op).duration_s
    assert roofline.durations_s(op) == pytest.approx(found)
    return found


def test_a_layer_of_quantised_weights_is_multiplied_at_the_share_of_the_int8_peak() -> None:
    # 7 tokens with 1,200 weights of a layer, 200 of them for K and V.
    assert seconds(Project(7), FP16) == pytest.approx(7 * 2 * 200 / 500_000)
    assert seconds(Project(7), INT8) == pytest.approx(7 * 2 * 200 / 2_000_000)
    # Attention and the output head stay in 16 bits, whose peak they reach here.
    for op, layers in ((Prefill(7, 0), 3), (PrefillLayer(1, 7), 1), (Advance(7, 0), 1), (PrefillHead(7, 0), 1)):
        weights = {Advance: 1000, PrefillHead: 600}.get(type(op), 1200)
        saved_s = layers * 7 * 2 * weights * (1 / 500_000 - 1 / 2_000_000)
        assert seconds(op, FP16) - seconds(op, INT8) == pytest.approx(saved_s), op


def test_what_is_no_product_of_prompts_and_quantised_weights_stays_in_16_bits() -> None:
    for op in (DecodeStep(2, 7), Cluster(2, tokens=7, clusters=3, layer=0)):
        assert seconds(op, INT8) == seconds(op, FP16)
    assert seconds(Cluster(2, tokens=7, clusters=3, layer=0), INT8) == pytest.approx(2 * 8 * 2 * 7 * 3 * 10 / 500_000)
    assert seconds(Prefill(7, 0), INT8, IN_16_BITS) == seconds(Prefill(7, 0), FP16, IN_16_BITS)
    # An engine with such kernels on hardware whose peak nothing says.
    unknown = INT8.model_copy(update={"int8_flop_per_s": None})
    assert seconds(Prefill(7, 0), unknown) == seconds(Prefill(7, 0), FP16)


@pytest.mark.parametrize("name", [name for name in names("device") if name.startswith(("rtx-", "gtx-"))])
def test_a_geforce_card_has_four_times_its_16_bit_peak_in_int8(name: str) -> None:
    device = load_device(name)
    gpu = device.processors["gpu"]
    if device.engine is None:  # a paper's
        assert gpu.int8_flop_per_s is None and gpu.int8_gemm is None
        return
    assert gpu.int8_flop_per_s == pytest.approx(4 * gpu.flop_per_s)
    assert gpu.int8_gemm is not None and "processors.gpu.int8_flop_per_s" in device.sources


def test_other_vendors_cards_and_engines_stay_in_16_bits() -> None:
    radeon = load_device("rx-7900-xtx").processors["gpu"]
    assert (radeon.int8_gemm, radeon.int8_flop_per_s) == (None, None)
    peak = "device={extends: rx-7900-xtx, processors: {gpu: {int8_flop_per_s: 122.8 Tflop/s}}}"
    assert load_scenario("decode", [peak]).device.processors["gpu"].int8_gemm is None
    named = load_scenario("decode", ["device=rtx-4090", "engine=vllm", "precision.weights=awq"])
    assert named.device.processors["gpu"].int8_gemm is None
    asked = load_scenario("decode", ["device=rtx-4090", "engine=llama.cpp", "precision.weights=q4_k_m"])
    assert asked.device.processors["gpu"].int8_gemm is not None


def test_arrays_are_priced_alike() -> None:
    tokens = np.array([7, 70])
    assert Roofline(INT8, MODEL).durations_s(Project(tokens)) == pytest.approx(tokens * 2 * 200 / 2_000_000)  # type: ignore[arg-type]

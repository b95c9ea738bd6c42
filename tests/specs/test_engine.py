"""Engines: what they give a device, what stays the device's own, what a step then costs, by hand."""

from pathlib import Path
from typing import Any

import pytest

from kvferry.machine.ops import DecodeStep
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import dump_scenario, load_device, load_scenario
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.device import DeviceSpec
from kvferry.specs.engine import UnpackSpec, with_engine
from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec

ENGINE: dict[str, Any] = {
    "name": "e",
    "processors": {"gpu": {"efficiency": {"gemv": 0.5}, "layer_s": "1 ms", "step_s": "7 ms"}},
    "sources": {"processors.gpu.layer_s": "fitted", "processors.gpu.step_s": "guessed"},
}
DEVICE: dict[str, Any] = {"processors": {"main": {"kind": "gpu", "layer_s": "2 ms"}, "cpu": {"kind": "cpu"}}}


def test_an_engine_fills_what_the_device_leaves_open() -> None:
    filled = with_engine(DEVICE, ENGINE)
    assert filled["processors"]["main"] == {
        "kind": "gpu", "layer_s": "2 ms", "efficiency": {"gemv": 0.5}, "step_s": "7 ms",
    }  # fmt: skip
    assert filled["processors"]["cpu"] == {"kind": "cpu"}
    assert filled["sources"] == {"processors.main.step_s": "engine e: guessed"}
    assert with_engine(filled, ENGINE) == filled


def test_an_engine_that_is_asked_for_replaces_the_profile_s() -> None:
    replaced = with_engine({**DEVICE, "sources": {"processors.main.layer_s": "own"}}, ENGINE, replace=True)
    assert replaced["processors"]["main"]["layer_s"] == "1 ms"
    assert replaced["sources"]["processors.main.layer_s"] == "engine e: fitted"


def test_a_step_by_hand() -> None:
    # Weights of a byte each: four projections of 4 x 4, three of 4 x 10, and an output head of 8 x 4.
    model = ModelSpec(
        name="m", layers=1, hidden=4, query_heads=1, kv_heads=1, head_dim=4, ffn=10, vocabulary=8, tied_embeddings=True,
        weight_bits=8, embedding_bits=8, source="t",
    )  # fmt: skip
    weights = 4 * 16 + 3 * 40 + 32
    processor = (
        load_device("rtx-5070")
        .processors["gpu"]
        .model_copy(
            update={
                "flop_per_s": 1e3,
                "instruction_per_s": 100.0,
                "unpack": None,
                "bytes_per_s": 1e3,
                "efficiency": {"gemv": 0.5},
                "layer_s": 0.1,
                "step_s": 0.2,
            }
        )
    )
    # Reading takes 1 / 500 s a byte. Arithmetic, 2 flop a weight at 500 flop/s, takes longer: 1 / 250 s.
    assert Roofline(processor, model).cost(DecodeStep(1, 0)).duration_s == pytest.approx(weights / 250 + 0.3)
    # A token's sums: 4 of queries, 8 of keys and values, 4 out of attention, 10, 10 and 4 of the feed-forward network,
    # 8 of the head.
    assert model.matrices.mean_row == weights / 48
    # A weight takes two instructions and a third for its part of a row, 7 / 3, at half of 100 a second.
    unpacking = processor.model_copy(
        update={"unpack": UnpackSpec(weight_instructions=2.0, row_instructions=weights / 48 / 3)}
    )
    assert Roofline(unpacking, model).cost(DecodeStep(1, 0)).duration_s == pytest.approx(weights * 7 / 3 / 50 + 0.3)
    # Weights of 16 bits need no unpacking, and a processor whose rate is not known hides it.
    whole = model.model_copy(update={"weight_bits": 16, "embedding_bits": 16})
    assert Roofline(unpacking, whole).cost(DecodeStep(1, 0)).duration_s == pytest.approx(2 * weights / 500 + 0.3)
    unknown = unpacking.model_copy(update={"instruction_per_s": None})
    assert Roofline(unknown, model).cost(DecodeStep(1, 0)).duration_s == pytest.approx(weights / 250 + 0.3)


@pytest.mark.parametrize("name", names("device"))
def test_a_bundled_device_says_where_all_is_from(name: str) -> None:
    device = load_device(name)
    assert isinstance(device, DeviceSpec)
    for key in ("flop_per_s", "bytes_per_s", "efficiency"):
        path = f"processors.{device.main}.{key}"
        assert any(f"{path}.".startswith(f"{known}.") for known in device.sources), path


def test_the_same_scenario_comes_back() -> None:
    scenario = load_scenario("decode", ["engine=vllm", "precision.weights=awq"])
    assert scenario.device.processors["gpu"].efficiency["gemv"] == 0.8
    assert load_scenario(dump_scenario(scenario)) == scenario


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["engine=mxl"], "Did you mean 'mlx'"),
        (
            ["device=iphone-17-pro", "precision.weights=q4_k_m"],
            "precision.weights: mlx does not read q4_k_m; it reads mlx-4bit",
        ),
        (["engine.layer_s=4"], "engine"),
        (["device.engine=no-such"], "device.engine: unknown engine 'no-such'"),
    ],
)
def test_what_is_no_engine_is_refused(settings: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        load_scenario("decode", settings)
    assert said in str(error.value)


_WITH_ENGINE = "device.engine={name: e, processors: {gpu: {layer_s: 1 ms}}, sources: {}}"
_ENGINE_WITH = "engine={{name: e, processors: {{gpu: {{layer_s: 1 ms}}}}, sources: {}}}"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ([_WITH_ENGINE, "device.processors.gpu.kind={}"], "device.processors.gpu.kind: a mapping is none of gpu, cpu"),
        ([_WITH_ENGINE, "device.processors.gpu.kind=[]"], "device.processors.gpu.kind: a list is none of gpu, cpu"),
        ([_WITH_ENGINE, "device.sources=5"], "device.sources: 5 is not a mapping"),
        ([_WITH_ENGINE, "device.sources=abc"], "device.sources: 'abc' is not a mapping"),
        ([_ENGINE_WITH.format("[a]")], "engine.sources: a list is not a mapping"),
        ([_ENGINE_WITH.format("5")], "engine.sources: 5 is not a mapping"),
        (["device.processors=5", "processor=gpu"], "device.processors: 5 is not a mapping"),
        (["device.processors=gpus", "processor=gpu"], "device.processors: 'gpus' is not a mapping"),
    ],
)
def test_what_has_no_parts_is_refused_where_an_engine_would_be_laid_over_it(settings: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        load_scenario("quickstart", settings)
    assert said in str(error.value)


def test_a_missing_bandwidth_is_asked_for_as_memory_has_it() -> None:
    dumped = dump_scenario(load_scenario("decode"))
    del dumped["device"]["memory"]["bytes_per_s"], dumped["device"]["processors"]["gpu"]["bytes_per_s"]
    with pytest.raises(InputError) as error:
        load_scenario(dumped)
    said = "device.memory.bytes_per_s: is missing; write it like bytes_per_s: 100 GB/s, what the data sheet says"
    assert str(error.value).endswith(said) and "\n" not in str(error.value)


MINE = """name: mine
main: gpu
processors: {gpu: {kind: gpu, flop_per_s: 10 Tflop/s}, cpu: {kind: cpu, flop_per_s: 1 Tflop/s}}
memory: {unified: true, capacity_bytes: 16 GB}
engine: llama.cpp
sources: {}
"""


def test_a_device_of_a_few_lines_will_do(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(MINE)
    with pytest.raises(InputError, match=r"mine.yaml:4: device.memory.bytes_per_s: is missing; write it like") as error:
        load_scenario("decode", [f"device={tmp_path / 'mine.yaml'}"])
    assert "\n" not in str(error.value)
    for said in ("memory: {", "processors: {gpu: {"):
        (tmp_path / "mine.yaml").write_text(MINE.replace(said, said + "bytes_per_s: 100 GB/s, "))
        device = load_scenario("decode", [f"device={tmp_path / 'mine.yaml'}"]).device
        assert device.memory.bytes_per_s == device.processors["gpu"].bytes_per_s == 1e11
        assert device.processors["cpu"].bytes_per_s == 1e11  # all share the memory
        assert device.decompressor.workers == 4 and device.sources["decompressor"].startswith("assumed")


@pytest.mark.parametrize("name", [name for name in names("device") if name.startswith(("apple-m", "iphone-"))])
def test_an_apple_gpu_without_matrix_units_multiplies_and_adds_once_per_instruction(name: str) -> None:
    gpu = load_device(name).processors["gpu"]
    assert gpu.instruction_per_s is not None
    per_instruction = gpu.flop_per_s / gpu.instruction_per_s
    # Its numbers of 16 bits are no faster than those of 32. Matrix units have four times that, three by the A18 Pro.
    times = 4 if name.startswith("apple-m5") else 3 if name == "iphone-17-pro" else 1
    assert per_instruction == pytest.approx(2 * times, rel=0.02)

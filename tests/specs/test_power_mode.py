"""Power modes of a device: what they change, and where it says so."""

import pytest

from kvferry.machine.ops import DecodeStep
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import dump_yaml, load_device, load_scenario
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError

MODES = [(name, mode) for name in names("device") for mode in load_device(name).power_modes]


def in_mode(name: str, mode: str) -> DeviceSpec:
    return load_scenario("decode", [f"device={name}", f"device.power_mode={mode}", "precision.weights=null"]).device


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_a_mode_says_where_its_numbers_are_from(name: str, mode: str) -> None:
    device = in_mode(name, mode)
    for path in ("processors.gpu.flop_per_s", "processors.gpu.bytes_per_s", "memory.bytes_per_s", "host_clock_hz"):
        assert device.sources[path].startswith(f"power mode {mode}: clocks and cores: nvpmodel's tables")
    # Nothing else is touched.
    assert device.processors["gpu"].efficiency == load_device(name).processors["gpu"].efficiency


def test_a_mode_changes_what_it_names() -> None:
    as_written, mode = load_device("jetson-orin-nano-8gb"), in_mode("jetson-orin-nano-8gb", "7W")
    assert (as_written.processors["gpu"].flop_per_s, as_written.decompressor.workers) == (10.24e12, 6)
    # Two of four pairs of multiprocessors at 408 MHz.
    assert mode.processors["gpu"].flop_per_s == pytest.approx(2 * 4096 * 408e6, rel=1e-3)
    assert (mode.decompressor.workers, mode.host_clock_hz) == (4, 0.96e9)
    # Each multiprocessor begins 128 instructions a cycle.
    assert mode.processors["gpu"].instruction_per_s == pytest.approx(4 * 128 * 408e6, rel=1e-3)
    assert mode.memory.capacity_bytes == as_written.memory.capacity_bytes


def test_llama_cpp_is_slower_in_a_lower_mode_of_the_same_bandwidth() -> None:
    """Unpacking takes 5 instructions a weight and 12,000 a row, 0.209 T a second: longer than reading at 68.3 GB/s."""
    model = load_scenario("decode", ["model=llama-3.2-3b"]).model
    step_s = {
        mode: Roofline(in_mode("jetson-orin-nano-8gb", mode).processors["gpu"], model).cost(DecodeStep(1, 0)).duration_s
        for mode in ("7W", "15W", "25W")
    }
    # A layer has 3,072 + 2,048 + 3,072 + 2 x 8,192 + 3,072 rows.
    instructions = 5 * (model.parameters - model.matrices.head_parameters) + 12000 * 28 * 27648
    unpacking_s = instructions / 0.209e12
    assert step_s["7W"] > unpacking_s > 2 * step_s["15W"] > 2 * step_s["25W"]


def test_a_scenario_in_a_mode_reads_back(tmp_path) -> None:
    scenario = load_scenario("decode", ["device=jetson-orin-nano-8gb", "device.power_mode=25W", "precision=null"])
    (tmp_path / "s.yaml").write_text(dump_yaml(scenario))
    assert load_scenario(str(tmp_path / "s.yaml")) == scenario


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["device=jetson-orin-nano-8gb", "device.power_mode=30W"],
            "device.power_mode: '30W' is no power mode of jetson-orin-nano-8gb; it has 7W, 15W, 25W, MAXN_SUPER",
        ),
        (["device.power_mode=15W"], "is no power mode of rtx-5070; it has none"),
        (["device.power_modes={slow: {processors: {npu: {active_w: 1 W}}}}"], "slow: 'npu' is no processor"),
        (["device.power_modes={slow: {processors: {gpu: {flop_per_s: fast}}}}"], "'fast' is not a compute rate"),
    ],
)
def test_what_is_no_mode_is_one_line(settings: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        load_scenario("decode", settings)
    assert said in str(error.value)
    assert "\n" not in str(error.value)

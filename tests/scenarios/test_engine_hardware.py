"""Engines on hardware that they do not exist for are refused in one line with those that do."""

import pytest

from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_device, load_scenario
from kvferry.specs.errors import InputError


@pytest.mark.parametrize(
    ("device", "engine", "said"),
    [
        ("rtx-4060", "mlx", "engine: mlx runs on gpus of apple, not on the nvidia gpu of rtx-4060; hugging-face, "),
        ("raspberry-pi-5-16gb", "mlx", "not on the cpu of raspberry-pi-5-16gb; executorch, llama.cpp would do"),
        ("apple-m4", "tensorrt-edge-llm", "on the apple gpu of apple-m4; hugging-face, llama.cpp, mlc, mlx would do"),
        ("rtx-4060", "executorch", "executorch runs on cpus, not on the nvidia gpu of rtx-4060"),
        ("rx-7900-xtx", "tensorrt-edge-llm", "not on the amd gpu of rx-7900-xtx"),
    ],
)  # fmt: skip
def test_an_engine_that_does_not_run_there_is_refused(device: str, engine: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        load_scenario("decode", [f"device={device}", f"engine={engine}"])
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_engines_run_on_the_processor_that_is_chosen() -> None:
    scenario = load_scenario("decode", ["device=rtx-4060", "processor=cpu", "engine=executorch"])
    assert scenario.model.weights == "xnnpack-4bit"


@pytest.mark.parametrize("name", names("device"))
def test_devices_have_engines_that_run_on_them(name: str) -> None:
    engine = load_device(name).engine
    assert load_scenario("decode", [f"device={name}"]).device.engine == engine


def test_another_vendor_is_no_figure_with_a_source() -> None:
    assert "vendor" not in load_device("rx-7600").sources

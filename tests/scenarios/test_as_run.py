"""What a scenario says of a device and a model whatever their own files say: the processor and the precision."""

import pytest
from tiny import DECODING, changed

from kvferry.scenarios.loader import dump_scenario, load_scenario
from kvferry.specs.errors import InputError

PHONE = ("device=oneplus-12", "processor=cpu")
FP8 = "precision={weight_bits: 8, embedding_bits: 8, kv_value_bytes: 1}"


def test_a_scenario_names_the_processor_that_works() -> None:
    own = load_scenario(DECODING, PHONE[:1])
    asked = load_scenario(DECODING, PHONE)
    assert (own.device.main, asked.device.main) == ("npu", "cpu")
    assert asked.device.model_copy(update={"main": "npu"}) == own.device


def test_the_cpu_beside_a_card_computes_out_of_the_hosts_memory() -> None:
    scenario = load_scenario("decode", ["device=rtx-4060", "processor=cpu"])
    memory = scenario.device.memory
    # 32 GB and two channels of DDR5-4800, not the card's 8 GB at 272 GB/s.
    assert (memory.unified, memory.capacity_bytes, memory.bytes_per_s) == (True, 32e9, 76.8e9)
    assert load_scenario(dump_scenario(scenario)) == scenario
    with pytest.raises(
        InputError, match=r"device.memory.host_capacity_bytes: is missing, in which the CPU has weights"
    ):
        load_scenario("decode", ["device=rtx-4060", "processor=cpu", "device.memory.host_capacity_bytes=null"])


def test_precision_is_that_of_any_model() -> None:
    for model in ("qwen2.5-1.5b", "llama-3.2-3b"):
        scenario = load_scenario(DECODING, [FP8, f"model={model}"])
        # 8 bits of everything: a byte per parameter, and per key and value number.
        assert scenario.model.weight_bytes == scenario.model.parameters
        assert scenario.model.kv_bytes_per_token == scenario.model.kv_values_per_token
        said = "but for weight_bits, embedding_bits, kv_value_bytes: the scenario's precision"
        assert scenario.model.source.endswith(said)


def test_what_was_resolved_is_read_back_equal() -> None:
    scenario = load_scenario(DECODING, [*PHONE, FP8])
    assert load_scenario(dump_scenario(scenario)) == scenario


def test_another_machine_has_its_own() -> None:
    cloud = {"device": "oneplus-12", "model": "tiny"}
    scenario = load_scenario(changed(DECODING, machines={"cloud": cloud}), [*PHONE, FP8])
    seen = scenario.seen_by("cloud")
    assert seen.device.main == "npu"
    assert seen.model.kv_value_bytes == 2.0
    assert load_scenario(dump_scenario(seen)).device == seen.device


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("processor=gpu", "processor: 'gpu' is no processor of the device; it has"),
        ("precision.weight_bits=0", "precision.weight_bits: "),
        ("precision.weight_bits=eight", "precision.weight_bits: "),
        ("precision.bits=8", "precision.bits: "),
        ("precision=8", "precision: "),
    ],
)
def test_what_cannot_be_is_said_by_its_key(setting: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(DECODING, ["device=oneplus-12", setting])
    assert complaint in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1

"""The weights of a model's own file hold against a bundled default, what the user says against both, by one rule."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvferry.analysis.remarks import rests_on
from kvferry.api.scenario import under_systems
from kvferry.scenarios.loader import dump_scenario, load_scenario
from kvferry.scenarios.weights_of_file import usual_weights
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

CONFIG: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 1000, "torch_dtype": "float16", "tie_word_embeddings": False,
}  # fmt: skip
# Queries and the way out, keys and values, three of the feed-forward network.
LAYER = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 512


def folder(at: Path, **quantised: Any) -> str:
    at.mkdir(exist_ok=True)
    (at / "config.json").write_text(json.dumps(CONFIG | ({"quantization_config": quantised} if quantised else {})))
    return str(at)


def said(scenario: Scenario) -> list[str]:
    return [line for line in rests_on([scenario]) if line.startswith("weights of")]


@pytest.mark.parametrize("base", ["decode", "offload"])
def test_weights_of_a_quantised_folder_hold_against_a_bundled_default(tmp_path: Path, base: str) -> None:
    model = folder(tmp_path / "m", quant_method="awq", bits=4, group_size=128)
    scenario = load_scenario(base, ["device=rtx-4060", f"model={model}"])
    # 4 bits, and of a group of 128 a scale of 16 and a zero of 4; embeddings and output head are at 16.
    assert scenario.model.weight_bytes == pytest.approx((2 * LAYER * (4 + 20 / 128) + 2 * 256_000 * 16) / 8)
    assert said(scenario) == ["weights of m: the model's own (awq) in place of the scenario's q4_k_m"]
    assert load_scenario(dump_scenario(scenario)) == scenario
    # Whatever is set first.
    assert load_scenario(base, [f"model={model}", "device=rtx-4060"]).model == scenario.model
    compared = under_systems(base, ["vllm"], {"device": "rtx-4060", "model": model}).systems["vllm"]
    assert compared.model == scenario.model


def test_an_engine_that_is_asked_for_must_read_a_quantised_folder(tmp_path: Path) -> None:
    settings = ["device=apple-m4", f"model={folder(tmp_path / 'm', quant_method='awq', bits=4, group_size=128)}"]
    with pytest.raises(InputError) as error:
        load_scenario("decode", [*settings, "engine=mlx"])
    said = "weights in awq, which mlx does not read; engine: hugging-face would do, or precision.weights: mlx-4bit"
    assert str(error.value).endswith(f"model: {said}")
    assert load_scenario("decode", [*settings, "engine=hugging-face"]).model.matrices.layer_bits < 4.5
    assert load_scenario("decode", [*settings, "engine=mlx", "precision.weights=mlx-4bit"]).model.weights == "mlx-4bit"


def test_what_the_user_says_of_weights_holds_against_the_file(tmp_path: Path) -> None:
    model = folder(tmp_path / "m", quant_method="fp8")
    scenario = load_scenario("decode", [f"model={model}", "precision.weights=q8_0"])
    assert scenario.model.weights == "q8_0"
    assert said(scenario) == ["weights of m: q8_0 in place of the model's own (fp8)"]
    (tmp_path / "mine.yaml").write_text(f"extends: decode\nmodel: {model}\nprecision: {{weights: q6_k}}\n")
    assert load_scenario(tmp_path / "mine.yaml").model.weights == "q6_k"
    (tmp_path / "mine.yaml").write_text(f"extends: decode\nmodel: {model}\n")
    assert load_scenario(tmp_path / "mine.yaml").model.weight_bits == 8


def test_a_folder_that_is_not_quantised_is_run_as_the_scenario_says(tmp_path: Path) -> None:
    scenario = load_scenario("decode", [f"model={folder(tmp_path / 'm')}"])
    assert scenario.model.weights == "q4_k_m"
    assert not said(scenario)


def test_a_default_that_the_engine_does_not_read_gives_way_to_one_that_it_reads() -> None:
    scenario = load_scenario("decode", ["device=iphone-17-pro"])
    assert scenario.model.weights == "mlx-4bit"
    assert said(scenario) == [
        "weights of llama-3.1-8b: mlx-4bit in place of the scenario's q4_k_m, which mlx does not read"
    ]
    assert not said(load_scenario("decode"))


def test_bits_of_a_users_own_dimensions_hold_and_an_engine_has_its_usual_format(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: llama-3.2-1b\nname: mine\nweight_bits: 8.0\nembedding_bits: 8.0\n")
    scenario = load_scenario("decode", [f"model={tmp_path / 'mine.yaml'}"])
    assert (scenario.model.weights, scenario.model.weight_bits) == (None, 8.0)
    assert said(scenario) == ["weights of mine: the model's own (8 bits) in place of the scenario's q4_k_m"]
    assert usual_weights(["q4_0", "q4_k_m", "fp16"]) == "q4_k_m" and usual_weights(["bf16"]) == "bf16"
    assert usual_weights([]) is None

"""Models by Hugging Face's config.json: the file or its folder stands where a model's name does."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import LOADING, changed

from kvferry.api.scenario import remarks_under
from kvferry.scenarios.loader import load_model, load_scenario
from kvferry.specs.errors import InputError

QWEN = {
    "model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip


def config(folder: Path, **more: Any) -> Path:
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine" / "config.json").write_text(json.dumps({**QWEN, **more}))
    return folder / "mine"


def test_a_config_is_the_model_that_it_describes(tmp_path: Path) -> None:
    model, bundled = load_model(str(config(tmp_path))), load_model("qwen3-0.6b")
    dimensions = set(type(model).model_fields) - {"name", "source", "weight_bits"}
    assert {key: getattr(model, key) for key in dimensions} == {key: getattr(bundled, key) for key in dimensions}
    assert (model.name, model.weight_bits) == ("mine", 16.0)
    assert load_model(str(tmp_path / "mine" / "config.json")) == model


def test_phi_projects_to_queries_keys_and_values_by_one_tensor(tmp_path: Path) -> None:
    assert load_model(str(config(tmp_path, model_type="phi3"))).fused_qkv
    assert not load_model(str(config(tmp_path))).fused_qkv


def test_a_scenario_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "scenario.json").write_text(json.dumps(changed(LOADING, model="mine")))
    config(tmp_path)
    assert load_scenario(tmp_path / "scenario.json").model.layers == 28


def test_what_a_config_leaves_out(tmp_path: Path) -> None:
    folder = config(
        tmp_path, num_key_value_heads=None, head_dim=None, tie_word_embeddings=None, torch_dtype=None,
        quantization_config={"bits": 4},
    )  # fmt: skip
    model = load_model(str(folder))
    assert (model.kv_heads, model.head_dim, model.tied_embeddings) == (16, 64, False)
    assert (model.weight_bits, model.embedding_bits, model.kv_value_bytes) == (4.0, 16.0, 2.0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers: is missing"),
        (
            {"num_experts": 64},
            "num_experts: a mixture of experts is modelled as qwen3_moe, mixtral, gpt_oss and DeepSeek-V2",
        ),
        (
            {
                "model_type": "qwen3_moe",
                "num_experts": 64,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 768,
                "decoder_sparse_step": 2,
            },
            "mlp_only_layers: a mixture of experts in some layers alone",
        ),
        ({"mamba_d_state": 256}, "mamba_d_state: state-space layers are not modelled"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layer_types: 'linear_attention' is not modelled"),
        ({"num_kv_shared_layers": 15}, "num_kv_shared_layers: layers that share KV are not modelled"),
        ({"index_topk": 2048}, "index_topk: attention to tokens that an indexer picks"),
        ({"model_type": "mamba", "num_hidden_layers": None}, "model_type: 'mamba' is not modelled: it keeps no KV"),
        ({"num_key_value_heads": 3}, "kv_heads"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim: is missing or no whole number; multi-head latent attention has it"),
    ],
)
def test_what_is_no_such_model(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        load_model(str(config(tmp_path, **more)))
    assert "config.json" in str(error.value)
    assert message in str(error.value)


def test_a_latent_cache_and_its_mixture_of_experts(tmp_path: Path) -> None:
    """DeepSeek-V2-Lite's own config.json."""
    (tmp_path / "mine").mkdir()
    lite = {
        "model_type": "deepseek_v2", "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 16, "intermediate_size": 10944, "vocab_size": 102400, "kv_lora_rank": 512,
        "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "mine" / "config.json").write_text(json.dumps(lite))
    model, bundled = load_model(str(tmp_path / "mine")), load_model("deepseek-v2-lite")
    dimensions = set(type(model).model_fields) - {"name", "source"}
    assert {key: getattr(model, key) for key in dimensions} == {key: getattr(bundled, key) for key in dimensions}


QWEN_MOE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "vocab_size": 151936,
    "tie_word_embeddings": False, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880, "vocab_size": 201088,
    "tie_word_embeddings": False, "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("described", "name", "weight_bits"), [(QWEN_MOE, "qwen3-30b-a3b", 16.0), (GPT_OSS, "gpt-oss-20b", 4.25)]
)
def test_a_mixture_of_experts_beside_ordinary_attention(
    tmp_path: Path, described: dict[str, Any], name: str, weight_bits: float
) -> None:
    model, bundled = load_model(str(config(tmp_path, **described))), load_model(name)
    dimensions = set(type(model).model_fields) - {"name", "source", "weight_bits"}
    assert {key: getattr(model, key) for key in dimensions} == {key: getattr(bundled, key) for key in dimensions}
    assert model.weight_bits == weight_bits


def test_damaged_json_and_an_empty_folder(tmp_path: Path) -> None:
    (config(tmp_path) / "config.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        load_model(str(tmp_path / "mine"))
    (tmp_path / "mine" / "config.json").unlink()
    with pytest.raises(InputError, match="folder"):
        load_model(str(tmp_path / "mine"))


@pytest.mark.parametrize(
    ("more", "window", "full"),
    [
        ({"model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 32768}, 4096, []),
        ({"model_type": "gemma2", "sliding_window": 4096}, 4096, [*range(1, 28, 2)]),
        ({"model_type": "gemma3_text", "sliding_window": 1024, "sliding_window_pattern": 4}, 1024, [*range(3, 28, 4)]),
        ({"model_type": "gemma3", "text_config": {"sliding_window": 512}}, 512, [5, 11, 17, 23]),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0}, 4096, []),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 2},
            4096,
            [0, 1],
        ),
        (
            {
                "layer_types": ["full_attention", *["sliding_attention"] * 27],
                "use_sliding_window": True,
                "sliding_window": 128,
            },
            128,
            [0],
        ),
        # No layer has a window, or none that is shorter than what the model reads.
        ({"use_sliding_window": False, "sliding_window": 4096}, None, []),
        ({"model_type": "qwen2", "sliding_window": 131072}, None, []),
        ({"model_type": "mistral", "sliding_window": None}, None, []),
        ({"model_type": "mistral", "sliding_window": 32768, "max_position_embeddings": 32768}, None, []),
        ({"model_type": "llama", "sliding_window": 4096, "layer_types": ["full_attention"] * 28}, None, []),
    ],
)
def test_windows_of_attention_and_the_layers_without(
    tmp_path: Path, more: dict[str, Any], window: int | None, full: list[int]
) -> None:
    model = load_model(str(config(tmp_path, **more)))
    assert (model.window, list(model.full_layers)) == (window, full)


def test_attention_to_chunks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: attention_chunk_size: .* not modelled"):
        load_model(str(config(tmp_path, model_type="llama4_text", attention_chunk_size=8192)))


@pytest.mark.usefixtures("here")
def test_a_bundled_name_goes_before_a_folder_and_says_so() -> None:
    Path("byte-small").mkdir()
    Path("byte-small", "config.json").write_text(json.dumps(QWEN))
    said = "byte-small is the bundled model; the folder of that name is model=./byte-small"
    bundled, folder = (load_scenario(LOADING | {"model": name}) for name in ("byte-small", "./byte-small"))
    assert (bundled.model.layers, folder.model.layers) == (8, QWEN["num_hidden_layers"])
    assert remarks_under(LOADING, ["model=byte-small"], bundled) == [said]
    assert remarks_under(LOADING, ["model=./byte-small"], folder) == []
    assert remarks_under(LOADING, [], bundled) == []

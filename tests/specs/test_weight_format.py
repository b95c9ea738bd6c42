"""Weight formats: a model's size by hand, and beside the sizes of files that people download."""

from typing import Any

import pytest

from kvferry.scenarios.loader import load_model
from kvferry.sim.costs.op_rules import Arithmetic
from kvferry.specs.model import ModelSpec
from kvferry.specs.weight_format import WEIGHT_FORMATS, in_precision

# A GGUF file's header lists the vocabulary: its tokens, their kinds and merges.
HEADER_BYTES_PER_TOKEN = 60
# Sizes of the files *-Q4_K_M.gguf, by github.com/AlexsJones/llmfit, llmfit-core/data/community; of Phi
# bartowski's on Hugging Face.
Q4_K_M_BYTES = {
    "qwen3-0.6b": 397e6,
    "llama-3.2-1b": 808e6,
    "qwen2.5-1.5b": 986e6,
    "qwen3-1.7b": 1.11e9,
    "qwen2.5-3b": 1.93e9,
    "llama-3.2-3b": 2_019_377_696,
    "qwen3-4b": 2.50e9,
    "mistral-7b": 4.37e9,
    "llama-3.1-8b": 4.92e9,
    "qwen3-8b": 5.03e9,
    "qwen3-14b": 9.00e9,
    "phi-3.5-mini": 2_393_232_672,
    "phi-4-mini": 2_491_874_688,
    "phi-4": 9_053_114_816,
}


def in_format(name: str, weights: str) -> ModelSpec:
    model = load_model(name)
    return ModelSpec.model_validate(in_precision(model.model_dump(exclude_unset=True), {"weights": weights}))


def tiny(**other: Any) -> ModelSpec:
    dimensions: dict[str, Any] = {
        "name": "t", "layers": 8, "hidden": 256, "query_heads": 4, "kv_heads": 1, "head_dim": 64, "ffn": 512,
        "vocabulary": 1000, "source": "test",
    }  # fmt: skip
    return ModelSpec.model_validate(dimensions | other)


def test_a_medium_k_quantisation_by_hand() -> None:
    # 8 layers: the first and last eighth, and of the six between every third from their third on, i.e. the first, the
    # fourth, the seventh and the last, take 6.5625 bits for values and the way down: (6.5625 + 4.5) / 2 in the mean.
    model, more = tiny(weights="q4_k_m"), (6.5625 + 4.5) / 2
    queries, keys, values, out, gate_and_up, down = 65536, 16384, 16384, 65536, 2 * 131072, 131072
    layer = 4.5 * (queries + keys + out + gate_and_up) + more * (values + down)
    assert model.matrices.layer_bits * model.matrices.layer_parameters == pytest.approx(layer)
    # The output head has 6.5625 bits, the embedding 4.5.
    assert model.weight_bytes * 8 == pytest.approx(8 * layer + 256_000 * (6.5625 + 4.5))
    tied = tiny(weights="q4_k_m", tied_embeddings=True)
    assert tied.weight_bytes * 8 == pytest.approx(8 * layer + 256_000 * 6.5625)


def test_one_tensor_for_queries_keys_and_values_has_more_bits_by_hand() -> None:
    # As above, but 5.5 bits for all three of them in every layer.
    model, more = tiny(weights="q4_k_m", fused_qkv=True), (6.5625 + 4.5) / 2
    layer = 5.5 * (65536 + 2 * 16384) + 4.5 * (65536 + 2 * 131072) + more * 131072
    assert model.matrices.layer_bits * model.matrices.layer_parameters == pytest.approx(layer)
    assert tiny(weights="q4_0", fused_qkv=True).matrices.layer_bits == 4.5


def test_rows_that_no_superblock_divides_take_small_blocks() -> None:
    assert tiny(weights="q4_k_m", hidden=224).matrices.head_bits == 8.5
    assert tiny(weights="iq4_xs", hidden=224, tied_embeddings=False).matrices.token_bits == 4.5


@pytest.mark.parametrize("name", Q4_K_M_BYTES)
def test_sizes_are_within_a_percent_of_the_files(name: str) -> None:
    model = in_format(name, "q4_k_m")
    of_file = model.weight_bytes + HEADER_BYTES_PER_TOKEN * model.vocabulary
    assert of_file == pytest.approx(Q4_K_M_BYTES[name], rel=0.01)


def test_a_format_of_plain_numbers_is_what_the_numbers_say() -> None:
    by_name, by_numbers = tiny(weights="fp8"), tiny(weight_bits=8, embedding_bits=16)
    assert by_name.weight_bytes == by_numbers.weight_bytes
    assert Arithmetic(by_name).layer_bytes(1) == Arithmetic(by_numbers).layer_bytes(1)
    assert Arithmetic(by_name).head_bytes == Arithmetic(by_numbers).head_bytes


def test_experts_alone_are_small_in_mxfp4() -> None:
    experts = {"routed": 4, "active": 1, "shared": 0, "ffn": 512, "dense_layers": 0}
    model = tiny(weights="mxfp4", experts=experts)
    attention = 8.5 * (65536 + 2 * 16384 + 65536)
    assert model.matrices.head_bits == 8.5
    assert model.matrices.layer_bits * model.matrices.layer_parameters == pytest.approx(
        attention + 4.25 * 4 * 3 * 131072 + 32 * 4 * 256
    )


def test_gpt_oss_is_as_large_as_its_file() -> None:
    # gpt-oss-20b-mxfp4.gguf of ggml-org.
    assert in_format("gpt-oss-20b", "mxfp4").weight_bytes == pytest.approx(12.11e9, rel=0.01)


def test_a_format_replaces_numbers_and_numbers_a_format() -> None:
    plain = {"weight_bits": 4.0, "embedding_bits": 16.0, "source": "s"}
    assert in_precision(plain, {"weights": "q8_0"}).keys() == {"weights", "source"}
    assert in_precision({"weights": "q8_0"}, {"weight_bits": 4.0}) == {"weight_bits": 4.0}


@pytest.mark.parametrize("weights", WEIGHT_FORMATS)
def test_every_format_is_smaller_than_its_16_bits(weights: str) -> None:
    assert in_format("llama-3.1-8b", weights).weight_bytes <= load_model("llama-3.1-8b").parameters * 2


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"weights": "q4km"}, "Did you mean 'q4_k_m'"),
        ({"weights": "q4_0", "weight_bits": 4}, "without weight_bits it would do"),
    ],
)
def test_what_is_no_format_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tiny(**keys)

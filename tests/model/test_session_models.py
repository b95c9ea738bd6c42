"""Models for sessions: from a folder, from random weights, and what cannot be used."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file

from kvferry.model.decoder import Decoder
from kvferry.model.models import load_model, random_model, spec_of
from kvferry.specs.errors import InputError

pytestmark = pytest.mark.torch

SPEC = tiny_model(weight_bits=32, embedding_bits=32, kv_value_bytes=4)


def saved(folder: Path, family: str = "qwen3", **settings: Any) -> Path:
    random_model(family, SPEC, seed=1, spread=0.2).save_pretrained(folder, **settings)
    return folder


def edited(folder: Path, **changes: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.mark.parametrize("family", sorted(Decoder.families))
def test_the_spec_says_what_the_model_has(family: str) -> None:
    model = random_model(family, SPEC, seed=1)
    spec = spec_of(model, name="tiny")
    assert spec == SPEC.model_copy(update={"source": "the config of tiny"})
    # Biases and norms are not in the spec: they are few.
    weights = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    assert weights == spec.parameters
    half = spec_of(random_model(family, SPEC, seed=1, dtype="bfloat16"))
    assert (half.weight_bytes, half.kv_value_bytes) == (2 * weights, 2)


def test_head_dims_of_their_own_and_tied_embeddings() -> None:
    spec = SPEC.model_copy(update={"head_dim": 16, "tied_embeddings": True})
    for family in Decoder.families:
        model = random_model(family, spec, seed=1)
        assert spec_of(model, name="tiny").parameters == spec.parameters
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert model.model.layers[0].self_attn.k_proj.weight.shape == (2 * 16, 32)


def test_random_weights_come_from_the_seed_alone() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    first, again = (random_model("qwen2", SPEC, seed=1, spread=0.3) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    other = random_model("qwen2", SPEC, seed=2)
    half = random_model("qwen2", SPEC, seed=1, spread=0.3, dtype="bfloat16")
    for a, b, c, d in zip(*(model.parameters() for model in (first, again, other, half)), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
        assert torch.equal(a.bfloat16(), d)
    assert first.model.layers[0].self_attn.k_proj.bias.std() > 0.2
    assert abs(first.model.norm.weight.mean() - 1) < 0.3
    assert not first.training


@pytest.mark.parametrize("family", sorted(Decoder.families))
@pytest.mark.parametrize("size", ["10GB", "5KB"])
def test_a_saved_model_comes_back(family: str, size: str, tmp_path: Path) -> None:
    """In one file, and in shards with an index."""
    folder = saved(tmp_path / "model", family, max_shard_size=size)
    assert (folder / "model.safetensors.index.json").exists() == (size == "5KB")
    model, ids = load_model(folder), torch.tensor([[1, 2, 3]])
    original = random_model(family, SPEC, seed=1, spread=0.2)
    assert torch.equal(model(ids).logits, original(ids).logits)
    assert spec_of(model).name == str(folder)
    assert not model.training
    assert load_model(folder, dtype="bfloat16").dtype == torch.bfloat16


def test_the_stored_dtype_is_kept(tmp_path: Path) -> None:
    random_model("llama", SPEC, seed=1, dtype="float16").save_pretrained(tmp_path)
    assert load_model(tmp_path).dtype == torch.float16


def _pickled(folder: Path) -> None:
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


ROPE = {"rope_type": "default", "rope_theta": 1e4}


def _with_number(name: str, number: float) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        weights[name].view(-1)[-1] = number
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return write


def _index(**weight_map: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return write


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda folder: (folder / "config.json").unlink(), "config.json: No such file"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: not JSON"),
        (lambda folder: (folder / "config.json").write_text("[" * 10**5), "config.json: not JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "a mapping is needed, this is a list"),
        (
            lambda folder: edited(folder, model_type="qwen4"),
            "model_type 'qwen4' is not run for real.*did you mean 'qwen",
        ),
        (lambda folder: edited(folder, model_type=None), "model_type 'None' is not run for real"),
        (lambda folder: edited(folder, hidden_size="big"), "not the config of a Qwen3ForCausalLM"),
        (lambda folder: edited(folder, hidden_size=-1), "not the config of a Qwen3ForCausalLM|cannot be read"),
        (lambda folder: edited(folder, layer_types=["sliding_attention"] * 2), "sliding-window"),
        (
            lambda folder: edited(folder, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "'dynamic' makes keys depend on later tokens",
        ),
        (lambda folder: edited(folder, rope_parameters=ROPE | {"rope_theta": math.nan}), "NaN is no number"),
        (lambda folder: edited(folder, rope_parameters=ROPE | {"rope_theta": 0}), "rope_theta is 0; a number from 1"),
        (lambda folder: edited(folder, rope_parameters=ROPE | {"rope_theta": 1e-300}), "rope_theta is 1e-300"),
        (lambda folder: edited(folder, rms_norm_eps=-1.0), "rms_norm_eps is -1.0; a number from 0"),
        (lambda folder: edited(folder, rope_parameters=ROPE | {"rope_theta": -1e4}), "rope_theta is -10000"),
        (_with_number("model.layers.0.mlp.up_proj.weight", math.nan), "model.layers.0.mlp.up_proj.weight has weights"),
        (_with_number("model.norm.weight", math.inf), "model.norm.weight has weights that are infinite or no numbers"),
        (lambda folder: edited(folder, quantization_config={"quant_method": "awq"}), "quantised weights"),
        (lambda folder: edited(folder, dtype="float64"), "stored as torch.float64"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "an adapter"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors$"),
        (_pickled, "pytorch_model.bin is pickled and not read"),
        (_truncated, "the weights cannot be read"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 1000), "the weights cannot be read"),
        (lambda folder: edited(folder, num_hidden_layers=3, layer_types=None), "weights are missing"),
        (lambda folder: edited(folder, intermediate_size=50), "cannot be read|another shape"),
        (lambda folder: edited(folder, intermediate_size=10**6, hidden_size=10**6), "its weights take .* GiB"),
        (_index(), "has no weight_map"),
        (_index(a="b.safetensors"), "b.safetensors is missing"),
        (_index(a="../a.safetensors"), "'../a.safetensors' is not a .safetensors file beside it"),
        (_index(a="a.bin"), "'a.bin' is not a .safetensors file"),
    ],
)
def test_a_spoilt_folder_is_an_input_error(tmp_path: Path, spoil: Callable[[Path], Any], match: str) -> None:
    folder = saved(tmp_path / "model")
    spoil(folder)
    with pytest.raises(InputError, match=match) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_pickles_and_code_beside_good_weights_are_not_touched(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (folder / "pytorch_model.bin").write_bytes(b"not to be read")
    (folder / "modeling_evil.py").write_text("raise SystemExit('executed')")
    edited(
        folder,
        auto_map={"AutoConfig": "modeling_evil.Config", "AutoModelForCausalLM": "modeling_evil.Model"},
        transformers_weights="pytorch_model.bin",
    )
    assert spec_of(load_model(folder), name="tiny").layers == 2


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"])
def test_a_folder_names_no_kernel_of_the_hub(tmp_path: Path, key: str) -> None:
    folder = saved(tmp_path / "model")
    ours = load_model(folder).config._attn_implementation
    edited(folder, **{key: "evil-org/evil-kernel", key.replace("attn", "experts"): "evil-org/evil-kernel"})
    config = load_model(folder).config
    assert config._attn_implementation == ours
    assert "evil" not in str(config)


@pytest.mark.parametrize(
    "reference", ["nowhere", "./nowhere", "/nowhere/at/all", "a/b/c", __file__, "no body/no thing"]
)
def test_what_is_no_model_is_an_input_error(reference: str) -> None:
    with pytest.raises(InputError, match="not a folder with a model|no such folder"):
        load_model(reference)


def test_a_hub_name_is_looked_up_in_the_cache_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    asked: list[dict[str, Any]] = []

    def snapshot(name: str, **settings: Any) -> str:
        asked.append({"name": name, **settings})
        return str(saved(tmp_path / "model"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert spec_of(load_model("some/body")).layers == 2
    load_model("some/body", allow_download=True)
    assert [(a["name"], a["local_files_only"]) for a in asked] == [("some/body", True), ("some/body", False)]
    assert not any(pattern.endswith((".bin", ".pt", ".py", "*")) for pattern in asked[0]["allow_patterns"])
    monkeypatch.undo()
    with pytest.raises(InputError, match="not in the local cache, and downloads are not allowed"):
        load_model("some/body-that-is-not-there")


def test_names_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown model family 'lama'.*'llama'"):
        random_model("lama", SPEC, seed=1)
    with pytest.raises(InputError, match="unknown dtype 'bf16'"):
        random_model("llama", SPEC, seed=1, dtype="bf16")
    with pytest.raises(InputError, match="device 'tpu9' is not available"):
        load_model(saved(tmp_path), device="tpu9")
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(InputError, match="rope_type 'longrope'"):
        random_model("llama", SPEC, seed=1, rope={**rope, "long_factor": [1.0] * 4, "short_factor": [1.0] * 4})
    with pytest.raises(InputError, match="not a llama: "):
        random_model("llama", SPEC.model_copy(update={"query_heads": 5}), seed=1)
    with pytest.raises(InputError, match="its weights take"):
        random_model("llama", SPEC.model_copy(update={"hidden": 10**6, "ffn": 10**7}), seed=1)

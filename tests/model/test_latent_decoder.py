"""Absorbed matrices say what the model's own attention says, which makes keys and values of heads."""

from pathlib import Path
from typing import Any

import pytest
from small_decoding import small_latent_model, small_model
from tiny import LIVE_LATENT_MODEL, LIVE_MODEL

from kvferry.specs.errors import InputError
from kvferry.specs.model import ModelSpec

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@torch.no_grad()
def absorbed_logits(model: Any, ids: Any) -> Any:
    from kvferry.model.decoders import decoder_of
    from kvferry.model.whole_prefill import prefill_layer

    decoder = decoder_of(model)
    hidden, rotary = decoder.embed(ids), decoder.rotary(ids.shape[1])
    for layer in range(decoder.layers):
        prefilled = prefill_layer(decoder, layer, hidden, rotary)
        assert prefilled.keys.shape == (*ids.shape[:1], 1, ids.shape[1], 32)
        assert torch.equal(prefilled.values, prefilled.keys[..., :24])
        hidden = prefilled.hidden
    return decoder.logits(hidden)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("query_rank", [None, 12])
@torch.no_grad()
def test_absorbed_matrices_are_the_models_own_attention(interleaved: bool, query_rank: int | None) -> None:
    model = small_latent_model(**({} if query_rank is None else {"q_lora_rank": query_rank}))
    model.config.rope_interleave = interleaved
    ids = torch.randint(0, 256, (2, 30), generator=torch.Generator().manual_seed(1))
    exact = model(ids).logits
    assert (absorbed_logits(model, ids) - exact).abs().max() < 1e-4 * exact.std()


@torch.no_grad()
def test_yarn_scales_attention_as_the_model_does() -> None:
    from kvferry.model.models import random_model

    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "mscale": 0.707, "mscale_all_dim": 0.707}
    rope["original_max_position_embeddings"] = 64
    spec = ModelSpec.model_validate(LIVE_LATENT_MODEL)
    model = random_model("deepseek_v3", spec, seed=0, spread=0.2, rope=rope)
    ids = torch.arange(100)[None]
    exact = model(ids).logits
    assert (absorbed_logits(model, ids) - exact).abs().max() < 1e-4 * exact.std()


def test_dimensions_are_those_of_the_model() -> None:
    from kvferry.model.models import spec_of

    wanted = ModelSpec.model_validate(LIVE_LATENT_MODEL)
    found = spec_of(small_latent_model())
    for key in ("layers", "query_heads", "kv_heads", "head_dim", "latent", "key_width", "kv_entry_bytes"):
        assert getattr(found, key) == getattr(wanted, key), key


def test_a_saved_model_comes_back(tmp_path: Path) -> None:
    from kvferry.model.models import load_model, spec_of

    model = small_latent_model()
    model.save_pretrained(tmp_path)
    found, ids = load_model(tmp_path), torch.tensor([[1, 2, 3]])
    assert torch.equal(found(ids).logits, model(ids).logits)
    assert spec_of(found).latent == ModelSpec.model_validate(LIVE_LATENT_MODEL).latent


def test_what_cannot_be_is_refused() -> None:
    from kvferry.model.decoder import Decoder
    from kvferry.model.models import check_config, random_model

    with pytest.raises(InputError, match="a latent cache .* is of the family deepseek_v3"):
        random_model("qwen3", ModelSpec.model_validate(LIVE_LATENT_MODEL), seed=0)
    with pytest.raises(InputError, match="a latent cache .* is of the family deepseek_v3"):
        random_model("deepseek_v3", ModelSpec.model_validate(LIVE_MODEL), seed=0)
    mixture = {"experts": {"routed": 4, "active": 1, "ffn": 8}}
    with pytest.raises(InputError, match="a mixture of experts .* runs in the modelled world alone"):
        random_model("deepseek_v3", ModelSpec.model_validate(LIVE_LATENT_MODEL | mixture), seed=0)
    model = small_latent_model()
    with pytest.raises(InputError, match="model family"):
        Decoder(model)
    model.config.first_k_dense_replace = 1
    with pytest.raises(InputError, match="has a mixture of experts"):
        check_config(model.config, "here")
    assert small_model().config.model_type == "qwen3"

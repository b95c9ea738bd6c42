"""Sizes that follow from a model's dimensions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny_model

from kvferry.scenarios.loader import load_scenario


@pytest.mark.parametrize(("value_bytes", "entry_bytes"), [(2.0, 32), (0.5, 8), (0.13, 2)])
def test_kv_sizes_by_hand(value_bytes: float, entry_bytes: int) -> None:
    # Keys of two heads of four numbers, and as many values; storage holds whole bytes per token and layer.
    model = tiny_model(layers=3, kv_heads=2, head_dim=4, kv_value_bytes=value_bytes)
    assert model.key_width == 8
    assert model.kv_entry_bytes == entry_bytes
    assert model.kv_full_bytes(100) == 3 * 100 * entry_bytes


LATENT = {"kv_lora_rank": 5, "qk_rope_head_dim": 3, "v_head_dim": 4}


def test_sizes_of_a_latent_cache_by_hand() -> None:
    model = tiny_model(layers=3, query_heads=4, kv_heads=1, head_dim=7, latent=LATENT, kv_value_bytes=2.0)
    # A vector of five numbers and a key of three, once for all heads.
    assert (model.key_width, model.kv_entry_values, model.kv_entry_bytes) == (8, 8, 16)
    assert (model.kv_full_bytes(100), model.kv_bytes_per_token) == (3 * 100 * 16, 3 * 16)
    # Keys of seven numbers and values of four, of four heads.
    assert model.expansion == 4 * (7 + 4) / 8
    # From 32 hidden numbers: queries by way of six numbers, and what is cached.
    through = model.model_copy(update={"latent": model.latent.model_copy(update={"q_lora_rank": 6})})  # type: ignore[union-attr]
    assert (model.matrices.query_parameters, through.matrices.query_parameters) == (32 * 28, 6 * 32 + 6 * 28)
    assert model.matrices.projection_parameters == 32 * 8
    # Keys are 5 x 4 x 4 weights, values 5 x 4 x 4, the output 16 x 32.
    assert model.matrices.attention_parameters == 32 * 28 + 32 * 8 + 80 + 80 + 512


def test_deepseek_v2_lite_is_as_large_as_its_paper_says() -> None:
    model = load_scenario("specontext/throughput", ["model=deepseek-v2-lite"]).model
    # 15.7 G weights, of which a token passes 2.4 G; 576 numbers per token and layer.
    assert round(model.parameters / 1e9, 1) == 15.7
    assert model.layers * model.matrices.active_parameters + model.vocabulary * model.hidden == pytest.approx(
        2.4e9, rel=0.03
    )
    assert model.kv_bytes_per_token == 27 * 576 * 2


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"kv_heads": 2, "head_dim": 7}, "2 cannot be: all heads share the latent cache; 1 would do"),
        ({"kv_heads": 1, "head_dim": 3}, "3 holds the 3 numbers with the rotary embedding"),
    ],
)
def test_latent_dimensions_that_cannot_be_are_refused(changes: dict[str, int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        tiny_model(latent=LATENT, **changes)


@pytest.mark.parametrize(
    ("changes", "what"), [({"active": 5}, "5 active experts of 4"), ({"dense_layers": 9}, "9 dense")]
)
def test_experts_that_cannot_be_are_refused(changes: dict[str, int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        tiny_model(experts={"routed": 4, "active": 1, "ffn": 5, **changes})


@given(
    heads=st.integers(1, 8), plain=st.integers(1, 64), rank=st.integers(1, 64), rope=st.integers(1, 32),
    value=st.integers(1, 64),
)  # fmt: skip
def test_what_is_cached_is_the_same_for_any_number_of_heads(
    heads: int, plain: int, rank: int, rope: int, value: int
) -> None:
    latent = {"kv_lora_rank": rank, "qk_rope_head_dim": rope, "v_head_dim": value}
    one, many = (tiny_model(query_heads=n, kv_heads=1, head_dim=plain + rope, latent=latent) for n in (1, heads))
    assert one.kv_entry_bytes == many.kv_entry_bytes == 2 * (rank + rope)
    assert many.expansion == pytest.approx(heads * one.expansion)
    # Emitting it takes the projection to it alone; all else is of heads.
    assert one.matrices.projection_parameters == many.matrices.projection_parameters
    of_heads = [model.matrices.attention_parameters - model.matrices.projection_parameters for model in (one, many)]
    assert of_heads[1] == heads * of_heads[0]

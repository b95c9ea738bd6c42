"""Selections and keys recorded from a real model, against attention computed in one piece."""

import numpy as np
import pytest
from tiny import tiny_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from kvferry.model.models import random_model
from kvferry.model.recording import record_keys, record_selections
from kvferry.specs.errors import InputError

pytestmark = pytest.mark.torch

SPEC = tiny_model()
IDS = np.random.default_rng(3).integers(61, size=90).tolist()


def test_the_groups_with_most_mass_are_chosen() -> None:
    model = random_model("qwen3", SPEC, seed=1, spread=1.5)
    model.set_attn_implementation("eager")
    stream = record_selections(model, IDS[:70], IDS[70:], k=3, group_tokens=8, chunk_tokens=32)
    assert (stream.groups, stream.ids.shape) == (8, (20, 2, 2, 3))
    attended = model(torch.tensor([IDS]), output_attentions=True).attentions
    for layer in range(2):
        mass = attended[layer][0].unflatten(0, (2, 2)).sum(1)  # query heads of a KV head
        by_group = mass[:, 70:, :64].unflatten(-1, (8, 8)).sum(-1)  # the last 6 tokens are no whole group
        wanted = by_group.topk(3).indices.sort(-1).values.transpose(0, 1).numpy()
        assert np.array_equal(stream.ids[:, layer], wanted)


def test_a_step_does_not_see_what_comes_after_it() -> None:
    model = random_model("qwen3", SPEC, seed=1, spread=1.5)
    whole = record_selections(model, IDS[:64], IDS[64:], k=2, group_tokens=8)
    part = record_selections(model, IDS[:64], IDS[64:70], k=2, group_tokens=8)
    assert np.array_equal(whole.ids[:6], part.ids)


@pytest.mark.parametrize(("answer", "k"), [(0, 1), (5, 0), (5, 9)])
def test_what_cannot_be_chosen_from(answer: int, k: int) -> None:
    model = random_model("qwen3", SPEC, seed=1)
    with pytest.raises(InputError, match="selections need an answer and"):
        record_selections(model, IDS[:64], IDS[64 : 64 + answer], k=k, group_tokens=8)


def test_keys_are_those_of_the_cache() -> None:
    model = random_model("qwen3", SPEC, seed=1, spread=1.5)
    keys = record_keys(model, IDS, chunk_tokens=32).vectors
    assert keys.shape == (2, 2, 90, 8)
    cache = model(torch.tensor([IDS])).past_key_values
    for layer in range(2):
        np.testing.assert_allclose(keys[layer], cache.layers[layer].keys[0].numpy(), rtol=1e-4, atol=1e-5)

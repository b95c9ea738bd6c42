"""What a retrieval head is distilled by: the model's distribution of the next token, and its attention at places."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from small_decoding import small_model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def distil() -> ModuleType:
    # Scripts find each other beside themselves.
    folder = str(Path(__file__).parents[2] / "training")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("distil_head")
    finally:
        sys.path.remove(folder)


def test_attention_at_places_by_hand(distil: ModuleType) -> None:
    """Two query heads share a KV head of width 1. The query at place 1 sees tokens 0 and 1 alone."""
    queries = torch.tensor([[[[9.0], [1.0], [2.0]], [[9.0], [0.0], [-1.0]]]])
    keys = torch.log(torch.tensor([[[[1.0], [3.0], [4.0]]]]))
    found = distil.attention_at(queries, keys, torch.tensor([[1, 2]]))
    assert found.shape == (1, 1, 2, 2, 3)
    # Shares of exp(query x log key): the query's power of 1, 3 and 4.
    expected = [[[1 / 4, 3 / 4, 0.0], [1 / 26, 9 / 26, 16 / 26]], [[1 / 2, 1 / 2, 0.0], [12 / 19, 4 / 19, 3 / 19]]]
    torch.testing.assert_close(found[0, 0], torch.tensor(expected))


@torch.no_grad()
def test_the_model_teaches_its_own_distribution_and_attention(distil: ModuleType) -> None:
    from kvferry.model.decoder import Decoder

    model = small_model()
    decoder, ids = Decoder(model), torch.from_numpy(np.random.default_rng(1).integers(0, 256, (2, 30)))
    positions, places = torch.arange(30).expand(2, -1), torch.tensor([[3, 29], [0, 17]])
    found = distil.taught(decoder, ids, distil.rotations(decoder, positions), places)
    torch.testing.assert_close(found.log_shares, model(ids).logits.log_softmax(-1), atol=1e-3, rtol=0)
    assert found.attention.shape == (3, 2, 2, 2, 30)
    torch.testing.assert_close(found.attention.sum(-1), torch.ones(3, 2, 2, 2))
    assert (found.attention[:, 1, :, 0, 1:] == 0).all()  # place 0 sees itself alone


def test_a_few_steps_bring_the_draft_closer(distil: ModuleType) -> None:
    from kvferry.model.decoder import Decoder

    decoder = Decoder(small_model())
    draft = distil.new_draft(decoder, window=2, width=8, seed=0)
    random = np.random.default_rng(2)
    ids = torch.from_numpy(random.integers(0, 256, (2, 40)))
    positions, places = torch.arange(40).expand(2, -1), torch.arange(0, 40, 5).expand(2, -1)
    taught = distil.taught(decoder, ids, distil.rotations(decoder, positions), places)
    lesson = distil.Lesson(ids, positions, places, taught.log_shares, taught.attention.mean(0))
    optimiser = torch.optim.AdamW(draft.parameters(), lr=1e-2)
    values = []
    for _ in range(25):
        divergence, distance = distil.losses(draft, decoder, lesson)
        (divergence + distance).backward()
        optimiser.step()
        optimiser.zero_grad()
        values.append((divergence.item(), distance.item()))
    assert all(after < 0.8 * before for before, after in zip(values[0], values[-1], strict=True))
    figures = distil.measured(draft, decoder, ids, top=4)
    assert 0 <= figures["hits"] <= 1
    assert 0 < figures["mass"] <= figures["most"] + 1e-6

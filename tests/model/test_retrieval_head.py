"""The retrieval head: what it makes of token ids, and which files it is made of."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from small_decoding import small_model

from kvferry.specs.errors import InputError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def head_of(**sizes: int) -> Any:
    from kvferry.model.retrieval_head import RetrievalHead

    embedding = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]])
    return RetrievalHead(embedding, **{"window": 3, "width": 1, "query_heads": 2, "kv_heads": 1, "head_dim": 2} | sizes)


@torch.no_grad()
def test_a_token_is_read_with_those_before_it() -> None:
    """By hand: reduced to the sum of both numbers, tokens 0, 1, 2 are 1, 1, 4; nothing comes before the first."""
    head = head_of()
    head.reduce.weight.fill_(1.0)
    expected = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 4.0], [1.0, 4.0, 1.0]])
    ids = torch.tensor([[0, 1, 2, 0]])
    torch.testing.assert_close(head.inputs(ids, 4)[0], expected)
    for new in (1, 2, 3):
        torch.testing.assert_close(head.inputs(ids, new)[0], expected[-new:])


@torch.no_grad()
def test_its_projections_by_hand() -> None:
    """Inputs (3, 4) have a root mean square of 3.5355; unit projections and no rotation leave them so, normed again."""
    head = head_of(window=2, query_heads=1)
    for projection in (head.q_proj, head.k_proj):
        projection.weight.copy_(torch.eye(2))
    inputs, still = torch.tensor([[[3.0, 4.0]]]), (torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
    queries, keys = head.projected(inputs, still)
    torch.testing.assert_close(queries, torch.tensor([[[[0.848528, 1.131371]]]]), atol=1e-5, rtol=0)
    torch.testing.assert_close(keys, queries)
    # A quarter turn: (x, y) becomes (-y, x).
    turned, _ = head.projected(inputs, (torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, 2)))
    torch.testing.assert_close(turned[0, 0, 0], torch.tensor([-1.131371, 0.848528]), atol=1e-5, rtol=0)


def test_its_parameters_are_counted_without_the_embedding() -> None:
    # 2 reduced to 1, a norm of 3, queries 3 x 4, keys 3 x 2, two norms of 2.
    assert head_of().parameter_count == 2 + 3 + 12 + 6 + 4


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """A small model whose folder has a head, and that head."""
    from kvferry.model.retrieval_head import random_head

    model = small_model()
    model.config.name_or_path = str(tmp_path)
    head = random_head(model, seed=1)
    head.save(tmp_path)
    return model, head, tmp_path


@torch.no_grad()
def test_it_comes_back_as_it_was_saved(saved: Any) -> None:
    from kvferry.model.decoder import Decoder
    from kvferry.model.retrieval_head import load_head

    model, head, _ = saved
    found = load_head(model)
    assert (found.window, found.query_heads, found.kv_heads, found.head_dim) == (4, 4, 2, 16)
    ids, rotary = torch.arange(20)[None], Decoder(model).rotary(20)
    for ours, theirs in zip(*(one.projected(one.inputs(ids, 20), rotary) for one in (found, head)), strict=True):
        # As bfloat16 holds them.
        assert (ours - theirs).abs().max() < 0.02 * theirs.abs().max()


def test_a_model_without_a_head_says_what_makes_one(tmp_path: Path) -> None:
    from kvferry.model.retrieval_head import load_head

    model = small_model()
    model.config.name_or_path = str(tmp_path)
    with pytest.raises(InputError, match=r"policies.selector: .* has no retrieval_head.safetensors; .*distil_head.py"):
        load_head(model)


def test_another_models_head_is_refused(saved: Any, tmp_path: Path) -> None:
    from kvferry.model.models import load_model
    from kvferry.model.retrieval_head import FILE, load_head

    _, _, folder = saved
    other = tmp_path / "other"
    shutil.copytree(load_model("byte-small").config.name_or_path, other)
    shutil.copy(folder / FILE, other / FILE)
    with pytest.raises(
        InputError, match=r"is not a retrieval head of .*8 query heads and 4 KV heads .*q_proj.weight \[64"
    ):
        load_head(load_model(other))


@pytest.mark.parametrize("damage", ["cut", "text", "lacking", "shape", "no shape"])
def test_damaged_files_are_refused(saved: Any, damage: str) -> None:
    from safetensors.torch import load_file, save_file

    from kvferry.model.retrieval_head import FILE, load_head

    model, _, folder = saved
    path = folder / FILE
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:1000])
    elif damage == "text":
        path.write_text("no tensors")
    else:
        held = load_file(path)
        if damage == "lacking":
            del held["k_norm"]
        else:
            held["norm"] = torch.ones(3, 5) if damage == "shape" else torch.ones(())
        save_file(held, path)
    with pytest.raises(InputError, match=str(path)):
        load_head(model)


@pytest.mark.parametrize(
    ("weight", "match"),
    [
        (float("nan"), "is damaged: k_norm has weights that are infinite or no numbers"),
        (float("-inf"), "is damaged: k_norm has weights that are infinite or no numbers"),
        (1, "k_norm has weights of type int64; float32, bfloat16 and float16 are supported"),
        (1j, "k_norm has weights of type complex64; float32, bfloat16 and float16 are supported"),
    ],
)
def test_weights_that_nothing_can_be_computed_with_are_refused(saved: Any, weight: complex, match: str) -> None:
    from safetensors.torch import load_file, save_file

    from kvferry.model.retrieval_head import FILE, load_head

    model, _, folder = saved
    held = load_file(folder / FILE)
    held["k_norm"] = torch.full(held["k_norm"].shape, weight)
    save_file(held, folder / FILE)
    with pytest.raises(InputError, match=f"{FILE}: {match}"):
        load_head(model)


@pytest.mark.parametrize("name", ["byte-large", "byte-long", "byte-small"])
def test_bundled_models_come_with_a_head(name: str) -> None:
    from kvferry.model.models import load_model
    from kvferry.model.retrieval_head import FILE, load_head

    model = load_model(name)
    head = load_head(model)
    # Over 90 % smaller than the model, and small to ship.
    assert head.parameter_count < 0.1 * sum(one.numel() for one in model.parameters())
    assert (Path(model.config.name_or_path) / FILE).stat().st_size < 2**20

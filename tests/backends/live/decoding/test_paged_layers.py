"""Sequences of any length with all KV in memory: pages, and steps of some sequences at a time."""

from typing import Any

import numpy as np
import pytest
from small_decoding import exact_logits, small_latent_model

from kvferry.machine.handles import Batch
from kvferry.machine.ops import DecodeStep, FeedForward, OutputHead, PrefillLayer
from kvferry.specs.errors import InputError, KvferryError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
LENGTHS = (5, 37, 16)


@pytest.fixture
def prompts() -> list[list[int]]:
    random = np.random.default_rng(8)
    return [random.integers(0, 256, n).tolist() for n in LENGTHS]


def paged(model: Any, prompts: list[list[int]], pages: int = 20, **settings: Any) -> Any:
    from kvferry.backends.live.decoding.paged_layers import PagedLayers

    return PagedLayers(model, prompts, output=20, pages=pages, **settings)


def prefill(runner: Any, of: Batch) -> None:
    for layer in range(3):
        # Sequences are released once.
        runner.run(PrefillLayer(len(of.sequences), 1, layer, of if not layer else Batch(of.sequences)), None)
    runner.run(OutputHead(len(of.sequences), of=Batch(of.sequences)), None)


def step(runner: Any, *sequences: int) -> None:
    runner.run(DecodeStep(len(sequences), 1, Batch(sequences)), None)
    runner.pages.check()


def check_said(model: Any, prompts: list[list[int]], answers: list[list[int]]) -> None:
    for prompt, answer in zip(prompts, answers, strict=True):
        assert [answer] == exact_logits(model, [prompt], [answer]).argmax(-1).T.tolist()


def test_sequences_come_and_go_in_one_batch(model: Any, prompts: list[list[int]]) -> None:
    """One is admitted while another decodes, one ends while the others go on, steps are of ragged contexts."""
    runner = paged(model, prompts)
    prefill(runner, Batch((1,)))
    for _ in range(3):
        step(runner, 1)
    prefill(runner, Batch((0, 2)))
    for _ in range(9):
        step(runner, 0, 1, 2)
    assert runner.pages.free_pages == 20 - (1 + 4 + 2)
    runner.run(DecodeStep(2, 1, Batch((2, 0), released=(1,))), None)
    assert runner.pages.free_pages == 20 - (1 + 2)
    for _ in range(3):
        step(runner, 2)
    assert [len(answer) for answer in runner.answers] == [11, 13, 14]
    check_said(model, prompts, runner.answers)


def test_by_default_an_op_is_for_all(model: Any, prompts: list[list[int]]) -> None:
    runner = paged(model, prompts)
    for layer in range(3):
        runner.run(PrefillLayer(3, 1, layer), None)
    runner.run(OutputHead(3), None)
    runner.run(DecodeStep(3, 1), None)
    check_said(model, prompts, runner.answers)


def test_pages_of_a_latent_cache_have_one_side(prompts: list[list[int]]) -> None:
    model = small_latent_model()
    runner = paged(model, prompts)
    prefill(runner, Batch((0, 1, 2)))
    for _ in range(5):
        step(runner, 0, 1, 2)
    check_said(model, prompts, runner.answers)
    # 1 + 3 + 2 pages of 16 tokens, 3 layers, 24 + 8 numbers of 4 B.
    assert runner.buffer_bytes == (1 + 3 + 2) * 16 * 3 * 32 * 4


def test_what_is_said_may_be_given(model: Any, prompts: list[list[int]]) -> None:
    logits: list[Any] = []
    follow = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    runner = paged(model, prompts, follow=follow, listen=lambda some, of: logits.append(some))
    prefill(runner, Batch((0, 1, 2)))
    step(runner, 2, 0)
    assert runner.answers == [[1, 2], [4], [7, 8]]
    exact = exact_logits(model, [prompts[2]], [[7, 8]])[1, 0]
    assert logits[1][0] == pytest.approx(exact, abs=1e-4 * float(exact.std()))


def test_a_full_pool_refuses_and_takes_nothing(model: Any, prompts: list[list[int]]) -> None:
    runner = paged(model, prompts, pages=4)
    prefill(runner, Batch((1,)))
    with pytest.raises(KvferryError, match="sequence 0 needs 1 more pages, 0 of 4 are free"):
        runner.run(PrefillLayer(2, 1, 0, Batch((2, 0))), None)
    runner.pages.check()
    # Released, its pages serve the next.
    prefill(runner, Batch((2,), released=(1, 0)))
    assert runner.pages.free_pages == 3


def test_ops_out_of_turn_are_refused(model: Any, prompts: list[list[int]]) -> None:
    runner = paged(model, prompts)
    for op, message in (
        (PrefillLayer(1, 1, 1, Batch((0,))), "layer 1: sequence 0 is not being prefilled"),
        (PrefillLayer(2, 1, 0, Batch((0,))), "a batch of 2 names 1 sequences"),
        (OutputHead(1, of=Batch((0,))), "has passed 0 of 3 layers"),
        (DecodeStep(1, 1, Batch((0,))), "sequence 0 cannot decode: its prompt is not there"),
    ):
        with pytest.raises(KvferryError, match=message):
            runner.run(op, None)
    with pytest.raises(InputError, match="FeedForward is no op of decoding with all KV in memory"):
        runner.run(FeedForward(1), None)


def test_pages_by_hand() -> None:
    """Three tokens from position 15 on lie on two pages."""
    from kvferry.backends.live.decoding.paged_layers import Pages

    pages = Pages(3, layers=1, kv_heads=1, head_dim=1, dtype=torch.float32, device=torch.device("cpu"))
    pages.make_room(7, 18)
    keys = torch.tensor([[[1.0], [2.0], [3.0]]])
    pages.put(0, 7, 15, keys, -keys)
    assert pages.kv(0, 7, 18)[0].flatten().tolist() == [0.0] * 15 + [1.0, 2.0, 3.0]
    assert pages.kv(0, 7, 17)[1].flatten().tolist() == [0.0] * 15 + [-1.0, -2.0]
    assert pages.peak_bytes == 2 * 16 * 2 * 4
    pages.release(7)
    pages.release(7)
    assert pages.free_pages == 3
    pages.check()

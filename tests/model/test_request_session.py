"""A request read in pieces, cut on the way, taken back and stepped in a batch says what one whole pass says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
import torch
from tiny import LIVE_MODEL

from kvferry.model.decoder import Decoder
from kvferry.model.models import random_model
from kvferry.model.request_session import OBSERVED_TOKENS, RequestSession, step
from kvferry.specs.model import ModelSpec

pytestmark = pytest.mark.torch
DECODER = Decoder(random_model("qwen3", ModelSpec.model_validate(LIVE_MODEL), seed=1, spread=0.2))
ROTARY = DECODER.rotary(400)
some_ids = st.lists(st.integers(0, 255), min_size=2, max_size=40)


@torch.no_grad()
def whole(ids: list[int]) -> torch.Tensor:
    """Logits behind every token, by the model itself."""
    return DECODER.model(torch.tensor([ids])).logits[0]


@settings(max_examples=10)
@given(ids=some_ids, data=st.data())
@torch.no_grad()
def test_pieces_and_taken_back_answers(ids: list[int], data: st.DataObject) -> None:
    session = RequestSession(ids)
    while (left := len(ids) - len(session.history)) > 0:
        logits = session.more(DECODER, ROTARY, data.draw(st.integers(1, left)))
    torch.testing.assert_close(logits, whole(ids)[-1], rtol=1e-3, atol=1e-4)
    for _ in range(2):
        answer = data.draw(some_ids)
        found = session.after(DECODER, ROTARY, [*ids, *answer], last=2)
        torch.testing.assert_close(found, whole([*ids, *answer])[-2:], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_a_prompt_that_is_cut_behind_its_beginning() -> None:
    session = RequestSession(list(range(60)))
    session.more(DECODER, ROTARY, 10)
    session.ids = [*range(10), *range(30, 40), *range(50, 60)]
    logits = session.more(DECODER, ROTARY, 20)
    torch.testing.assert_close(logits, whole(session.ids)[-1], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_requests_of_different_lengths_step_together() -> None:
    prompts = [list(range(9)), list(range(100, 130)), [7]]
    sessions = [RequestSession(prompt) for prompt in prompts]
    for session, prompt in zip(sessions, prompts, strict=True):
        session.more(DECODER, ROTARY, len(prompt))
    for said in ([1, 2, 3], [4, 5, 6]):
        logits = step(DECODER, ROTARY, sessions, said)
        prompts = [[*prompt, one] for prompt, one in zip(prompts, said, strict=True)]
        for found, prompt in zip(logits, prompts, strict=True):
            torch.testing.assert_close(found, whole(prompt)[-1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("pieces", [(100,), (40, 50, 10), (99, 1)])
@torch.no_grad()
def test_what_the_last_queries_attend(pieces: tuple[int, ...]) -> None:
    ids = [(7 * n) % 256 for n in range(100)]
    session = RequestSession(ids, observes=True)
    for tokens in pieces:
        session.more(DECODER, ROTARY, tokens)
    assert session.observed.shape == (3, 4, 100)
    # Each query has one unit of attention to give, and none for what comes behind it.
    np.testing.assert_allclose(session.observed.sum(-1).numpy(), OBSERVED_TOKENS, rtol=1e-4)
    DECODER.model.set_attn_implementation("eager")
    try:
        attended = DECODER.model(torch.tensor([ids]), output_attentions=True).attentions
    finally:
        DECODER.model.set_attn_implementation("sdpa")
    for layer, mass in enumerate(attended):
        np.testing.assert_allclose(
            session.observed[layer].numpy(), mass[0, :, -OBSERVED_TOKENS:].sum(1).numpy(), rtol=1e-3, atol=1e-5
        )


@torch.no_grad()
def test_one_token_costs_the_same_by_itself_and_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[tuple[int, ...], dict[str, object]]] = []
    really = torch.nn.functional.scaled_dot_product_attention

    def attention(queries: torch.Tensor, *args: torch.Tensor, **how: object) -> torch.Tensor:
        asked.append((tuple(queries.shape), how))
        return really(queries, *args, **how)

    ids = list(range(50))
    sessions = [RequestSession(ids), RequestSession(ids)]
    for session in sessions:
        session.more(DECODER, ROTARY, len(ids))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    by_itself = sessions[0].after(DECODER, ROTARY, [*ids, 7])
    of_itself, asked = asked, []
    in_a_batch = step(DECODER, ROTARY, sessions[1:], [7])
    assert of_itself == asked
    assert of_itself[0][1] == {}, "a single query needs no mask"
    assert torch.equal(by_itself, in_a_batch)

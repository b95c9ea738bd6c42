"""Ops on sessions: which one, which unit, and what is refused."""

from typing import Any

import numpy as np
import pytest
from tiny import tiny_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from kvferry.backends.live.loading.runner import Prompt, SessionRunner
from kvferry.machine.ops import (
    Advance,
    DecodeAttention,
    DecodeRun,
    DecodeStep,
    Decompress,
    FeedForward,
    KvRef,
    Op,
    Prefill,
    PrefillHead,
    Project,
)
from kvferry.model.kv import NotReady
from kvferry.model.models import random_model
from kvferry.specs.errors import InputError, KvferryError

pytestmark = pytest.mark.torch

SPEC = tiny_model()
CONTEXT = tuple(np.random.default_rng(1).integers(0, 61, 20).tolist())
QUESTION = (3, 1, 4)


@pytest.fixture
def runner() -> SessionRunner:
    torch.set_num_threads(1)
    model = random_model("qwen3", SPEC, seed=2, spread=0.25)
    return SessionRunner(model, lambda request: Prompt(CONTEXT, QUESTION, output_tokens=2), chunk_tokens=16)


def unit(t: int, l: int) -> KvRef:
    return KvRef(sequence=0, token_chunk=t, layer=l, head=None, n_bytes=1.0)


LOAD: tuple[Op, ...] = (
    Project(16, unit(0, 0)),
    Project(4, unit(1, 0)),
    Advance(16, 1, 0, unit(0, 0)),
    Project(16, unit(0, 1)),
    Advance(4, 1, 16, unit(1, 0)),
    Project(4, unit(1, 1)),
)


def test_a_request_from_its_first_op_to_its_last_token(runner: SessionRunner) -> None:
    for op in LOAD:
        assert runner.run(op, request=5) is None
    first = runner.run(Prefill(3, 20), request=5)
    second = runner.run(DecodeStep(1, 23), request=5)
    ids = torch.tensor([CONTEXT + QUESTION])
    assert [first, second] == runner.model.generate(ids, max_new_tokens=2, do_sample=False)[0, -2:].tolist()
    assert runner.answers == {5: [first, second]}
    # Two were asked for, so its session is closed.
    with pytest.raises(NotReady):
        runner.run(DecodeStep(1, 24), request=5)
    for op in (*LOAD, Prefill(3, 20), DecodeStep(1, 23)):  # the same request once more
        runner.run(op, request=5)
    assert runner.answers == {5: [first, second]}


def test_turns_go_on_where_the_answer_before_ended(runner: SessionRunner) -> None:
    questions = (3, 1, 4, 1, 5, 9)
    talk = SessionRunner(runner.model, lambda request: Prompt(CONTEXT, questions, 2, turns=2), chunk_tokens=16)
    for op in LOAD:
        talk.run(op, request=0)
    first = [talk.run(op, request=0) for op in (Prefill(3, 20), DecodeStep(1, 23))]
    # The last token of the first answer is read with the second question.
    second = [talk.run(op, request=0) for op in (Prefill(4, 24), DecodeStep(1, 28))]
    ids = torch.tensor([[*CONTEXT, *questions[:3], *first, *questions[3:]]])
    assert second == runner.model.generate(ids, max_new_tokens=2, do_sample=False)[0, -2:].tolist()
    assert talk.answers == {0: first + second}
    with pytest.raises(NotReady):
        talk.run(DecodeStep(1, 29), request=0)


def test_buffers_go_from_request_to_request(runner: SessionRunner) -> None:
    runner.reserve(20, room=16)
    buffers = []
    for request in range(3):
        buffers.append(runner.session(request).kv)
        runner.close(request)
    assert buffers[0] is buffers[1] is buffers[2]
    runner.close(99)
    assert runner.session(7).kv is buffers[0]
    assert runner.session(8).kv is not buffers[0]
    assert runner.session(7) is runner.session(7)


def test_chunks_are_found_by_their_flat_index(runner: SessionRunner) -> None:
    # (t, l, h) = (1, 0, 1) of [2, 2, 2] is 1 x 4 + 0 x 2 + 1.
    assert runner.load(0, 5, torch.ones(4, 8), torch.zeros(4, 8))
    assert runner.session(0).kv.chunk(1, 0, 1)[0].eq(1).all()
    with pytest.raises(InputError, match="chunk 8 is not of this context"):
        runner.load(0, 8, torch.ones(4, 8), torch.zeros(4, 8))
    with pytest.raises(InputError, match="was it stored for them"):
        runner.load(0, 0, torch.ones(4, 8), torch.zeros(4, 8))


def test_a_chunk_that_comes_late_does_not_go_to_the_next_request(
    runner: SessionRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request ends, and the next one has the buffers, just as it is about to be put in place."""
    late = runner.session(0)
    put = late.load

    def between(*chunk: Any) -> bool:
        runner.close(0)
        assert runner.session(1).kv is late.kv
        return put(*chunk)

    monkeypatch.setattr(late, "load", between)
    assert not runner.load(0, 5, torch.ones(4, 8), torch.zeros(4, 8))
    assert runner.session(1).kv.missing(0, 2) == [0, 1]
    assert not runner.session(1).kv.keys.any()
    # Its own chunk is still taken.
    assert runner.load(1, 5, torch.ones(4, 8), torch.zeros(4, 8))
    # And one for a request that is over opens nothing.
    assert not runner.load(0, 5, torch.ones(4, 8), torch.zeros(4, 8))
    assert set(runner._sessions) == {1}


@pytest.mark.parametrize(
    ("op", "request_", "error", "match"),
    [
        (PrefillHead(16, 1), 0, InputError, "set `coupling: all_heads`"),
        (Project(16), 0, KvferryError, "Project does not say which KV"),
        (Advance(16, 1, 0, unit(0, 0)), None, KvferryError, "Advance needs a request"),
        (Advance(16, 1, 0, unit(0, 0)), 0, NotReady, "KV of token chunks 0 is missing"),
        (Project(15, unit(0, 0)), 0, InputError, "context and prompt differ"),
        (Project(16, unit(2, 0)), 0, InputError, "context and prompt differ"),
        (Prefill(4, 20), 0, InputError, "its question has 3"),
        (Prefill(3, 20), 0, NotReady, r"missing in layers \[0, 1\]"),
        (DecodeStep(2, 20), 0, InputError, "not a batch of 2"),
        (DecodeStep(1, 20), 0, NotReady, "before its question"),
        (FeedForward(1), 0, InputError, "FeedForward is no op of a model session"),
        (DecodeAttention(1, 1), 0, InputError, "DecodeAttention is no op"),
        (Decompress(1), 0, InputError, "Decompress is no op"),
    ],
)
def test_what_cannot_be_run_says_why(
    runner: SessionRunner, op: Op, request_: int | None, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        runner.run(op, request_)


def test_a_prompt_brings_its_attention(runner: SessionRunner) -> None:
    seen: list[Any] = []

    def attention(queries: torch.Tensor, kv: Any, t: int, l: int) -> torch.Tensor:
        seen.append((t, l))
        return torch.zeros_like(queries)

    own = SessionRunner(runner.model, lambda request: Prompt(CONTEXT, QUESTION, 1, attention), chunk_tokens=16)
    for op in LOAD:
        own.run(op, request=0)
    assert seen == [(0, 0), (1, 0)]


def test_a_run_of_steps_decodes_what_its_steps_do() -> None:
    answers = []
    for ops in ((DecodeStep(1, 23), DecodeStep(1, 24), DecodeStep(1, 25)), (DecodeRun(3, 23),)):
        model = random_model("qwen3", SPEC, seed=2, spread=0.25)
        runner = SessionRunner(model, lambda request: Prompt(CONTEXT, QUESTION, output_tokens=4), chunk_tokens=16)
        for op in (*LOAD, Prefill(3, 20), *ops):
            runner.run(op, 0)
        answers.append(runner.answers[0])
    assert answers[0] == answers[1]
    assert len(answers[0]) == 4

"""The models that come with the project: they load by name, and have learnt what the live backend needs."""

import inspect
import textwrap

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import PreTrainedModel

from kvferry.backends.live.quality.tasks import ASKING
from kvferry.model.folder import BUNDLED, bundled
from kvferry.model.models import load_model, spec_of
from kvferry.model.prompts import Prompts
from kvferry.model.session import Session
from kvferry.model.tokens import BYTE_VOCABULARY, ByteTokens
from kvferry.scenarios.loader import load_model as described
from kvferry.specs.errors import InputError

pytestmark = pytest.mark.torch

NAMES = ("byte-large", "byte-long", "byte-small")
# Code that no training text holds: this project's own.
TEXT = ByteTokens().encode(inspect.getsource(Session) + inspect.getsource(textwrap))


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return load_model(request.param, "float32")


def test_they_are_found_by_name() -> None:
    assert bundled() == NAMES
    with pytest.raises(InputError, match=r"nor bundled \(byte-large, byte-long, byte-small\)"):
        load_model("byte-medium")


@pytest.mark.parametrize("name", NAMES)
def test_their_descriptions_are_theirs(name: str) -> None:
    found, bundled = spec_of(load_model(name), name), described(name)
    assert bundled.model_copy(update={"source": ""}) == found.model_copy(update={"source": ""})
    assert bundled.vocabulary == BYTE_VOCABULARY
    assert (BUNDLED / name / "SOURCES.md").is_file()


def test_together_they_stay_small() -> None:
    assert sum(path.stat().st_size for path in BUNDLED.glob("*/*")) < 19e6


def test_held_out_code_is_no_surprise(model: PreTrainedModel) -> None:
    ids = torch.tensor([TEXT[:1024]])
    logits = model(ids).logits[0]
    assert torch.isfinite(logits).all()
    bits = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]) / np.log(2)
    assert bits < 2.5  # 8 without training, about 4.5 knowing only how often each byte comes


def test_a_fact_far_back_is_found_with_all_of_the_context_and_not_with_a_window(model: PreTrainedModel) -> None:
    found = {"all": 0, "window": 0}
    random = np.random.default_rng(11)
    for _ in range(6):
        key = bytes(random.choice(list(b"abcdefghijklmnopqrstuvwxyz"), 6).tolist()).decode()
        value = bytes(random.choice(list(b"0123456789"), 6).tolist()).decode()
        before = TEXT[:150]
        fact = ByteTokens().encode(f"\nThe secret code of {key} is {value}.\n")
        context = before + fact + TEXT[150 : 512 - len(fact)]  # the window begins behind the fact
        question = ByteTokens().encode(f"\nThe secret code of {key} is ")
        answer = ByteTokens().encode(value)
        found["all"] += _answers(model, context, question, len(answer)) == answer
        found["window"] += _answers(model, context[-256:], question, len(answer)) == answer
    assert found["all"] >= 4
    assert found["window"] == 0


def _answers(model: PreTrainedModel, context: list[int], question: list[int], n: int) -> list[int]:
    session = Session(model, context, chunk_tokens=512)
    session.prefill()
    return session.generate(question, max_new_tokens=n, do_sample=False)


@pytest.mark.parametrize("context", [1024, pytest.param(8192, marks=pytest.mark.long)])
@pytest.mark.parametrize("task", sorted(ASKING))
def test_the_one_trained_at_8ki_answers_questions_there(task: str, context: int) -> None:
    model = load_model("byte-long")
    asked = ASKING[task](Prompts(BUNDLED / "byte-long", BYTE_VOCABULARY, None, 0), 0, context)
    ids = torch.tensor([asked.context + asked.said])
    with torch.no_grad():
        likeliest = model(ids, logits_to_keep=len(asked.said)).logits[0].argmax(-1)
    right = asked.right(np.array([asked.said[0], *likeliest[:-1].tolist()]))
    assert len(right) == 8
    assert sum(right) >= 7  # byte-large at 8,192: 5.5 needles, 4 copies in the mean


def test_loading_draws_no_progress_bar(capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    logging.enable_progress_bar()
    load_model("byte-small")
    assert "Loading weights" not in capfd.readouterr().err

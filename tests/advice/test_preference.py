"""Which of trials with an equal figure is chosen, from figures made up by hand."""

from dataclasses import replace

import pytest

from kvferry.advice.composition import Composition
from kvferry.advice.preference import in_order
from kvferry.advice.question import Question, question_of
from kvferry.advice.trial import Trial


@pytest.fixture
def question() -> Question:
    asked = question_of(device="rtx-4060", model="llama-3.2-1b", link="50 Mbit/s")
    spec = asked.use.spec.model_copy(update={"best": "ttft_s"})
    return replace(asked, use=replace(asked.use, spec=spec))


def trial(ttft_s: float, answer_s: float = 1.0, found: float = 0.0, **of: object) -> Trial:
    figures = {"ttft_s": ttft_s, "answer_s": answer_s, "tpot_s": 0.01, "found_in_cloud_share": found}
    return Trial(composition=Composition(**of), scenario=None, outcome="done", figures=figures)  # type: ignore[arg-type]


def test_of_equal_first_tokens_the_faster_answer_is_chosen(question: Question) -> None:
    """Rounding tells 32.33545945081271 ms from 32.33545945081464; 888 ms are more than 476."""
    slow = trial(0.03233545945081271, 0.888, decode="full-flash")
    fast = trial(0.03233545945081464, 0.476)
    assert in_order(question, [slow, fast]) == [fast, slow]
    assert in_order(question, [trial(0.032, 0.888), fast])[1] is fast, "one percent is not rounding"


def test_of_equal_figures_what_loses_nothing_comes_before_what_is_faster_else(question: Question) -> None:
    """KV comes encoded over the link with an error; where none came, nothing is lost."""
    encoded, exact = trial(0.0322, 0.4, found=0.5, load="ferry"), trial(0.03221, 0.5)
    assert in_order(question, [encoded, exact]) == [exact, encoded]
    unused = trial(0.0322, 0.4, load="ferry")
    assert in_order(question, [exact, unused]) == [unused, exact]
    coarse = trial(0.0322, 0.4, kv_bits=8.5)
    assert in_order(replace(question, any_quality=True), [coarse, exact]) == [exact, coarse]


def test_then_comes_what_an_engine_has_then_fewer_parts_then_the_earlier_one(question: Question) -> None:
    """No engine decodes as FlexGen does."""
    away, plain = trial(1.0, decode="flexgen", away="host"), trial(1.0)
    assert in_order(question, [away, plain]) == [plain, away]
    chunked, further = trial(1.0, prefill_chunk=512), trial(1.0, prefill_chunk=512, evict="cost")
    assert in_order(question, [further, chunked, plain]) == [plain, chunked, further]
    # llama.cpp keeps no KV in a cloud, though that is one part and the others are two.
    cloud = trial(1.0, keep="cloud")
    assert in_order(question, [cloud, further]) == [further, cloud]
    twice = [trial(1.0, evict="cost"), trial(1.0, evict="predicted")]
    assert in_order(question, twice) == twice and in_order(question, twice[::-1]) == twice[::-1]


def test_equal_is_beside_the_best_and_not_each_beside_the_next(question: Question) -> None:
    """1.0005 s are equal to 1 s, and 1.0014 s to 1.0005 but not to 1."""
    first, second, third = trial(1.0, 3.0), trial(1.0005, 2.0), trial(1.0014, 1.0)
    assert in_order(question, [first, second, third]) == [second, first, third]

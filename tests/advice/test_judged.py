"""What is judged over all turns of a use, and what is said where it was judged over few."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf

import pytest

import kvferry
from kvferry.advice.composition import Composition
from kvferry.advice.fit import holding_longest, holds, longest_context
from kvferry.advice.question import Question, question_of
from kvferry.advice.search import Search
from kvferry.advice.trial import Trial
from kvferry.specs.errors import InputError


def lasting(question: Question, one: Composition, settings: Mapping[str, object]) -> Trial:
    """Over few turns all runs; over all of them KV does not fit in memory, and from the host's memory an answer takes
    nine seconds."""
    inside = one.away is None
    if inside and "workload.turns" not in settings:
        return Trial(composition=one, scenario=None, outcome="out_of_memory")
    return Trial(composition=one, scenario=None, outcome="done", figures={"answer_s": 1.0 if inside else 9.0})


def test_a_choice_is_judged_over_all_turns_however_soon_the_search_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.advice.trial.tried", lasting)
    search = Search(question_of(device="rtx-4090", storage="nvme", model="llama-3.1-8b"), lambda: None)
    search.first()
    (first, *_), turns = search.ranked, len(search.question.turns)
    assert search.is_coarse and first.composition.away is None and search.judged_turns == (3, turns)
    search.judge(0.0)
    assert search.climb.cut_short and not search.whole.all, "it is late"
    search.judge(inf)
    (best, *_) = search.ranked
    assert best.composition.away is not None and not search.is_coarse and search.judged_turns == (turns, turns)


def test_what_fails_over_all_turns_is_no_choice_over_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.advice.trial.tried", lasting)
    search = Search(question_of(device="rtx-4090", storage="nvme", model="llama-3.1-8b"), lambda: None)
    search.first()
    first, *_ = search.ranked
    search.whole.of(first.composition)
    left = search.ranked
    assert search.is_coarse and search.has_failed(first) and not any(map(search.has_failed, left))
    # What differs in what it keeps KV in alone fails with it, and another way to decode does not.
    gone = [one.composition for one in search.few.ranked() if one not in left]
    assert {replace(one, keep="memory", evict="lru") for one in gone} == {Composition()} and len(gone) > 1 and left


def test_a_first_answer_that_does_not_last_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_decode(question: Question, one: Composition, settings: Mapping[str, object]) -> Trial:
        return (
            replace(lasting(question, one, settings), outcome="out_of_memory")
            if one.away
            else lasting(question, one, settings)
        )

    monkeypatch.setattr("kvferry.advice.trial.tried", one_decode)
    monkeypatch.setattr("kvferry.advice.least_memory.tried", one_decode)
    said: list[str] = []
    with pytest.raises(InputError):
        kvferry.advise("rtx-4090", "llama-3.1-8b", say=said.append)
    name = said[0].removeprefix("first answer, over few turns: ")
    assert said[1] == f"over all turns it does not do: {name} does not fit in memory"


def test_over_few_turns_the_choice_holds_the_longest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    question = question_of(device="rtx-4060", model="llama-3.2-1b", use="agent")
    asked: list[tuple[Composition, object]] = []

    def one_turn(question: Question, one: Composition, settings: Mapping[str, object]) -> Trial:
        asked.append((one, settings["workload.context"]))
        return Trial(composition=one, scenario=None, outcome="done" if one.away else "out_of_memory")

    monkeypatch.setattr("kvferry.advice.fit.tried", one_turn)
    of = [Composition(), Composition(evict="cost"), Composition(decode="flexgen", away="host", keep="drop")]
    ranked = [Trial(composition=one, scenario=None, outcome="done") for one in of]
    assert holding_longest(question, ranked) == ranked[2:] and holding_longest(question, ranked[:2]) == []
    longest = question.turns.longest.prompt + question.turns.longest.output
    # Of two that differ in what evicts one is asked; its question and answer are among the tokens.
    assert [one for one, _ in asked[:2]] == [of[0], of[2]] and {context for _, context in asked} == {longest - 66}


def test_the_longest_context_counts_all_tokens_of_a_turn_whatever_the_use_begins_with() -> None:
    """An agent's turns begin with 4Ki tokens, which are as much KV as others."""
    agent, chat = (question_of(device="rtx-4060", model="qwen3-8b", use=use) for use in ("agent", "chat"))
    found = longest_context(agent, Composition())
    assert found == longest_context(chat, Composition()) and found[0] > 1024
    assert holds(agent, Composition(), found[0]) and not holds(agent, Composition(), int(1.2 * found[0]))

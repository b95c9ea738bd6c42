"""The search beside all compositions, each of which is run; and the bound beneath them all."""

from math import inf

import pytest

import kvferry
from kvferry.advice.advise import compare
from kvferry.advice.bound import bound_of
from kvferry.advice.composition import Composition
from kvferry.advice.counterparts import counterparts
from kvferry.advice.measure import NUMBERS, RUNTIME, next_measurement, sensitivities
from kvferry.advice.question import Question, question_of
from kvferry.advice.search import Search
from kvferry.advice.trial import Trial, tried
from kvferry.advice.trials import Trials
from kvferry.pipelines.decoding.sizing import NoRoom
from kvferry.specs.errors import InputError

FEW = ("workload.turns=3", "workload.decoded=3", "workload.contexts=2", "policies.evict=lru")


def asked(*pinned: str, **of: object) -> Question:
    return question_of(settings=[*FEW, *pinned], **of)  # type: ignore[arg-type]


CASES = {
    "all KV in memory": asked("policies.decode=vllm", device="rtx-4060", model="llama-3.2-3b", use="chat"),
    "with a limit": asked("policies.decode=vllm", device="rtx-4060", model="llama-3.2-3b", ttft="1 s"),
    "over a link": asked(
        *("policies.decode=vllm", "policies.keep=memory"),
        device="apple-m3",
        model="llama-3.2-1b",
        use="documents",
        context=1024,
        link="200 Mbit/s",
    ),
    "memory is short": asked(
        *("workload.beginning=256", "policies.keep=drop"),
        device="rtx-3050-laptop",
        model="llama-3.2-1b",
        use="chat",
        memory="1.7 GB",
    ),
}


SLOW = ("over a link", "memory is short")


@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.long] * (one in SLOW)) for one in CASES])
def test_what_is_chosen_is_within_3_percent_of_the_best_of_all(name: str) -> None:
    question = CASES[name]
    search = Search(question, lambda: None)
    search.first()
    search.refine()
    chosen = search.whole.ranked()[0]
    everything = [one for one in question.space.everything() if one.loss == chosen.composition.loss]
    assert len(everything) >= 4
    best = min((search.whole.of(one) for one in everything), key=search.whole.rank)
    assert chosen.figures["answer_s"] <= 1.03 * best.figures["answer_s"]


@pytest.mark.parametrize("name", ["all KV in memory", "over a link"])
def test_nothing_that_gives_the_whole_answer_is_below_the_bound(name: str) -> None:
    question = CASES[name]
    trials = Trials(question)
    bound = bound_of(trials).figure
    assert bound is not None
    exact = [one for one in question.space.everything() if one.loss == "none"]
    figures = [trials.of(one).figures["answer_s"] for one in exact]
    assert bound <= min(figures) * (1 + 1e-9) and bound > 0.5 * min(figures)


def test_parts_that_make_no_difference_stand_once_among_all_compositions() -> None:
    """Nothing lies in the cloud at first: what loads matters where KV is kept there."""
    question = asked("policies.decode=vllm", device="rtx-4060", model="llama-3.2-1b", link="50 Mbit/s")
    space, everything = question.space, question.space.everything()
    assert len(everything) == len({space.plain(one) for one in everything})
    assert space.plain(Composition(load="ferry")) == Composition()
    assert space.plain(Composition(keep="cloud", load="ferry", evict="cost")) == Composition(keep="cloud", load="ferry")
    figures = [tried(question, Composition(load=load)).figures for load in ("local-prefill", "ferry")]
    assert figures[0] == figures[1]
    keeps = [one for one in space.neighbours(Composition()) if one.keep == "memory-cloud"]
    assert {one.load for one in keeps} == {"local-prefill", "ferry"}


def test_a_use_of_three_turns_is_run_once() -> None:
    search = Search(CASES["all KV in memory"], lambda: None)
    search.first()
    runs = len(search.whole.all)
    assert runs and search.few is search.whole and not search.is_coarse
    search.refine()
    assert search.tried == (len(search.whole.all), len(search.whole.all))
    more = Search(question_of(device="rtx-4060", model="llama-3.2-3b", settings=["workload.turns=4"]), lambda: None)
    assert more.few is not more.whole


def test_a_leaner_composition_is_tried_where_memory_does_not_hold_one() -> None:
    """KV of 8.5 bits fits in memory if the prompt passes by 512 tokens, and neither does alone."""
    settings = [*FEW, "workload.spread=0.0", "policies.keep=drop"]
    of = {"device": "rtx-4060", "model": "llama-3.2-1b", "context": 2048, "any_quality": True}
    freely = question_of(settings=settings, **of)
    both, bits, chunk = (
        tried(freely, Composition(keep="drop", kv_bits=bits, prefill_chunk=chunk)).figures["memory_peak_bytes"]
        for bits, chunk in ((8.5, 512), (8.5, 2048), (16.0, 512))
    )
    assert both < min(bits, chunk)
    search = Search(question_of(settings=settings, memory=(both + min(bits, chunk)) / 2 / 0.98, **of), lambda: None)
    search.first()
    search.refine()
    found = search.whole.ranked()[0].composition
    assert (found.away, found.kv_bits, found.prefill_chunk) == (None, 8.5, 512)


def test_what_was_faster_over_few_turns_is_tried_over_all_before_it_is_named() -> None:
    question = question_of(device="rtx-4060", model="llama-3.2-3b", settings=["workload.turns=4", *FEW[1:]])
    search = Search(question, lambda: None)
    exact, coarse, part = Composition(), Composition(kv_bits=8.5), Composition(decode="specontext")
    search.whole.of(exact)
    own, *others = [search.few.of(one).figures["answer_s"] for one in (exact, coarse, part)]
    search._confirm()
    assert [one in search.whole for one in (coarse, part)] == [figure < own for figure in others]
    assert coarse in search.whole


TWELVE = ["workload.turns=12", *FEW[1:], "policies.decode=vllm", "policies.keep=memory"]


def over(metric: str) -> tuple[float, float]:
    """A figure over three turns, and over all twelve."""
    question = question_of(device="rtx-4060", model="llama-3.2-3b", settings=TWELVE)
    few, whole = (tried(question, Composition(), settings).figures for settings in ({"workload.turns": 3}, {}))
    return few[metric], whole[metric]


def test_a_limit_that_the_first_turns_keep_and_all_of_them_do_not_is_not_kept() -> None:
    """Conversations grow, and tokens come more slowly."""
    few_s, whole_s = over("tpot_s")
    assert few_s < whole_s
    pace = 2 / (few_s + whole_s)
    asked = {"device": "rtx-4060", "model": "llama-3.2-3b", "settings": [*TWELVE, "precision.kv_value_bytes=2.0"]}
    assert kvferry.advise(**asked, tokens_per_s=pace, refine=False).best.figures["tpot_s"] <= 1 / pace
    with pytest.raises(InputError, match="no composition keeps --tokens-per-s .* most that is possible is"):
        kvferry.advise(**asked, tokens_per_s=pace)


def test_a_limit_that_the_first_turns_miss_and_all_of_them_keep_is_kept() -> None:
    """The longest prompt comes early: of twelve waits it is the one that a 95th percentile leaves out."""
    few_s, whole_s = over("ttft_p95_s")
    assert few_s > whole_s
    limit_s = (few_s + whole_s) / 2
    found = kvferry.advise("rtx-4060", "llama-3.2-3b", settings=TWELVE, ttft=f"{limit_s} s")
    assert found.best.figures["ttft_p95_s"] <= limit_s


def test_compositions_meet_the_same_turns() -> None:
    question = CASES["all KV in memory"]
    kept, dropped = (tried(question, Composition(keep=keep)) for keep in ("memory", "drop"))
    assert kept.scenario is not None and dropped.scenario is not None
    assert kept.scenario.workload == dropped.scenario.workload
    assert kept.figures["requests"] == dropped.figures["requests"] == 3


def test_energy_of_an_answer_has_no_time_between_two() -> None:
    """A minute of thinking costs nothing."""
    slow, fast = (
        asked("policies.decode=vllm", f"workload.think={think}", device="rtx-4060", model="llama-3.2-3b", energy="1 MJ")
        for think in ("60 s", "1 s")
    )
    found = [tried(question, Composition()).figures["energy_j"] for question in (slow, fast)]
    assert found[0] == found[1] > 0


@pytest.mark.long
def test_what_is_slow_but_fits_is_chosen_where_what_was_fast_over_few_turns_does_not_fit() -> None:
    """Conversations outgrow memory: KV in the host's, all of it attended to, is slower and gives up nothing."""
    chunk = "budget.prefill_chunk=2048"
    settings = ["workload.turns=8", *FEW[1:], "workload.spread=0.0", "workload.turns_each=100", chunk]
    asked = {"device": "rtx-4060", "model": "llama-3.2-1b", "context": 2048}
    question = question_of(settings=settings, **asked)
    few, whole = (
        tried(question, Composition(), {"workload.turns": turns}).figures["memory_peak_bytes"] for turns in (3, 8)
    )
    # A fiftieth of what is granted is kept free.
    short = question_of(settings=settings, memory=(few + whole) / 2 / 0.98, **asked)
    search = Search(short, lambda: None)
    search.first()
    assert search.few.ranked()[0].composition.away is None
    search.refine()
    chosen = search.whole.ranked()[0].composition
    assert chosen.loss == "none" and chosen.away == "host"


def test_coarser_kv_in_memory_is_found_where_kv_of_16_bits_does_not_fit() -> None:
    """2,048 tokens of Llama 3.2 1B take 67 MB of KV at 16 bits and 36 MB at 8.5."""
    settings = [*FEW, "workload.spread=0.0", "budget.prefill_chunk=512", "policies.keep=drop"]
    asked = {"device": "rtx-4060", "model": "llama-3.2-1b", "context": 2048}
    all_bytes, coarse_bytes = (
        tried(question_of(settings=settings, **asked), Composition(keep="drop", kv_bits=bits)).figures[
            "memory_peak_bytes"
        ]
        for bits in (16.0, 8.5)
    )
    short = question_of(settings=settings, memory=(all_bytes + coarse_bytes) / 2 / 0.98, **asked)
    search = Search(short, lambda: None)
    search.first()
    search.refine()
    exact, *_ = search.whole.ranked()
    assert exact.composition.loss == "none" and exact.composition.away == "host"
    coarse = min(
        (one for one in search.whole.ranked() if one.composition.loss == "coarser"), key=lambda t: t.figures["answer_s"]
    )
    assert (coarse.composition.away, coarse.composition.kv_bits) == (None, 8.5)
    assert coarse.figures["answer_s"] < exact.figures["answer_s"]


def test_over_few_turns_the_bound_and_energy_are_of_these_turns() -> None:
    """Over all twelve turns, conversations are longer and answers take longer than over the first three."""
    asked = {"device": "rtx-4060", "model": "llama-3.2-3b", "settings": TWELVE}
    found = kvferry.advise(**asked, refine=False)
    (bound,) = (one.facts for one in found.statements if one.key == "e")
    assert found.coarse and bound["gap"] >= -1e-9
    few = tried(question_of(**asked), found.best.composition, {"workload.turns": 3, "workload.think": "0 s"})
    assert found.best.figures["answer_s"] == few.figures["answer_s"]
    assert found.best.figures["energy_j"] < kvferry.advise(**asked).best.figures["energy_j"]


def test_where_it_is_assumed_what_software_takes_another_runtime_is_the_first_to_know() -> None:
    """KV in the host's memory: on no runtime at all, each token of a small model takes far less."""
    question = asked(device="rtx-4060", model="llama-3.2-1b")
    away, inside = (
        tried(question, one) for one in (Composition(decode="flexgen", away="host", keep="drop"), Composition())
    )
    first, *others = sensitivities(question, [away], {})
    own_s = away.figures["answer_s"]
    assert first.number is RUNTIME and first.low < 0.7 * own_s and first.high == own_s
    assert {one.number for one in others} == set(NUMBERS)
    lines = next_measurement(question, [first, *others]).lines
    assert lines[0].startswith("the runtime: another known one, whole answer is ")
    assert (
        lines[1].startswith("kvferry advise --device rtx-4060 --model llama-3.2-1b ")
        and " --set runtime=ideal " in lines[1]
    )
    assert RUNTIME not in [one.number for one in sensitivities(question, [inside], {})]


def test_what_does_not_fit_with_another_number_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that just holds a selection on one runtime may hold none on another."""
    question = asked(device="rtx-4060", model="llama-3.2-1b")
    away = tried(question, Composition(decode="flexgen", away="host", keep="drop"))

    def full(*_: object) -> None:
        raise NoRoom("budget.memory: holds no selection")

    monkeypatch.setattr("kvferry.advice.measure.run_scenario", full)
    found = sensitivities(question, [away], {})
    assert all("does not fit" in one.overtaken[0] for one in found)
    lines = next_measurement(question, found).lines
    assert "inf" not in " ".join(lines) and any(
        "on ideal, flexgen on host + keep drop does not fit" in one for one in lines
    )


def test_another_number_tells_of_all_turns_what_a_run_of_them_has() -> None:
    """Conversations grow: over few turns another runtime has another share of the answer."""
    settings = ["workload.turns=8", *FEW[1:]]
    question = question_of(device="rtx-4060", model="llama-3.2-1b", settings=settings)
    one = Composition(decode="flexgen", away="host", keep="drop")
    low_s = tried(question, one, {"runtime": "ideal"}).figures["answer_s"]
    first, *_ = sensitivities(question, [tried(question, one)], {})
    assert first.number is RUNTIME and first.low == pytest.approx(low_s, rel=1e-9)


def test_what_else_may_help_overtakes_too() -> None:
    """With another rate of decoding, another way to be helped is ahead."""
    glasses = ["device.processors.cpu.flop_per_s=0.04 Tflop/s", "device.memory.capacity_bytes=4.5 GB"]
    of = {"device": "snapdragon-8-gen-1", "model": "llama-3.2-1b", "helper": "snapdragon-8-elite"}
    question = question_of(**of, link="300 Mbit/s", settings=glasses)
    ranked = [tried(question, Composition(helped=name)) for name in ("tokens-only", "cloud-only")]
    by_name = {one.number.name: one for one in sensitivities(question, sorted(ranked, key=Trials(question).rank), {})}
    assert any("cloud-only would be" in said for said in by_name["the rate of decoding"].overtaken)


def test_the_best_is_judged_beside_what_keeps_nothing_and_what_loads_nothing() -> None:
    space = question_of(device="rtx-4060", model="llama-3.2-1b", use="documents", link="1 Gbit/s").space
    best = Composition(load="ferry", keep="memory-cloud")
    assert counterparts(space, best) == [
        Composition(load="ferry", keep="drop"),
        Composition(load="local-prefill", keep="memory"),
    ]
    pinned = asked(
        "policies.keep=memory", "policies.load=ferry", device="rtx-4060", model="llama-3.2-1b", link="1 Gbit/s"
    )
    assert counterparts(pinned.space, Composition(load="ferry")) == []
    assert counterparts(space, Composition(keep="drop")) == []


def test_what_keeps_nothing_is_run_beside_the_best_though_the_search_passed_it_over() -> None:
    search = Search(asked("policies.decode=vllm", device="rtx-4060", model="llama-3.2-1b"), lambda: None)
    search.whole.of(Composition())
    compare(search, 0.0)
    assert len(search.whole.all) == 1, "it is late"
    compare(search, inf)
    assert [one.composition.keep for one in search.whole.all] == ["memory", "drop"]


def test_what_is_hopeless_is_so_beside_the_best_that_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory an answer takes a second, from the host's ten or twelve: hopeless, unless the first does not fit."""
    inside, away = Composition(), Composition(decode="flexgen", away="host", keep="flash")
    dropped = Composition(decode="flexgen", away="host", keep="drop")
    answers_s = {inside: 1.0, away: 10.0, dropped: 12.0}
    monkeypatch.setattr(
        "kvferry.advice.trial.tried",
        lambda question, one, settings: Trial(
            composition=one, scenario=None, outcome="done", figures={"answer_s": answers_s[one]}
        ),
    )
    search = Search(question_of(device="rtx-4060", model="llama-3.2-1b"), lambda: None)
    for one in answers_s:
        search.few.of(one)
    assert not search.climb.is_worth_it(inside, dropped)
    assert search.climb.is_worth_it(away, dropped)


def without_memory_for_16_bits(
    question: Question, one: Composition, settings: object, outcome: str = "out_of_memory"
) -> Trial:
    """A run in which KV of 16 bits does not fit in memory."""
    inside = one.away is None
    if inside and one.kv_bits == 16.0:
        return Trial(composition=one, scenario=None, outcome=outcome)
    return Trial(composition=one, scenario=None, outcome="done", figures={"answer_s": 1.0 if inside else 9.0})


def test_coarser_kv_in_memory_comes_before_kv_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found however soon the time is over."""
    monkeypatch.setattr("kvferry.advice.trial.tried", without_memory_for_16_bits)
    search = Search(question_of(device="rtx-4090", storage="nvme", model="llama-3.1-8b"), lambda: None)
    for part, trials in ((search.first, search.few), (search.refine, search.whole)):
        part()
        tried = [one.composition for one in trials.all]
        coarse = next(n for n, one in enumerate(tried) if one.away is None and one.kv_bits < 16.0)
        assert coarse < next(n for n, one in enumerate(tried) if one.away is not None)


def test_a_search_notes_that_the_time_was_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.advice.trial.tried", without_memory_for_16_bits)
    question = question_of(device="rtx-4090", storage="nvme", model="llama-3.1-8b")
    late, whole = Search(question, lambda: None, until_s=0.0), Search(question, lambda: None)
    late.first()
    assert late.climb.cut_short and not late.few.all
    for search in (late, whole):
        search.first()
        search.refine()
    assert not whole.climb.cut_short
    assert late.climb.cut_short


def test_where_nothing_ran_yet_that_gives_up_nothing_the_search_begins_with_what_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of all that keeps KV in memory nothing would, and there are dozens."""
    monkeypatch.setattr("kvferry.advice.trial.tried", without_memory_for_16_bits)
    search = Search(question_of(device="rtx-4090", storage="nvme", model="llama-3.1-8b"), lambda: None)
    search.few.of(Composition())
    search.refine()
    tried = [one.composition for one in search.whole.all]
    exact = [n for n, one in enumerate(tried) if one.away is not None and one.loss == "none"]
    assert exact[0] <= 4

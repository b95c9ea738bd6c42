"""The search beside all compositions, each of which is run; and the bound beneath them all."""

import pytest

import kvferry
from kvferry.advice.bound import bound_of
from kvferry.advice.composition import Composition
from kvferry.advice.question import Question, question_of
from kvferry.advice.search import Search
from kvferry.advice.trial import Trials, tried
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
    bound, trials = bound_of(question).figure, Trials(question)
    assert bound is not None
    exact = [one for one in question.space.everything() if one.loss == "none"]
    figures = [trials.of(one).figures["answer_s"] for one in exact]
    assert bound <= min(figures) * (1 + 1e-9) and bound > 0.5 * min(figures)


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
    with pytest.raises(InputError, match="without --tokens-per-s|least to give way"):
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

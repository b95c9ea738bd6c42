"""What an answer says, from trials made up by hand: figures decide each statement, and other figures say otherwise."""

import json
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from kvferry.advice.advise import reserve_s
from kvferry.advice.answer import Answer, not_over_all, runners_up
from kvferry.advice.bound import Bound
from kvferry.advice.choice import chosen, runners
from kvferry.advice.composition import Composition
from kvferry.advice.evidence import Evidence, left_out, of_source
from kvferry.advice.fit import Fit, why_none
from kvferry.advice.least_memory import least_memory
from kvferry.advice.measure import COPIES, NUMBERS, RUNTIME, Sensitivity, next_measurement
from kvferry.advice.question import Question, question_of
from kvferry.advice.today import today
from kvferry.advice.trial import Trial, tried
from kvferry.advice.worth import not_worth, worths
from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.sureness import Sureness
from kvferry.api.scenario import load
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError

FIT = Fit(40_960, False, 8e9, 6e9)


@pytest.fixture
def question() -> Question:
    return question_of(device="rtx-4060", model="qwen3-8b", storage="nvme")


def trial(answer_s: float, **of: object) -> Trial:
    return Trial(
        composition=Composition(**of),  # type: ignore[arg-type]
        scenario=None,
        outcome="done",
        figures={"answer_s": answer_s, "ttft_s": 1.0, "ttft_p95_s": 2.0, "tpot_s": 0.02, "memory_peak_bytes": 6e9},
    )


def test_equal_results_are_named_beside_the_best_and_others_run_up(question: Question) -> None:
    ranked = [trial(5.0), trial(5.0, evict="cost"), trial(5.5, keep="drop"), trial(5.5, decode="full-flash")]
    ranked += [trial(10.0, decode="flexgen", away="storage"), trial(11.0, keep="flash"), trial(12.0, keep="cloud")]
    assert [one.figures["answer_s"] for one in runners_up(ranked, "answer_s")] == [5.5, 10.0, 11.0]
    assert "as good here: evict cost" in chosen(question, ranked).lines
    first, second, _ = runners(question, ranked).lines
    assert "whole answer +10 %" in first and "flexgen on storage" in second and "2 times" in second


def test_a_part_that_gains_nothing_is_not_worth_it_and_one_that_gains_is(question: Question) -> None:
    """10 s without KV in memory are twice 5 s with it; 5.05 s on storage are one percent more."""
    ranked = [trial(5.0), trial(5.05, decode="flexgen", away="storage"), trial(10.0, keep="drop")]
    gains = {one.part.name: one.gain for one in worths(question, ranked)}
    assert gains["keeping KV in memory between turns"] == pytest.approx(1.0)
    assert gains["KV on storage while decoding"] == pytest.approx(-0.0099, abs=1e-4)
    said = " ".join(not_worth(question, ranked, (), FIT).lines)
    assert "no, costs +1 %: KV on storage while decoding (up to 40,960 tokens it fits in memory)" in said
    assert "yes: keeping KV in memory between turns (2 times as fast)" in said
    other = [trial(5.0, decode="flexgen", away="storage"), trial(10.0)]
    said_of = not_worth(question, other, (), FIT)
    assert "yes: KV on storage while decoding (2 times as fast)" in said_of.lines
    # The title is not said twice in one line.
    assert not any(line.startswith("worth it") for line in said_of.lines)


def test_a_part_is_judged_beside_what_gives_up_as_much(question: Question) -> None:
    """KV of 8 bits fits in memory, which KV of 16 does not: what gains is its bits, not where it is kept."""
    away = trial(100.0, decode="flexgen", away="storage", keep="flash")
    ranked = [away, trial(10.0, kv_bits=8.5), trial(90.0, decode="flexgen", away="storage", keep="flash", kv_bits=8.5)]
    gains = {one.part.name: one.gain for one in worths(question, ranked)}
    assert gains["KV of 8 bits"] == pytest.approx(9.0)
    assert gains["keeping KV in memory between turns"] == pytest.approx(8.0)
    assert gains["KV on storage while decoding"] == float("inf")
    said = not_worth(question, ranked, (), replace(FIT, in_memory=9_216))
    (alone,) = (line for line in said.lines if line.startswith("not compared, as nothing else ran that gives up as"))
    assert alone.partition(": ")[2].startswith("KV on storage while decoding")
    assert not any(line.startswith("yes") and "KV on storage" in line for line in said.lines)
    (untried,) = (line for line in said.lines if line.startswith("not tried: dynakv, "))
    assert "takes minutes" in untried
    assert said.facts["gains"]["KV on storage while decoding"] is None
    assert "keeping KV in memory between turns" not in [one.part.name for one in worths(question, ranked[:2])]


def test_keeping_kv_at_all_is_judged_before_each_way_to_keep_it(question: Question) -> None:
    """115 s without any KV kept, 21 s with it in memory and as much on flash: neither is needed beside the other."""
    ranked = [trial(21.0), trial(21.0, keep="memory-flash"), trial(21.1, keep="flash"), trial(115.5, keep="drop")]
    gains = {one.name: one.gain for one in worths(question, ranked)}
    assert gains["keeping KV between turns"] == pytest.approx(4.5)
    assert gains["keeping KV in memory between turns rather than another way"] == pytest.approx(0.1 / 21.0)
    said = not_worth(question, ranked, (), FIT).lines
    assert any(line.startswith("yes: keeping KV between turns (5.5 times as fast)") for line in said)
    even = [*ranked[:3], trial(21.0, keep="drop")]
    assert [one.name for one in worths(question, even)] == ["keeping KV between turns"], "no way gains what none does"


def test_where_help_is_best_its_gain_is_said_once(question: Question) -> None:
    ranked = [trial(10.0, helped="tokens-only"), trial(20.0), trial(30.0, keep="drop"), trial(40.0, keep="flash")]
    said = not_worth(question, ranked, (), FIT).lines
    assert said[0] == "yes: help of another machine (2 times as fast)" and "keeping" not in " ".join(said)


def test_a_gain_that_needs_coarser_kv_says_so(question: Question) -> None:
    away = {"decode": "flexgen", "away": "host", "keep": "flash"}
    ranked = [trial(22.0, **away), trial(4.0, kv_bits=8.5), trial(16.0, **away, kv_bits=8.5)]
    said = " ".join(not_worth(question, ranked, (), FIT).lines)
    assert "keeping KV in memory between turns rather than another way (4 times as fast, with KV of 8.5 bits)" in said


def test_nothing_is_said_of_parts_that_nothing_was_compared_with(question: Question) -> None:
    first, *_, last = not_worth(question, [trial(5.0)], (), FIT).lines
    assert first == "not known" and last.startswith("not compared, as too little ran or fitted: KV elsewhere while")
    assert "keeping KV between turns" in last and "loading" not in last and "help" not in last
    last = not_worth(question, [trial(5.0), trial(9.0, keep="drop")], (), FIT).lines[-1]
    assert "KV elsewhere while decoding" in last and "keeping KV between turns" not in last


FETCHED = {"found_in_cloud_share": 0.3, "answer_s": 11.4}


def test_what_comes_encoded_over_the_link_is_not_called_nothing() -> None:
    """11.4 s with KV that comes as integers, 16.1 s where all of it is computed."""
    question = question_of(device="rtx-4060", model="qwen3-8b", link="100 Mbit/s", use="documents")
    encoded, exact = trial(11.4, load="ferry"), trial(16.1)
    encoded = replace(encoded, figures={**encoded.figures, **FETCHED})
    said = runners(question, [encoded, exact]).lines
    assert said[-1] == "losing nothing: vllm + keep memory: whole answer 16.1 s (+41.2 %)"
    assert runners(question, [encoded]).lines[-1] == "losing nothing: none that was run"
    assert not any("losing nothing" in line for line in runners(question, [exact, trial(20.0, keep="drop")]).lines)
    assert (
        "gives up no more than the best over the link (KV error 6.81 %"
        in Bound("answer_s", 11.0).statement(encoded).lines[0]
    )
    assert "gives up nothing has" in Bound("answer_s", 11.0).statement(exact).lines[0]
    # What loads that share their time come to is no part of it.
    (said,) = Bound("answer_s", 11.0, by_parts=True).statement(encoded).lines
    assert said.startswith("whole answer, each load by itself: nothing on this device")


def test_with_one_run_nothing_is_said_of_others(question: Question) -> None:
    assert runners(question, [trial(5.0)]).lines == ("no other composition was tried",)
    (first, *_) = next_measurement(question, [Sensitivity(NUMBERS[0], 2.0, 0.5, 3.0, 6.0, ())]).lines
    assert first.endswith("; the choice stays the same")


def test_numbers_that_no_interval_allows_for_are_said_beside_the_intervals() -> None:
    """How fast copies between memories are is assumed of this device: another rate is tried of it alone."""
    asked = {"device": "rtx-4070-laptop", "model": "llama-3.2-1b", "settings": ["workload.turns=2"]}
    best = tried(question_of(**asked), Composition(decode="flexgen", away="host", keep="drop"))
    sureness = Sureness(best.figures, evidence={"decoding": {}, "not_known": {}})
    decoding, copies = (Sensitivity(number, 2.0, 0.5, 3.0, 6.0, ()) for number in (NUMBERS[0], COPIES))
    assert left_out(best, sureness, [decoding, copies]) == ["the copies between memories (assumed)"]
    assert left_out(best, sureness) == ["the copies between memories (assumed)"], "the time ran out before it was tried"
    assert left_out(best, sureness, [replace(copies, swing=0.0)]) == []
    of_runs = Sureness(best.figures, evidence={"runs": {}, "not_known": {}})
    assert left_out(best, of_runs, [copies]) == []
    found = Evidence({"answer_s": (4.0, 6.0)}, dict.fromkeys(best.figures, "assumed"), "80 % intervals", (), ("x",))
    assert found.statement(best).lines[-1] == "not in these intervals: x"


def test_flags_are_of_the_processor_that_figures_are_of() -> None:
    phone = question_of(device="oneplus-12", model="llama-3.2-1b")
    (said,) = today(phone, [trial(5.0)]).lines
    assert said.startswith("the figures are of the npu of oneplus-12, which no engine") and "llama-server" not in said
    said = next_measurement(phone, [Sensitivity(NUMBERS[0], 2.0, 0.5, 3.0, 6.0, ())]).lines[1]
    assert "llama-bench -m" not in said and "device.processors.npu.efficiency.gemv=N" in said
    on_cpu = question_of(device="oneplus-12", model="llama-3.2-1b", settings=["processor=cpu"])
    assert "-ngl 0 " in today(on_cpu, [trial(5.0)]).lines[0]


def test_storage_twice_as_slow_makes_tokens_that_read_all_kv_take_twice_as_long() -> None:
    """`nvme` has no rows of reads: its parts are what is slower."""
    (number,) = [one for one in NUMBERS if one.name == "the storage"]
    nano = "device={extends: jetson-orin-nano-8gb, name: nano, storage: nvme}"
    few = ["model=llama-3.2-1b", "workload.context=8Ki", "workload.output=3"]
    scenario = load("decode", [nano, "system=flexgen", *few])
    plain_s, slow_s = (
        metrics_for(one, run_scenario(one))["tpot_s"] for one in (scenario, number.slower(scenario, 2.0))
    )
    assert 1.7 < slow_s / plain_s < 2.1


def test_a_part_that_was_tried_over_few_turns_alone_is_judged_by_these(question: Question) -> None:
    few = [trial(1.0), trial(3.0, decode="flexgen", away="storage")]
    gains = {one.part.name: one.gain for one in worths(question, [trial(5.0)], few)}
    assert gains["KV on storage while decoding"] == pytest.approx(-2 / 3)


def test_what_is_faster_but_gives_up_more_is_named_over_few_turns_if_need_be(question: Question) -> None:
    best, coarse = trial(100.0, decode="flexgen", away="host"), trial(10.0, kv_bits=8.5)
    name = "vllm + keep memory + KV of 8.5 bits, coarser KV"
    line = f"giving up more: {name}: whole answer 10.0 s (-90 %)"
    slower = trial(150.0, decode="flexgen", away="storage")
    assert runners(question, [best, slower, coarse]).lines[1:] == (line,)
    assert runners(question, [best], [coarse, best]).lines[1:] == (f"{line}, over few turns, where the best has 100 s",)
    assert runners(question, [best, trial(101.0, kv_bits=8.5)]).lines[0].startswith("what else was tried is as good")
    assert not any("giving up" in said for said in runners(question, [best], [coarse]).lines)


def test_no_other_keeps_the_limits_only_where_there_are_some_and_all_were_tried() -> None:
    of = {"device": "rtx-4060", "model": "qwen3-8b"}
    plain, limited, short = question_of(**of), question_of(**of, ttft="2 s"), question_of(**of, memory="6 GB")
    best, few, every = trial(5.0), [Composition(), Composition(keep="drop")], plain.space.everything()
    said = lambda question, tried: runners(question, [best], (), tried).lines  # noqa: E731
    assert said(limited, every) == said(short, every) == ("no other composition keeps the limits",)
    assert said(limited, few) == ("the only other one that was tried does not keep the limits",)
    assert said(plain, few) == ("the only other one that was tried does not run here",)
    assert said(plain, every[:3]) == ("none of the 2 others that were tried runs here",)
    assert said(limited, few[:1]) == ("no other composition was tried",)


def test_an_answer_that_was_cut_short_says_of_how_many_it_tried_how_many(question: Question) -> None:
    best = trial(5.0)
    found = Answer(question=question, best=best, ranked=[best], tried=(12, 12))
    assert found.how_many == "12 compositions were run, all over all turns of the use"
    space = len(question.space.everything())
    said = replace(found, cut_short=True)
    assert said.how_many.startswith(f"12 compositions of {space:,} were run, all over all turns")
    assert said.how_many.endswith("; then the time was over") and json.loads(said.to_json())["cut_short"]


def test_runners_up_have_their_settings_in_json(question: Question) -> None:
    ranked = [trial(5.0), trial(9.0, keep="drop")]
    (runner,) = json.loads(Answer(question=question, best=ranked[0], ranked=ranked).to_json())["runners_up"]
    assert runner["settings"]["policies.keep"] == "drop"


def test_time_is_kept_for_writing_at_the_pace_of_the_work_so_far() -> None:
    """A machine on which a second of work takes four keeps four times as much, and never more than a part of all."""
    calm, busy = reserve_s(20.0, 20.0, 110.0), reserve_s(40.0, 10.0, 110.0)
    assert busy == 4 * calm and reserve_s(1e6, 1.0, 110.0) < 0.5 * 110.0
    assert reserve_s(40.0, 10.0, inf) == 0.0


def test_a_context_of_the_users_own_stands_behind_the_uses_words() -> None:
    of = {"device": "rtx-4060", "model": "qwen3-8b", "use": "documents"}
    assert question_of(**of).about.endswith("documents of 8Ki tokens")
    said = question_of(**of, context="32Ki", settings=["workload.turns=3"]).about
    assert said.endswith("; asked with context 32,768 tokens, turns 3")


def test_what_has_kv_elsewhere_fits_with_what_memory_alone_would_hold() -> None:
    assert "context is 65,536 tokens by memory alone (9,216 with KV" in str(Fit(65_536, False, 8e9, 6e9, 9_216))


def test_no_context_is_longer_than_the_model_was_trained_for() -> None:
    trained = Fit(2**20, True, 8e9, 6e9, None, 2_048)
    assert str(trained).endswith("the longest context is 2,048 tokens, which the model was trained for")
    assert trained.longest == 2_048
    assert str(Fit(9_216, False, 8e9, 6e9, None, 131_072)).endswith("the longest context is 9,216 tokens")


def test_energy_says_what_it_leaves_out_and_what_the_helper_takes(question: Question) -> None:
    best = trial(26.0, helped="tokens-only")
    best = replace(best, figures={**best.figures, "energy_j": 45.0, "cloud_energy_j": 172.0})
    assert "energy/answer 45.0 J without idle time and the helper 172 J" in chosen(question, [best]).lines[1]


def test_a_first_answer_says_that_later_turns_do_not_fit() -> None:
    few = not_over_all((3, 24))
    assert few == "judged over 3 of 24 turns, not known over all" and not_over_all((24, 24)) == ""
    short = Fit(5_120, False, 8e9, 6e9, longest_turn=19_712, few=few)
    said = str(short)
    assert said.startswith(
        "it does not fit over all turns: the longest has 19,712 tokens; the longest context is 5,120"
    )
    assert short.statement().facts["fits_over_all_turns"] is False
    for other in (replace(short, context=20_480), replace(short, is_least=True)):
        assert str(other).startswith("6.00 GB of 8.00 GB, judged over 3 of 24 turns, not known over all; ")
        assert other.statement().facts["fits_over_all_turns"] is None
    assert str(replace(short, context=20_480, few="")).startswith("it fits: ")


def test_a_choice_over_few_turns_says_so_where_it_would_say_that_it_keeps_limits() -> None:
    question = question_of(device="rtx-4060", model="qwen3-8b", ttft="3 s")
    few, whole = (chosen(question, [trial(5.0)], not_over_all((turns, 16))) for turns in (3, 16))
    assert few.lines[0] == "vllm + keep memory: judged over 3 of 16 turns, not known over all"
    assert few.lines[-1] == "--ttft: judged over 3 of 16 turns, not known over all"
    assert not few.facts["kept_over_all_turns"] and whole.facts["kept_over_all_turns"]
    assert whole.lines[0] == "vllm + keep memory" and whole.lines[-1] == "it keeps --ttft"
    found = Answer(question=question, best=trial(5.0), ranked=[trial(5.0)], judged_turns=(3, 16))
    assert json.loads(found.to_json())["judged"] == {"turns": 3, "turns_of_use": 16, "known_over_all": False}


def test_the_limit_that_is_missed_by_least_gives_way_first() -> None:
    """The first has 2 s and 50 tokens/s, the second 0.9 s and 10: twice the wait that is asked for, and four and a half
    times the time per token."""
    question = question_of(device="rtx-4060", model="qwen3-8b", ttft="1 s", tokens_per_s=45)
    slow, fast = trial(5.0), trial(4.0, keep="drop")
    fast = replace(fast, figures={**fast.figures, "ttft_p95_s": 0.9, "tpot_s": 0.1})
    first, second = str(why_none(question, [slow, fast])).split("; or ")
    assert first.startswith("no composition keeps --ttft 1 s and --tokens-per-s 45 together; drop --ttft: ")
    assert first.endswith(": the least that is possible is 2.00 s (vllm + keep memory), with --tokens-per-s 45")
    assert second == "drop --tokens-per-s: the most that is possible is 10 tokens/s (vllm + keep drop), with --ttft 1 s"


def test_memory_is_a_limit_that_can_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV lies in memory with 6 GB, of which 6.13 are granted as a part is kept free; without, there are 7 tokens/s."""
    asked = {"device": "rtx-4060", "model": "llama-3.2-3b", "memory": "4 GB", "tokens_per_s": 9}
    question, inside = question_of(**asked), trial(5.0)
    away = trial(9.0, decode="flexgen", away="host", keep="drop")
    away = replace(away, figures={**away.figures, "tpot_s": 1 / 7})
    monkeypatch.setattr("kvferry.advice.least_memory.tried", taking(6e9, inside))
    full = replace(inside, outcome="out_of_memory", figures={})
    first, second = str(why_none(question, [full, away])).split("; or ")
    assert first.startswith(
        "no composition keeps --memory 4.00 GB and --tokens-per-s 9 together; drop --tokens-per-s: "
    )
    most = "the most that is possible is 7 tokens/s (flexgen on host + keep drop), with --memory 4.00 GB"
    assert first.endswith(most)
    least = "drop --memory: the least that is possible is 6.13 GB (vllm + keep memory), with --tokens-per-s 9"
    assert second == least
    fast = question_of(**{**asked, "tokens_per_s": 60})
    assert "drop --memory" not in str(why_none(fast, [full, away])), "more memory would not do"


def taking(n_bytes: float, one: Trial) -> Any:
    """A run that takes 7 GB where it may, and does with so many."""

    def carried_out(question: Question, composition: Composition, settings: object) -> Trial:
        granted = inf if question.memory is None else 0.98 * float(question.memory.removesuffix(" B"))
        found = replace(one, composition=composition)
        return found if granted >= n_bytes else replace(found, outcome="out_of_memory", figures={})

    return carried_out


def test_the_least_memory_is_less_than_a_run_takes_that_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given all memory it takes 6 GB, and it runs with 5 GB, of which 5.11 have to be granted: 5.07 GB do not
    do, 5.6 do, and so on. Without time for it, 6.13 GB are known to do."""
    question = question_of(device="rtx-4060", model="llama-3.2-3b", memory="4 GB", tokens_per_s=9)
    monkeypatch.setattr("kvferry.advice.least_memory.tried", taking(5e9, trial(5.0)))
    full = [replace(trial(5.0), outcome="out_of_memory", figures={})]
    found = least_memory(question, full, lambda one: {}, lambda: True)
    assert str(found) == "the least that is possible is 5.11 GB (vllm + keep memory)"
    late = least_memory(question, full, lambda one: {}, lambda: False)
    assert str(late) == "no more than 6.13 GB is needed (vllm + keep memory)"


def test_what_ran_with_little_memory_and_missed_a_limit_is_tried_with_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV that memory has no room for is computed again: the run ends, and too late."""
    question = question_of(device="rtx-4060", model="llama-3.2-3b", memory="4 GB", ttft="1 s")
    slow, fast = trial(9.0), trial(5.0)
    fast = replace(fast, figures={**fast.figures, "ttft_p95_s": 0.9})
    monkeypatch.setattr("kvferry.advice.least_memory.tried", taking(6e9, fast))
    assert "drop --memory: the least that is possible is 6.13 GB" in str(why_none(question, [slow]))


def test_a_figure_names_the_other_limits_that_it_holds_under() -> None:
    slow = trial(5.0, keep="drop")
    of = {"device": "rtx-4060", "model": "qwen3-8b", "memory": "6.4 GB", "ttft": "1 s"}
    assert str(why_none(question_of(**of), [slow])).endswith(
        "keeps --ttft 1 s: the least that is possible is 2.00 s (vllm + keep drop), with --memory 6.40 GB"
    )
    both = question_of(**of, tokens_per_s=20)
    assert ", with --memory 6.40 GB and --tokens-per-s 20" in str(why_none(both, [slow]))


def test_the_least_that_is_possible_can_be_asked_for() -> None:
    """517.2 ms are more than 517 ms, and 44.19 tokens/s less than 44.2."""
    one = trial(5.0)
    one = replace(one, figures={**one.figures, "ttft_p95_s": 0.5172, "tpot_s": 1 / 44.19})
    for asked, least in (({"ttft": "1 ms"}, "518 ms"), ({"tokens_per_s": 90}, "44.1 tokens/s")):
        question = question_of(device="rtx-4060", model="qwen3-8b", **asked)
        assert f"possible is {least} (" in str(why_none(question, [one]))


def test_where_few_keep_a_limit_what_misses_it_runs_up_and_is_compared_with() -> None:
    """Up to three in all; 10 s without KV kept are twice 5 s with it, but break the limit on TTFT."""
    question = question_of(device="rtx-4060", model="qwen3-8b", ttft="2 s")
    late = [trial(10.0, keep="drop"), trial(10.001, keep="drop", evict="cost"), trial(11.0, decode="full-eager")]
    late += [trial(12.0, keep="flash"), trial(4.0, kv_bits=8.5)]
    late = [replace(one, figures={**one.figures, "ttft_p95_s": 3.0}) for one in late]
    best = [trial(5.0), trial(5.5, decode="full-flash")]
    said = runners(question, best, missing=late).lines
    assert [line.partition(":")[0] for line in said] == ["full-flash + keep memory", "misses --ttft", "misses --ttft"]
    assert said[1] == "misses --ttft: vllm + keep drop: whole answer 2 times" and "full-eager" in said[2]
    alone = runners(question, best[:1], missing=late).lines
    assert [line.startswith("misses") for line in alone] == [False, True, True, True]
    (keeping,) = [one for one in worths(question, best, (), late) if one.name == "keeping KV between turns"]
    assert keeping.gain == pytest.approx(1.0) and keeping.missed == "--ttft"
    lines = not_worth(question, best, (), FIT, late).lines
    assert any("keeping KV between turns (2 times as fast) beside what misses --ttft" in line for line in lines)
    (keeping,) = [one for one in worths(question, best, best, (), late) if one.name == "keeping KV between turns"]
    assert keeping.few and keeping.missed == "--ttft"
    lines = not_worth(question, best, best, FIT, (), late).lines
    assert any("(2 times as fast) over few turns beside what misses --ttft" in line for line in lines)
    kept = [*best, trial(20.0, keep="drop")]
    (keeping,) = [one for one in worths(question, kept, (), late) if one.name == "keeping KV between turns"]
    assert keeping.gain == pytest.approx(3.0) and not keeping.missed, "what keeps the limits comes first"


def test_sources_are_marked_by_their_own_words() -> None:
    assert of_source("assumed: Linux and desktop") == "assumed"
    assert of_source("engine llama.cpp: gemv: fitted on all rows") == "fitted"
    assert of_source("data sheet, dense FP16") == "data sheet"
    assert of_source("NVIDIA data sheet; 152 GB/s measured elsewhere") == "data sheet"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"context": 9_000_000}, "context: makes .* tokens in the longest turn; at most 10,000,000 will do"),
        ({"tokens_per_s": "nan"}, "tokens_per_s: 'nan' is not a number above 0"),
        ({"ttft": "nan s"}, "ttft: "),
        ({"storage": "foo"}, "^storage: unknown storage 'foo'"),
        ({"weights": "q9"}, "^weights: no weight format is called 'q9'"),
        ({"link": "fasst"}, "^link: no trace is called 'fasst'"),
        ({"settings": ["policies.decode=nope"]}, "^policies.decode: unknown decode system 'nope'"),
        ({"link": "0 bit/s"}, "^link: '0 bit/s' is out of range"),
    ],
)
def test_what_no_answer_can_be_about_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        question_of(device="rtx-4060", model="llama-3.1-8b", **asked)


def test_commands_of_a_measurement_can_be_typed(question: Question) -> None:
    """Nothing stands in them for what is known: the model's file, the question, other runtimes."""
    of = lambda number, **more: next_measurement(question, [Sensitivity(number, 2.0, 0.5, 3.0, 6.0, (), **more)])  # noqa: E731
    asked = "kvferry advise --device rtx-4060 --model qwen3-8b --use chat --storage nvme"
    assert of(NUMBERS[0]).lines[1].startswith("llama-bench -m qwen3-8b.gguf -p 0 ")
    assert of(COPIES).lines[1].endswith(f" && {asked} --set device.memory.copy_bytes_per_s='N GB/s'")
    assert of(RUNTIME, others=("ideal", "mlx")).lines[1].startswith(f"{asked} --set runtime=ideal  # or mlx, the one ")


def test_the_number_that_changes_the_choice_is_measured_first(question: Question) -> None:
    decoding, prefill, *_ = NUMBERS
    still = Sensitivity(decoding, 2.0, 0.5, 3.0, 6.0, ())
    turns = Sensitivity(prefill, 2.0, 0.1, 4.5, 5.5, ("2 times as slow, x would be 8 % better",))
    lines = next_measurement(question, [turns, still]).lines
    assert lines[0].startswith("the rate of prefill: 2 times") and lines[1] == turns.overtaken[0]
    assert "kvferry calibrate --output my-device --base rtx-4060 --from llama-bench.json" in lines[2]
    assert lines[-1] == "not tried, as the time ran out: the storage, the link, the copies between memories"
    nothing = next_measurement(question, [replace(still, swing=0.0, number=one) for one in NUMBERS])
    assert nothing.lines == ("no number that a measurement would give changes the answer",)
    (late,) = next_measurement(question, []).lines
    assert late.startswith("not tried, as the time ran out: the rate of decoding, ")

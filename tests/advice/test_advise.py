"""Advice from end to end: a question becomes a choice, the scenario of which runs to the same figures."""

from pathlib import Path

import pytest

import kvferry
from kvferry.advice.composition import Composition, coarse_loads
from kvferry.advice.fit import _smaller_models
from kvferry.advice.question import question_of
from kvferry.advice.screen import screen
from kvferry.specs.errors import InputError

SMALL = {"device": "rtx-4060", "model": "qwen3-8b", "settings": ["workload.turns=4", "policies.decode=vllm"]}


def test_the_best_composition_is_written_as_a_scenario_that_runs_to_its_figures(tmp_path: Path) -> None:
    found = kvferry.advise(**SMALL, refine=False, output=tmp_path)
    assert found.coarse and found.best.composition.loss == "none"
    again = kvferry.run(tmp_path / "scenario.yaml", intervals=False)
    assert again.metrics["ttft_p95_s"] == found.best.figures["ttft_p95_s"]
    assert again.metrics["tpot_s"] == found.best.figures["tpot_s"]


def test_a_run_that_finds_its_prompt_in_memory_is_better_than_one_that_drops_it() -> None:
    found = kvferry.advise(**SMALL, limit_s=None)
    kept = {one.composition.keep: one for one in found.ranked if one.composition.decode == "vllm"}
    assert found.best.composition.keep == "memory"
    assert kept["memory"].figures["answer_s"] < kept["drop"].figures["answer_s"]
    assert not found.coarse and [one.key for one in found.statements][:3] == ["a", "b", "c"]


def test_compositions_say_what_they_give_up() -> None:
    assert {"kivi", "cachegen"} <= coarse_loads() and not coarse_loads() & {"ferry", "cachegen-best-level"}
    assert Composition(decode="vllm").loss == "none"
    assert Composition(decode="vllm", kv_bits=8.5).loss == "coarser"
    assert Composition(decode="kvswap", away="storage").loss == "part"
    assert Composition(decode="flexgen", away="storage").loss == "none"
    assert [Composition(helped=one).loss for one in ("pd-device", "tokens-only")] == ["part", "none"]


def test_limits_that_contradict_each_other_are_named_with_the_least_that_is_possible() -> None:
    """The prompt takes a quarter of a second; without that limit 44.5 tokens come in one."""
    with pytest.raises(InputError) as error:
        kvferry.advise(**SMALL, refine=False, ttft="0.15 s", tokens_per_s=44.5)
    began, _, rest = str(error.value).partition(
        ", over 3 of 4 turns) keeps --ttft 0.15 s and --tokens-per-s 44.5 together; "
    )
    assert began.startswith("none of the ") and rest.startswith("drop --")
    assert "possible is" in str(error.value) and "\n" not in str(error.value)


def test_time_that_suffices_for_nothing_is_said() -> None:
    with pytest.raises(InputError, match=r"^limit: is over before one composition was run"):
        kvferry.advise(**SMALL, limit_s=1e-9)


def test_a_model_that_fits_nowhere_is_answered_with_what_would_fit() -> None:
    with pytest.raises(InputError, match="fits nowhere on rtx-4060.*what would fit: .*qwen3-8b"):
        kvferry.advise("rtx-4060", "qwen3-32b", refine=False)


def test_what_would_fit_holds_the_longest_turn_and_is_smaller() -> None:
    """Gemma 3 12B lies in a tablet's memory, and the KV of an agent's turns does not: it would not do, nor would a
    larger model."""
    question = question_of(device="kirin-tablet", model="gemma-3-12b", use="agent", storage="ufs-3.1")
    (smaller,) = _smaller_models(question)
    assert smaller.startswith("smaller models, such as ") and "12b" not in smaller and "phi-4 " not in smaller
    assert _smaller_models(question_of(device="kirin-tablet", model="llama-3.2-1b")) != [smaller]


def test_a_budget_that_holds_no_composition_is_answered_with_the_least_that_would() -> None:
    with pytest.raises(InputError, match=r"memory: .* holds none of the .*; the least that is possible is \d") as error:
        kvferry.advise(**SMALL, refine=False, memory="3 GB")
    least = str(error.value).partition("possible is ")[2].partition(" (")[0]
    assert kvferry.advise(**SMALL, refine=False, memory=least).best.composition.name in str(error.value)


def test_a_device_without_storage_is_not_asked_for_kv_on_storage() -> None:
    with pytest.raises(InputError, match="device.storage: is missing.*--storage nvme "):
        kvferry.advise("rtx-4060", "qwen3-8b", refine=False, settings=["workload.turns=4", "policies.keep=flash"])


def test_a_use_with_a_slip_is_told_with_its_line(tmp_path: Path) -> None:
    use = tmp_path / "mine.yaml"
    use.write_text("name: mine\nabout: my own\nworkload: {kind: session, turn: 3}\nbest: anwser_s\n")
    with pytest.raises(InputError) as error:
        kvferry.advise("rtx-4060", "qwen3-8b", use=str(use))
    assert "mine.yaml:3: workload.turn: unknown key" in str(error.value) and "did you mean 'turns'?" in str(error.value)
    assert "mine.yaml:4: best: 'anwser_s' is none of answer_s" in str(error.value)
    with pytest.raises(InputError, match=r"use: unknown use 'chatt'.* Did you mean 'chat'\?"):
        kvferry.advise("rtx-4060", "qwen3-8b", use="chatt")


@pytest.mark.long
def test_every_statement_changes_with_the_case_and_all_stand_on_one_screen() -> None:
    """Memory for all; memory too short for KV; contexts over a link, with what a model loses."""
    turns = ["workload.turns=3", "workload.decoded=3", "workload.contexts=2"]
    small, large = ({"device": "rtx-4060", "model": model} for model in ("llama-3.2-1b", "llama-3.2-3b"))
    cases = (
        {**small, "settings": turns},
        {**large, "settings": turns, "memory": "2.75 GB", "storage": "nvme", "context": 2048},
        {"device": "apple-m3", "model": "qwen3-4b", "link": "200 Mbit/s", "use": "documents", "settings": turns},
    )
    answers = [kvferry.advise(**one, refine=False, limit_s=None) for one in cases]
    said = [{one.key: one.lines for one in found.statements} for found in answers]
    assert all(set(one) == set("abcdefghi") for one in said)
    assert {key for key in "abcdefghi" if len({one[key] for one in said}) < len(cases)} == set()
    assert max(len(list(screen(found, 120))) for found in answers) <= 40

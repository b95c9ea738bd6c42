"""How to have a composition today: commands of engines, their contexts and files."""

import shlex
import subprocess
from dataclasses import replace

import pytest

from kvferry.advice.composition import Composition
from kvferry.advice.conversion import ModelFile
from kvferry.advice.fit import Fit
from kvferry.advice.question import Question, question_of
from kvferry.advice.today import engines, today
from kvferry.advice.trial import Trial

FIT = Fit(40_960, False, 8e9, 6e9)


@pytest.fixture
def question() -> Question:
    return question_of(device="rtx-4060", model="qwen3-8b", storage="nvme")


def trial(answer_s: float, **of: object) -> Trial:
    figures = {"answer_s": answer_s, "ttft_s": 1.0, "tpot_s": 0.02, "memory_peak_bytes": 6e9}
    return Trial(composition=Composition(**of), scenario=None, outcome="done", figures=figures)  # type: ignore[arg-type]


def test_a_command_that_two_compositions_share_is_said_to_be_one(question: Question) -> None:
    line, same = today(question, [trial(5.0), trial(6.8, decode="full-flash")]).lines
    assert line.startswith("llama-server") and same.startswith("full-flash + keep memory: the same command")
    assert len(today(question, [trial(5.0), trial(6.8, keep="drop")]).lines) == 1


def test_no_command_has_a_longer_context_than_fits(question: Question) -> None:
    longest = question.turns.longest.prompt + question.turns.longest.output
    asked = lambda fit: today(question, [trial(5.0)], fit)  # noqa: E731
    whole, exact = asked(replace(FIT, context=2 * longest)), asked(replace(FIT, context=longest))
    assert whole.facts["context"] % 256 == 0 and longest <= whole.facts["context"] < longest + 256
    assert exact.facts["context"] == longest and f" -c {longest}" in exact.lines[0]
    line, short = asked(replace(FIT, context=1024, few="judged over 3 of 16 turns")).lines
    assert " -c 1024" in line and short == f"this holds 1,024 tokens, and the longest turn has {longest:,}"


def test_an_engine_gives_its_flags_or_what_it_lacks(question: Question) -> None:
    assert today(question, [trial(5.0)]).lines[0].startswith("llama-server -m qwen3-8b.gguf -ngl 99 -c ")
    coarse = today(question, [trial(5.0, kv_bits=8.5, prefill_chunk=512)]).lines[0]
    assert "-fa on -ctk q8_0 -ctv q8_0" in coarse and coarse.endswith(" -ub 512")
    lacking, nearest = today(question, [trial(5.0, decode="kvswap", away="storage"), trial(6.0)]).lines
    assert "no engine has kvswap" in lacking and "KVSwap's prototype" in lacking
    # A prototype has what no engine has.
    flexgen = today(question, [trial(5.0, decode="flexgen", away="storage"), trial(6.0)]).lines[0]
    assert flexgen == "no engine has flexgen as it is here: FlexGen's prototype"
    assert nearest.startswith("nearest that one has (+20 %): llama-server")
    both = engines()["vllm"].line(Composition(keep="memory-flash", load="cachegen"), ModelFile("m", "m.gguf"), 4096)
    connector = """--kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'"""
    disk = "LMCACHE_LOCAL_DISK=file:///DIR/ LMCACHE_MAX_LOCAL_DISK_SIZE=GIB"
    remote = "LMCACHE_REMOTE_URL=lm://HOST:PORT LMCACHE_REMOTE_SERDE=cachegen"
    # Once, though both parts need it; variables in front, so that a shell takes the line.
    assert both == f"{disk} {remote} vllm serve m --max-model-len 4096 {connector}"


def test_where_some_engine_has_each_part_it_is_said_which_lacks_which(question: Question) -> None:
    """llama.cpp, the engine of the figures, keeps nothing in a cloud, and vLLM has no eager attention."""
    said, line, *_ = today(question, [trial(5.0, keep="cloud")]).lines
    assert said == "llama.cpp, which the figures are of, lacks keep cloud; vllm has all of it"
    assert "vllm serve " in line and "LMCacheConnector" in line
    found = today(question, [trial(5.0, keep="cloud", decode="full-eager")])
    assert found.lines[0] == (
        "no engine has all of it: llama.cpp lacks keep cloud; mlx lacks full-eager and keep cloud; "
        "vllm lacks full-eager"
    )
    assert found.facts["lacking"] == ["keep cloud"]


def test_vllm_is_told_the_models_id_and_says_what_its_kv_has_instead() -> None:
    asked = question_of(device="rtx-4060", model="qwen3-8b", settings=["engine=vllm"])
    line, weights, fp8 = today(asked, [trial(5.0, kv_bits=8.5)]).lines
    assert line.startswith("vllm serve Qwen/Qwen3-8B --max-model-len ")
    assert weights.endswith("Qwen/Qwen3-8B has the model's own: name an id or a folder that is quantised so")
    assert fp8 == "vllm has fp8 of 8 bits in place of KV of 8.5 bits"
    whole = question_of(device="rtx-4090", model="llama-3.2-1b", weights="bf16", settings=["engine=vllm"])
    assert len(today(whole, [trial(5.0)]).lines) == 1


def test_turns_of_a_model_with_windows_go_on_behind_all_of_its_kv() -> None:
    llama = engines()["llama.cpp"]
    gemma = ModelFile("gemma-3-12b", "gemma-3-12b.gguf")
    assert llama.line(Composition(), gemma, 4096, windows=True).endswith("-c 4096 -ub 2048 --swa-full")
    assert "--swa-full" not in llama.line(Composition(keep="drop"), gemma, 4096, windows=True)
    asked = question_of(device="rtx-4090", model="gemma-3-12b", use="chat", link="none")
    assert "--swa-full" in today(asked, [trial(5.0)]).lines[0]


def test_a_model_by_its_file_is_one_word_of_a_shell() -> None:
    hostile = "./x; touch pwned #.gguf"
    line = engines()["llama.cpp"].line(Composition(), ModelFile(hostile, hostile), 4096)
    assert shlex.split(line) == ["llama-server", "-m", hostile, "-ngl", "99", "-c", "4096", "-ub", "2048"]
    # Folding would make a space of a line end, and a terminal obey the rest.
    name = "it's\n\x1b[31m.gguf"
    odd = engines()["llama.cpp"].line(Composition(), ModelFile(name, name), 4096)
    assert r" -m $'it\'s\x0a\x1b[31m.gguf' " in odd
    read_back = subprocess.run(["bash", "-c", r"printf %s $'it\'s\x0a\x1b[31m.gguf'"], capture_output=True, text=True)
    assert read_back.stdout == "it's\n\x1b[31m.gguf"

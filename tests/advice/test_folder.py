"""The folder of an answer, Ctrl-C, the interview, and who wins on a map."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from pydantic_core import SchemaError

import kvferry
from kvferry.advice import advise as advised
from kvferry.advice import search as search_of
from kvferry.advice.answer import Answer
from kvferry.advice.composition import Composition
from kvferry.advice.fit import Fit
from kvferry.advice.folder import _not_run, write_answer, write_scenario
from kvferry.advice.page import page
from kvferry.advice.pictures import NOT_RUN, _limits, cells_of
from kvferry.advice.question import Question, question_of
from kvferry.advice.study import CONTEXT, Map, contexts_of, every_other, rule_of, run_file, study_file, winner
from kvferry.advice.trial import Trial, tried
from kvferry.advice.trials import Trials
from kvferry.analysis.style import new_figure
from kvferry.cli import advise as commands
from kvferry.cli import interview as interviews
from kvferry.specs.errors import Terminated
from kvferry.system import signals

PINNED = ["workload.turns=4", "policies.decode=vllm", "policies.evict=lru", "workload.decoded=2"]


def question(**of: object) -> Question:
    return question_of(device="rtx-4060", model="qwen3-8b", **of)  # type: ignore[arg-type]


def row(name: str, context: int, memory: float, answer_s: float, outcome: str = "done") -> dict[str, object]:
    found = {"workload.context": context, "budget.memory_bytes": memory, "answer_s": answer_s, "ttft_p95_s": answer_s}
    return {"name": name, "outcome": outcome, **found}


def test_who_wins_gives_up_less_then_keeps_limits_then_is_faster() -> None:
    rows = [row("exact", 1024, 4e9, 5.0), row("sparse", 1024, 4e9, 1.0), row("slow", 1024, 4e9, 9.0)]
    losses = {"exact": 0, "sparse": 2, "slow": 0}
    assert winner(question(), pd.DataFrame(rows), losses) == "exact"
    assert winner(question(any_quality=True), pd.DataFrame(rows), losses) == "sparse"
    assert winner(question(ttft="2 s"), pd.DataFrame(rows), losses) == "sparse"
    assert winner(question(ttft="0.5 s"), pd.DataFrame(rows), losses) is None, "nothing wins that misses the limit"
    full = [{**one, "outcome": "out_of_memory"} for one in rows]
    assert winner(question(), pd.DataFrame(full), losses) is None
    even = pd.DataFrame([row("more parts", 1024, 4e9, 4.9999), row("fewer parts", 1024, 4e9, 5.0)])
    assert winner(question(), even, {"fewer parts": 0, "more parts": 0}) == "fewer parts"


def test_a_map_has_the_winner_of_each_cell() -> None:
    rows = [row("a", 1024, 4e9, 1.0), row("b", 1024, 4e9, 2.0), row("a", 1024, 8e9, 2.0), row("b", 1024, 8e9, 1.0)]
    rows += [row("a", 2048, 4e9, 1.0, "out_of_memory"), row("b", 2048, 4e9, 2.0), row("a", 2048, 8e9, 1.0)]
    # Where the time ran out nothing wins, and nothing is said not to fit.
    assert (
        cells_of(question(), Map("", "budget.memory_bytes", pd.DataFrame(rows)), {"a": 0, "b": 0})[2][1][1] == NOT_RUN
    )
    rows += [row("b", 2048, 8e9, 1.0, "out_of_memory")]
    drawn = Map("map-memory", "budget.memory_bytes", pd.DataFrame(rows))
    contexts, memories, table = cells_of(question(), drawn, {"a": 0, "b": 0})
    assert (contexts, memories) == ([1024, 2048], [4e9, 8e9])
    assert table == [["a", "b"], ["b", "a"]]


def test_contexts_go_beyond_what_fits_and_maps_take_every_other() -> None:
    found = contexts_of(question(), Fit(9_216, False, 8e9, 6e9))
    assert found == [1024, 2048, 4096, 8192, 16384, 32768]
    assert every_other(found) == [2048, 8192, 32768] and every_other(found[1:]) == [2048, 8192, 32768]


@pytest.mark.long
def test_the_folder_has_the_study_its_pictures_and_a_page(tmp_path: Path) -> None:
    found = kvferry.advise(
        "rtx-4060", "qwen3-8b", "1 Gbit/s", output=tmp_path, settings=PINNED, limit_s=None, executor="in-process"
    )
    assert [one.key for one in found.statements] == list("abcdefghi")
    said = json.loads((tmp_path / "advice.json").read_text())
    assert said["composition"] == found.best.composition.name and "bound" in said["statements"]["e"]
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 5 and "longest context" in page
    again = kvferry.sweep(tmp_path / "contexts.yaml", output=tmp_path / "contexts", plots=False)
    assert again.summary["new"] == 0, "the study in the folder is the one that was run"


@pytest.mark.long
def test_a_folder_shows_no_picture_of_an_earlier_answer(tmp_path: Path) -> None:
    """A long answer draws contexts and memory; a quick one to another question nothing, and neither stays."""
    few = {"output": tmp_path, "settings": [*PINNED, "workload.context=512"], "executor": "in-process"}
    kvferry.advise("rtx-4060", "llama-3.2-1b", **few, limit_s=None)
    assert (tmp_path / "report.html").read_text().count("data:image/png") == 4
    before = {path.name for path in tmp_path.iterdir()}
    assert {"contexts", "contexts.yaml", "map-memory", "map-memory.yaml", "plots"} <= before
    (tmp_path / "plots" / "mine.png").write_bytes(b"")
    (tmp_path / "notes.yaml").write_text("")
    kvferry.advise("rtx-4060", "qwen3-8b", **few, refine=False)
    assert "data:image/png" not in (tmp_path / "report.html").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {
        *("advice.json", "notes.yaml", "plots", "report.html", "scenario.yaml")
    }
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["mine.png"], "what others put there stays"


def test_points_of_an_earlier_study_are_not_among_those_of_this_one(tmp_path: Path) -> None:
    of = [tried(question(settings=PINNED), Composition())]
    write_scenario(of[0], tmp_path)
    for contexts in ([512], [256]):
        file = study_file(question(settings=PINNED), of, {CONTEXT: contexts}, tmp_path, "contexts")
        points = run_file(file, lambda done, n: None, lambda: True, "in-process")
        assert list(points["workload.context"]) == contexts


def test_a_folder_is_named_by_use_device_and_model_and_another_question_takes_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"device": "rtx-4060", "model": "llama-3.2-1b"}
    first, second = question_of(**asked), question_of(**asked, ttft="2 s")
    folders = []
    for one in (first, second, first, second):
        folders.append(commands._folder(one, asked))
        best = Trial(composition=Composition(), scenario=None, outcome="done", figures={"answer_s": 1.0})
        write_answer(Answer(question=one, best=best, ranked=[best]), folders[-1])
    assert [str(one) for one in folders] == [
        f"runs/advice-chat-rtx-4060-llama-3.2-1b{number}" for number in ("", "-2", "", "-2")
    ]
    files = {"device": "my.device.yaml", "model": "models/tiny-1.5b.gguf", "use": "mine.yml"}
    assert commands._folder(first, files).name == "advice-mine-my.device-tiny-1.5b"


@pytest.mark.parametrize(("ends", "number"), [(KeyboardInterrupt(), 2), (Terminated(143), 15)])
def test_a_signal_keeps_the_best_so_far(
    ends: BaseException, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: search_of.Search) -> None:
        raise ends

    monkeypatch.setattr(search_of.Search, "refine", stopped)
    found = kvferry.advise("rtx-4060", "qwen3-8b", output=tmp_path, settings=PINNED)
    assert found.interrupted == "while it was refined" and found.coarse and found.ended_by == number
    assert (tmp_path / "scenario.yaml").exists()

    def before_anything(self: Trials, one: object) -> None:
        raise ends

    monkeypatch.setattr(Trials, "of", before_anything)
    with pytest.raises(type(ends)):
        kvferry.advise("rtx-4060", "qwen3-8b", settings=PINNED)


def test_sigterm_ends_the_command_with_the_best_so_far(tmp_path: Path) -> None:
    command = ("advise", "--device", "rtx-4060", "--model", "qwen3-8b", "--output", str(tmp_path / "out"))
    program = "import sys; from kvferry.cli import main as command; sys.argv[0] = 'kvferry'; command.main()"
    settings = [word for one in PINNED for word in ("--set", one)]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command, *settings], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("first answer"):
            process.terminate()
            break
    out, said = process.communicate(timeout=120)
    assert process.returncode == 143 and "this is the best so far" in said, said
    assert out and (tmp_path / "out" / "advice.json").exists()


def test_ctrl_c_while_energy_is_counted_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*of: object) -> dict[str, float]:
        raise KeyboardInterrupt

    monkeypatch.setattr(advised, "energy_of", stopped)
    found = kvferry.advise("rtx-4060", "qwen3-8b", settings=PINNED, refine=False)
    assert found.interrupted == "while its energy was counted" and found.best is not None


def test_ctrl_c_before_any_statement_is_run_for_leaves_the_choice_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*of: object) -> Fit:
        raise KeyboardInterrupt

    monkeypatch.setattr(advised, "fit_of", stopped)
    found = kvferry.advise("rtx-4060", "qwen3-8b", settings=PINNED, refine=False)
    assert found.interrupted == "while it was explained"
    assert [one.key for one in found.statements] == ["b", "c", "i"]


def test_an_error_that_compiled_code_makes_of_ctrl_c_keeps_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: search_of.Search) -> None:
        raise SchemaError("Error building a validator: KeyboardInterrupt")

    monkeypatch.setattr(search_of.Search, "refine", broken)
    with pytest.raises(SchemaError):
        kvferry.advise("rtx-4060", "qwen3-8b", settings=PINNED)
    monkeypatch.setattr(signals, "_came", [signal.SIGINT])
    found = kvferry.advise("rtx-4060", "qwen3-8b", settings=PINNED)
    assert found.interrupted == "while it was refined" and signals.last() is None


def test_six_questions_each_with_a_default_and_again_where_an_answer_will_not_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    said = iter(["rtx-9999", "rtx-4090"])

    def prompt(what: str, default: str, err: bool) -> str:
        asked.append(what)
        return next(said, default)

    monkeypatch.setattr(interviews.typer, "prompt", prompt)
    assert interviews.interview() == {"device": "rtx-4090", "model": "llama-3.1-8b", "use": "chat"}
    assert len(set(asked)) == 6 and len(asked) == 7
    assert "unknown device 'rtx-9999'" in capsys.readouterr().err


def test_a_link_is_asked_for_again_where_it_will_not_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = iter(["fasst", "100 Mbit", "0 bit/s", "100 Mbit/s"])

    def prompt(what: str, default: str, err: bool) -> str:
        return next(said) if what.startswith("link") else default

    monkeypatch.setattr(interviews.typer, "prompt", prompt)
    assert interviews.interview()["link"] == "100 Mbit/s"
    told = capsys.readouterr().err
    assert "no trace is called 'fasst'" in told and "did you mean '100 Mbit/s'?" in told and "out of range" in told


def test_ctrl_c_at_a_question_ends_the_command_as_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def prompt(what: str, default: str, err: bool) -> str:
        raise interviews.typer.Abort

    monkeypatch.setattr(interviews.typer, "prompt", prompt)
    with pytest.raises(interviews.typer.Exit) as left:
        interviews.interview()
    assert left.value.exit_code == 130


def test_nothing_is_asked_where_input_is_no_terminal(call: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = call("advise", "--model", "qwen3-8b")
    assert (code, out) == (2, "") and "--device: is missing" in err


def test_a_key_of_a_scenario_is_not_called_an_option(call: Callable[..., tuple[int, str, str]]) -> None:
    asked = ("--device", "rtx-4060", "--model", "llama-3.2-1b", "--set", "policies.keep=flash", "--quick", "--json")
    code, out, err = call("advise", *asked)
    assert (code, out) == (2, "") and "kvferry: device.storage: is missing" in err
    assert "kvferry: --storage: unknown storage 'foo'" in call("advise", *asked, "--storage", "foo")[2]


def test_a_limit_is_a_time_and_the_command_for_longer_can_be_pasted(call: Callable[..., tuple[int, str, str]]) -> None:
    of = ("advise", "--device", "rtx-4060", "--model", "qwen3-8b")
    assert "kvferry: --limit: '0 s' is not above 0" in call(*of, "--limit", "0 s")[2]
    assert "kvferry: --limit: '3 GB' is a size, not a time" in call(*of, "--limit", "3 GB")[2]
    asked = {"device": "rtx-4060", "tokens_per_s": 8.0}
    line = "kvferry advise --device rtx-4060 --tokens-per-s 8 --set 'workload.think=1 s' --any-quality"
    flags, settings = ["--any-quality"], ["workload.think=1 s"]
    assert commands._longer(asked, flags, settings, None) == line
    assert commands._longer(asked, flags, settings, {"limit_s": 200.0}) == f"{line} --limit 600s"


def test_ctrl_c_before_anything_ran_is_said_in_one_line(
    call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: Trials, one: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trials, "of", stopped)
    code, out, err = call("advise", "--device", "rtx-4060", "--model", "qwen3-8b", "--quick", "--json")
    assert (code, out, err) == (130, "", "interrupted; nothing had run\n")


def test_a_map_says_what_wins_on_it() -> None:
    said = rule_of(question(), False)
    assert said.startswith("wins: least whole answer among those that give up least of the answer; ")
    assert said.endswith("; full attention over KV of 8 bits is left out")
    coarse = rule_of(question(any_quality=True), True)
    assert coarse.endswith("whatever is given up; full attention over other KV of 8 bits is left out")


def test_a_picture_names_the_context_from_which_on_points_are_missing() -> None:
    points = pd.DataFrame([row(name, 1024, 4e9, 1.0) for name in "ab"] + [row("a", 2048, 4e9, 1.0)])
    assert _not_run(points, [1024, 2048, 4096], 2) == "; not all run from 2 Ki"
    assert _not_run(points, [1024], 2) == ""


def test_names_of_limits_that_are_near_each_other_do_not_overlap() -> None:
    figure = new_figure(6.4, 4.0)
    figure.add_subplot().set_ylim(0, 8.1)
    _limits(figure, {"granted": 7.4e9, "the device leaves free": 7.4e9})
    figure.draw_without_rendering()
    above, below = (text.get_window_extent() for text in figure.axes[0].texts)
    assert above.y0 > below.y1


def test_the_page_says_how_a_run_has_the_energy_of_an_answer() -> None:
    figures = {"answer_s": 5.0, "energy_j": 40.0}
    best = Trial(composition=Composition(), scenario=None, outcome="done", figures=figures)
    said = page(Answer(question=question(), best=best, ranked=[best]), {})
    assert "kvferry run scenario.yaml --set &#x27;workload.think=0 s&#x27; --set &#x27;workload.pause=0 s&#x27;" in said


def test_the_command_prints_one_object(call: Callable[..., tuple[int, str, str]]) -> None:
    pinned = (part for setting in PINNED for part in ("--set", setting))
    code, out, err = call("advise", "--device", "rtx-4060", "--model", "qwen3-8b", "--quick", "--json", *pinned)
    assert code == 0, err
    assert json.loads(out)["composition"] == "vllm + keep memory"

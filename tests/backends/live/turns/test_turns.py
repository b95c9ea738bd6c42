"""Conversations on a real model: turns say what they would say if all KV had been in memory all the time."""

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny import LIVE_TURNS, tiny
from whole_model import by_transformers

from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.traces.turns import turns_of

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# A codec that loses nothing of a float16 model's KV.
EXACT: dict[str, Any] = {
    "precision": {"kv_value_bytes": 2},
    "workload": {"in_cloud": "contexts"},
}


def live(*overrides: str, **changes: Any) -> Scenario:
    return tiny(LIVE_TURNS, *overrides, **changes)


def ran(scenario: Scenario) -> Run:
    run = run_scenario(scenario)
    assert run.outcome == "done", run.why
    assert run.sessions is not None and len(run.sessions.turns) == scenario.session.workload.turns
    return run


def from_flash(run: Run) -> int:
    assert run.sessions is not None
    return sum(turn.from_flash for turn in run.sessions.turns)


def test_kept_kv_gives_the_answers_of_the_whole_model() -> None:
    kept = ran(live())
    memory = ran(live("budget.kept_memory=8 MiB", "system=in-memory", "budget.kept_flash=null"))
    forgotten = ran(live("system=forgetful", "budget.kept_memory=null", "budget.kept_flash=null"))
    assert from_flash(kept) > 16 and from_flash(memory) == from_flash(forgotten) == 0
    assert kept.sessions is not None and {turn.number for turn in kept.sessions.turns} >= {0, 1, 2}
    assert kept.measured["answers"] == memory.measured["answers"] == forgotten.measured["answers"]
    assert kept.measured["answers"] == by_transformers(live(), kept.measured["answers"])


@pytest.fixture(scope="module")
def exact() -> Any:
    """The answers of a model in float16 that keeps nothing."""
    nothing = {"kept_memory": None, "kept_flash": None}
    return ran(live(**EXACT, system="forgetful", budget=nothing, live={"dtype": "float16"})).measured["answers"]


@pytest.mark.parametrize("load", ["stream-only", "ferry"])
def test_loaded_kv_does(load: str, exact: Any) -> None:
    policies = {"load": {"name": load, "codec": "fp16"}}
    scenario = live(**EXACT, policies=policies, live={"dtype": "float16"})
    loaded = ran(scenario)
    assert loaded.sessions is not None
    assert sum(turn.from_cloud for turn in loaded.sessions.turns) > 0
    if load == "stream-only":
        assert sum(turn.units_streamed for turn in loaded.sessions.turns) > 0
    assert loaded.measured["answers"] == exact


def test_an_answer_that_completes_a_block() -> None:
    # 73 + 7 tokens are five blocks: the last one has the answer's last token.
    scenario = live("workload.context=64", "budget.kept_memory=8 MiB")
    (first, second, *_) = turns_of(scenario.session.workload, scenario.seed).numbered
    assert first.prompt + first.output == 80 and len(first.leaves) == 5 and second.number == 1
    run = ran(scenario)
    assert run.sessions is not None and run.sessions.turns[1].from_memory == 80
    assert run.measured["answers"] == by_transformers(scenario, run.measured["answers"])


def test_a_prompt_that_is_shorter_than_a_block() -> None:
    scenario = live("workload.context=3", "workload.block=64", "budget.kept_memory=8 MiB")
    run = ran(scenario)
    assert run.measured["answers"] == by_transformers(scenario, run.measured["answers"])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A run, and the folder of the file that it left."""
    folder: Path = tmp_path_factory.mktemp("kept")
    return ran(live(live={"kv_file": str(folder / "kept.kv")})), folder


@pytest.fixture
def path(kept: tuple[Run, Path], tmp_path: Path) -> Path:
    """A copy of that file."""
    shutil.copytree(kept[1], tmp_path, dirs_exist_ok=True)
    return tmp_path / "kept.kv"


def test_later_runs_find_what_lies_in_the_file(path: Path, kept: tuple[Run, Path]) -> None:
    scenario = live(live={"kv_file": str(path)})
    (first, _), again = kept, ran(scenario)
    assert again.measured["answers"] == first.measured["answers"]
    assert again.measured["kept_blocks_dropped"] == 0
    assert from_flash(again) > from_flash(first)
    # Already its first turn begins with what the first run left.
    assert again.sessions is not None and again.sessions.turns[0].from_flash > 0
    assert first.sessions is not None and first.sessions.turns[0].from_flash == 0
    # It is the same for the modelled world, which is told what was found.
    modelled = run_scenario(scenario.model_copy(update={"backend": "sim"}), inputs=again.inputs)
    assert modelled.sessions is not None
    assert [turn.from_flash for turn in modelled.sessions.turns] == [turn.from_flash for turn in again.sessions.turns]


@pytest.mark.parametrize("cut", [0, 50_000, 131_072, 200_000])
def test_a_file_that_was_cut(path: Path, kept: tuple[Run, Path], cut: int) -> None:
    first, _ = kept
    os.truncate(path, cut)
    again = ran(live(live={"kv_file": str(path)}))
    assert again.measured["answers"] == first.measured["answers"]
    assert again.measured["kept_blocks_dropped"] > 0
    assert again.sessions is not None
    # Whole blocks in front of the cut are used.
    assert (again.sessions.turns[0].from_flash > 0) <= (cut >= 131_072)


def test_bytes_that_were_changed(path: Path, kept: tuple[Run, Path]) -> None:
    first, _ = kept
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"other")
    again = ran(live(live={"kv_file": str(path)}))
    assert again.measured["kept_blocks_dropped"] == 1
    assert again.measured["answers"] == first.measured["answers"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model": "byte-large"}, "model byte-small instead of byte-large, weights "),
        (
            {"precision": {"kv_value_bytes": 2}, "live": {"dtype": "float16"}},
            "numbers float32 instead of float16, place bytes 131072 instead of 65536",
        ),
        ({"workload": {"block": 32}}, "block tokens 16 instead of 32"),
        ({"workload": {"in_cloud": "contexts"}}, "codec none instead of huffman"),
    ],
)
def test_the_file_of_other_kv_is_refused(path: Path, changes: dict[str, Any], what: str) -> None:
    before = path.read_bytes()
    changes = {**changes, "live": {**changes.get("live", {}), "kv_file": str(path)}}
    with pytest.raises(InputError, match="live.kv_file: ") as error:
        run_scenario(live(**changes))
    assert what in str(error.value) and "\n" not in str(error.value)
    assert path.read_bytes() == before


def test_a_device_that_is_full_keeps_nothing_more(kept: tuple[Run, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = kept
    really, writes = os.pwritev, 0

    def full(fd: int, buffers: Sequence[Any], offset: int) -> int:
        nonlocal writes
        writes += 1
        if writes > 3:
            raise OSError(errno.ENOSPC, "no space")
        return really(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", full)
    run = ran(live())
    assert writes > 3
    assert run.measured["answers"] == whole.measured["answers"]
    assert any("what had no room on flash was not kept: cannot write" in note for note in run.notes), run.notes
    assert run.sessions is not None
    assert sum(turn.computed for turn in run.sessions.turns) > sum(
        turn.computed for turn in (whole.sessions or run.sessions).turns
    )


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("budget.kept_flash=null", "budget.kept_flash: is missing: a real file is as large as what may be kept in it"),
        ("budget.kept_flash=5 kB", "budget.kept_flash: 5.0 kB hold no block of 16 tokens"),
        ("live.processor=mps", "runs conversations on the CPU or with CUDA"),
        ("live.kv_folder=/nowhere/at/all", "live.kv_folder: /nowhere/at/all: no file can be made there"),
        ("live.kv_file=/nowhere/at/all", "live.kv_file: /nowhere/at/all cannot be written"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_line(override: str, what: str) -> None:
    with pytest.raises(InputError) as error:
        run_scenario(live(override))
    lines = [line for line in str(error.value).splitlines() if what in line]
    assert lines, str(error.value)


def test_the_bundled_scenario() -> None:
    scenario = load_scenario(
        "session/live", ("workload.turns=4", "workload.context=256", "budget.kept_memory=1 MiB", "live.paced=false")
    )
    run = ran(scenario)
    assert from_flash(run) > 0

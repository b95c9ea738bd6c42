"""Turns that decode from KV elsewhere than in memory: what they say, and what they find and leave on flash."""

import errno
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from forked import Forked
from tiny import LIVE_TURNS, as_yaml, changed, tiny, turns
from whole_model import by_transformers

from kvferry.disk.opened_file import StorageFull
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.traces.turns import turns_of

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# A block of 16 tokens takes 128 KiB in any layout.
IN_BLOCKS: dict[str, Any] = changed(
    LIVE_TURNS,
    system="kvswap-on-flash",
    policies={"decode": "flexgen"},
    budget={"kept_memory": None, "kept_flash": "8 MiB", "kv": "10 MiB"},
)
# Attends to all there is; the last ones by choices that take in everything.
WHOLE = (
    "flexgen",
    "{name: flexgen, placement: host}",
    "{name: kvswap, group_tokens: 4, selected_tokens: 512}",
    "{name: quest, selected_tokens: 512}",
    "{name: dynakv, selected_share: 1.0}",
)
# Keeps what it takes to be enough.
CHOOSING = ("{name: kvswap, group_tokens: 4, selected_tokens: 32}", "dynakv", "no-cluster", "specontext")


def live(*overrides: str, **changes: Any) -> Scenario:
    return tiny(IN_BLOCKS, *overrides, **changes)


def kept_in(path: Path) -> dict[str, Any]:
    return {**LIVE_TURNS["live"], "kv_file": str(path)}


def found(run: Run) -> list[tuple[int, int, int]]:
    return [(one.from_memory, one.from_flash, one.computed) for one in turns(run)]


@pytest.fixture(scope="module")
def alone() -> Any:
    """What is answered where nothing is kept: the whole model's answers."""
    scenario = tiny(LIVE_TURNS, "system=forgetful", "budget.kept_memory=null", "budget.kept_flash=null")
    answers = run_scenario(scenario).measured["answers"]
    assert answers == by_transformers(scenario, answers)
    return answers


@pytest.mark.parametrize("decode", WHOLE)
def test_all_kv_gives_the_answers_of_the_whole_model(decode: str, alone: Any) -> None:
    run = run_scenario(live(f"policies.decode={decode}"))
    assert run.measured["answers"] == alone
    # Five whole blocks of 86 tokens, then six and seven; the other conversation begins with four of the first.
    assert [one.from_flash for one in turns(run)] == [0, 80, 96, 112, 64, 80]


@pytest.mark.parametrize(
    ("keep", "budget", "from_memory"),
    [
        ("drop", {"kept_flash": None}, [0] * 6),
        ("memory", {"kept_flash": None, "kept_memory": "2 MiB"}, [0, 80, 96, 112, 64, 80]),
        ("memory-flash", {"kept_memory": "512 KiB"}, [0, 64, 64, 64, 64, 64]),
    ],
)
def test_wherever_it_is_kept(keep: str, budget: dict[str, Any], from_memory: list[int], alone: Any) -> None:
    run = run_scenario(live(f"policies.keep={keep}", budget=budget))
    assert run.measured["answers"] == alone
    assert [one.from_memory for one in turns(run)] == from_memory


def test_flash_that_holds_few_blocks_is_written_over(alone: Any) -> None:
    run = run_scenario(live("budget.kept_flash=400 kB"))
    assert run.measured["answers"] == alone
    assert [one.from_flash for one in turns(run)] == [0, 48, 48, 48, 48, 48]


def test_conversations_in_turn_leave_each_others_pages_alone() -> None:
    scenario = live("workload.at_once=2", "workload.think=0.3 s")
    first, other = (stream[0] for stream in turns_of(scenario.session.workload, scenario.seed).streams)
    assert first.source != other.source
    run = run_scenario(scenario)
    # The other's first turn comes between two of the first, and has its pages behind those.
    assert sorted(one.from_flash for one in turns(run))[:3] == [0, 0, 64]
    assert run.measured["answers"] == by_transformers(scenario, run.measured["answers"])


def test_an_answer_that_completes_a_block_leaves_it_without_its_last_token() -> None:
    # 73 + 7 tokens are five blocks, of which the last one lacks a token.
    scenario = live("workload.context=64", "workload.turns=2")
    run = run_scenario(scenario)
    assert [one.from_flash for one in turns(run)] == [0, 64]
    assert run.measured["answers"] == by_transformers(scenario, run.measured["answers"])
    assert found(run_scenario(live("workload.context=64", "workload.turns=2", backend="sim"))) == found(run)


def test_kv_from_a_cloud_is_written_out(alone: Any) -> None:
    exact: dict[str, Any] = {
        "precision": {"kv_value_bytes": 2},
        "workload": {"in_cloud": "contexts"},
        "live": {"dtype": "float16"},
    }
    loaded = run_scenario(
        live(**exact, policies={"decode": "flexgen", "load": {"name": "stream-only", "codec": "fp16"}})
    )
    nothing = run_scenario(
        live(**exact, system="forgetful", policies={}, budget={"kept_flash": None, "kept_memory": None, "kv": None})
    )
    assert turns(loaded)[0].from_cloud > 0
    assert loaded.measured["answers"] == nothing.measured["answers"]


@pytest.mark.parametrize("decode", [*WHOLE[:1], *CHOOSING])
def test_the_modelled_world_is_answered_as_the_real_one_was(decode: str) -> None:
    run = run_scenario(live(f"policies.decode={decode}"))
    modelled = run_scenario(live(f"policies.decode={decode}", backend="sim"), inputs=run.inputs)
    assert found(modelled) == found(run)
    assert not any("selections are generated" in note for note in (*run.notes, *modelled.notes))
    assert [one.attention for one in turns(modelled)] == [one.attention for one in turns(run)]


@pytest.mark.parametrize("decode", ["flexgen", "{name: kvswap, group_tokens: 4, selected_tokens: 512}", "no-cluster"])
def test_a_second_process_reads_it_as_it_lies(tmp_path: Path, decode: str) -> None:
    scenario = live(f"policies.decode={decode}", live=kept_in(tmp_path / "kept.kv"))
    first, again = run_scenario(scenario), run_scenario(scenario)
    assert again.measured["answers"] == first.measured["answers"]
    assert turns(first)[0].from_flash == 0 and turns(again)[0].from_flash == 64
    assert again.measured["kept_blocks_dropped"] == 0
    modelled = run_scenario(scenario.model_copy(update={"backend": "sim"}), inputs=again.inputs)
    assert found(modelled) == found(again)


def test_bytes_that_were_changed_and_a_file_that_was_cut(tmp_path: Path, alone: Any) -> None:
    path = tmp_path / "kept.kv"
    scenario = live(live=kept_in(path))
    run_scenario(scenario)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"other")
    again = run_scenario(scenario)
    assert again.measured["kept_blocks_dropped"] == 1 and again.measured["answers"] == alone
    os.truncate(path, 200_000)
    again = run_scenario(scenario)
    assert again.measured["kept_blocks_dropped"] > 0 and again.measured["answers"] == alone


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("policies.decode=vllm", "layout groups of 1 tokens in 1024 bytes, 1 in a layer instead of whole blocks"),
        ("policies.decode=quest", "instead of groups of 16 tokens in 4096 bytes, 4 in a layer"),
    ],
)
def test_the_file_of_another_layout_is_refused(tmp_path: Path, override: str, what: str) -> None:
    path = tmp_path / "kept.kv"
    run_scenario(live("workload.turns=2", live=kept_in(path)))
    before = path.read_bytes()
    with pytest.raises(InputError, match="live.kv_file: ") as error:
        run_scenario(live(override, "workload.turns=2", "budget.kv=null", live=kept_in(path)))
    assert what in str(error.value) and "\n" not in str(error.value)
    assert path.read_bytes() == before


def test_a_device_that_is_full_in_the_middle_of_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Any
) -> None:
    scenario = live(live=kept_in(tmp_path / "kept.kv"))
    really, writes = os.pwritev, 0

    def full(fd: int, buffers: Sequence[Any], offset: int) -> int:
        nonlocal writes
        writes += 1
        if writes > 60:
            raise OSError(errno.ENOSPC, "no space")
        return really(fd, buffers, offset)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        with pytest.raises(StorageFull, match="the device is full"):
            run_scenario(scenario)
    assert writes > 60
    # What was noted before is whole.
    again = run_scenario(scenario)
    assert again.measured["kept_blocks_dropped"] == 0 and again.measured["answers"] == alone


@pytest.mark.parametrize("after", [1, 3])
def test_a_process_that_is_killed(tmp_path: Path, after: int, alone: Any) -> None:
    path, file = tmp_path / "kept.kv", tmp_path / "scenario.yaml"
    file.write_text(as_yaml(changed(IN_BLOCKS, live=kept_in(path), workload={"think": "0.5 s"})))
    program = (
        "import os, signal, sys\n"
        "from kvferry.pipelines.run import run_scenario\n"
        "from kvferry.scenarios.loader import load_scenario\n"
        "def told(done, of):\n"
        f"    if done == {after}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run_scenario(load_scenario(sys.argv[1]), progress=told)\n"
    )
    assert Forked(program, str(file)).wait() == -signal.SIGKILL
    again = run_scenario(live(live=kept_in(path)))
    assert turns(again)[0].from_flash == 64
    assert again.measured["kept_blocks_dropped"] == 0 and again.measured["answers"] == alone


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (
            ("policies.decode={name: kvswap, group_tokens: 8}", "workload.block=12"),
            "workload.block: 12 tokens are no whole groups of 8, in which KV lies on flash; a multiple of that would",
        ),
        (
            ("live.processor=cuda:0",),
            "live.processor: backend torch runs turns whose KV lies elsewhere than in memory on the CPU",
        ),
        (("policies.decode=shadowkv",), "shadowkv writes values alone to flash, and the next turn needs keys, too"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_line(overrides: tuple[str, ...], what: str) -> None:
    with pytest.raises(InputError) as error:
        run_scenario(live(*overrides))
    assert any(what in line for line in str(error.value).splitlines()), str(error.value)

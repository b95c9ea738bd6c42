"""Loads over three paths on a real model: layers of blocks are streamed, computed, and read from the file."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tiny import LIVE_TURNS, changed, tiny, turns

from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.specs.scenario import Scenario

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# No numbers are lost on the way: link, flash and processor bring a layer of a block about equally fast.
THREE_WAYS: dict[str, Any] = changed(
    LIVE_TURNS,
    system="three-way",
    device={"extends": "laptop-cpu", "storage": {"bytes_per_s": "20 MB/s"}, "decompressor": {"workers": 1}},
    precision={"kv_value_bytes": 2},
    link={"rate": "160 Mbit/s", "rtt": "2 ms"},
    workload={"context": 512, "block": 64, "in_cloud": "contexts", "turns": 4, "contexts": 1},
    policies={"load": {"name": "ferry-three-way", "codec": "fp16"}, "keep": "memory-flash"},
    budget={"kept_memory": "512 KiB", "kept_flash": "16 MiB"},
    live={"dtype": "float16", "paced": True},
)


def live(*overrides: str, **changes: Any) -> Scenario:
    return tiny(THREE_WAYS, *overrides, **changes)


@pytest.fixture(scope="module")
def alone() -> Any:
    """What is answered where nothing is kept or loaded."""
    nothing: dict[str, Any] = {
        "policies": {"load": "local-prefill", "keep": "drop"},
        "budget": {"kept_memory": None, "kept_flash": None},
    }
    return run_scenario(live(system="forgetful", **nothing)).measured["answers"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """Loads over three paths, and the folder in which they left their KV."""
    folder: Path = tmp_path_factory.mktemp("kept")
    return run_scenario(kept_in(folder)), folder


@pytest.fixture
def left(loaded: tuple[Run, Path], tmp_path: Path) -> Path:
    """A copy of what those loads left."""
    shutil.copytree(loaded[1], tmp_path, dirs_exist_ok=True)
    return tmp_path


def kept_in(folder: Path, *overrides: str) -> Scenario:
    return live(*overrides, live={**THREE_WAYS["live"], "kv_file": str(folder / "kept.kv")})


def test_one_load_over_three_paths_gives_the_answers_of_the_whole_model(alone: Any, loaded: tuple[Run, Path]) -> None:
    run, _ = loaded
    assert run.measured["answers"] == alone
    later = [one for one in turns(run) if one.units_read]
    assert later and all(one.from_flash for one in later)
    assert any(one.units_read and one.units_streamed and one.units_computed for one in later), later


def test_the_modelled_world_is_told_what_the_real_one_found(loaded: tuple[Run, Path]) -> None:
    run, _ = loaded
    modelled = run_scenario(live(backend="sim"), inputs=run.inputs)
    found = [(one.from_memory, one.from_flash, one.from_cloud, one.computed) for one in turns(run)]
    assert [(one.from_memory, one.from_flash, one.from_cloud, one.computed) for one in turns(modelled)] == found


def test_a_second_process_reads_what_the_first_has_left(left: Path, alone: Any, loaded: tuple[Run, Path]) -> None:
    (first, _), again = loaded, run_scenario(kept_in(left))
    assert again.measured["answers"] == alone
    assert turns(first)[0].units_read == 0
    # Of what the second one's first turn finds on flash, some layers are read.
    assert turns(again)[0].from_flash > 0 and turns(again)[0].units_read > 0


@pytest.mark.parametrize("in_cloud", ["contexts", "nothing"])
def test_behind_a_block_that_was_changed(left: Path, alone: Any, in_cloud: str) -> None:
    with (left / "kept.kv").open("r+b") as file:
        file.seek(100)
        file.write(b"other")
    again = run_scenario(kept_in(left, f"workload.in_cloud={in_cloud}"))
    assert again.measured["kept_blocks_dropped"] == 1
    assert again.measured["answers"] == alone


def test_a_file_that_was_cut(left: Path, alone: Any) -> None:
    # In the third of its places, of 256 KiB each.
    os.truncate(left / "kept.kv", 600_000)
    again = run_scenario(kept_in(left, "workload.in_cloud=nothing"))
    assert again.measured["kept_blocks_dropped"] > 0
    assert again.measured["answers"] == alone

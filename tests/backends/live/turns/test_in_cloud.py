"""Turns whose KV goes to a server and comes back from there: what they say, and what a later process finds."""

from pathlib import Path
from typing import Any

import pytest
from tiny import LIVE_TURNS, changed, tiny, turns

from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.specs.scenario import Scenario

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# No numbers are lost on the way.
IN_CLOUD: dict[str, Any] = changed(
    LIVE_TURNS,
    system="streamed",
    precision={"kv_value_bytes": 2},
    policies={"load": {"name": "stream-only", "codec": "fp16"}},
    budget={"kept_memory": None, "kept_flash": None},
    live={"dtype": "float16"},
)


def live(*overrides: str, **changes: Any) -> Scenario:
    return tiny(IN_CLOUD, *overrides, **changes)


def found(run: Run) -> list[tuple[int, ...]]:
    return [
        (one.from_memory, one.from_flash, one.from_cloud, one.computed, one.units_streamed, one.streamed_bytes)
        for one in turns(run)
    ]


@pytest.fixture(scope="module")
def alone() -> Any:
    """What is answered where nothing is kept."""
    return run_scenario(live(system="forgetful", policies={})).measured["answers"]


def test_it_comes_back_as_it_went(alone: Any) -> None:
    run = run_scenario(live())
    assert run.measured["answers"] == alone
    assert [one.from_cloud for one in turns(run)] == [0, 80, 96, 112, 64, 80]
    # All heads of a layer of a block are a unit: byte-small has eight layers.
    assert [one.units_streamed for one in turns(run)] == [0, 40, 48, 56, 32, 40]
    modelled = run_scenario(live(backend="sim"), inputs=run.inputs)
    assert found(modelled) == found(run)


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        # Beside what conversations are about.
        (("workload.in_cloud=contexts",), {}),
        # Some of it is computed again meanwhile.
        (("policies.load={name: ferry, codec: fp16}",), {}),
        (
            ("policies.load={name: ferry-three-way, codec: fp16}", "policies.keep=memory-flash-cloud"),
            {"budget": {"kept_memory": "128 KiB", "kept_flash": "128 KiB"}},
        ),
        # Flash, where turns decode, has room for some.
        (
            ("policies.decode=flexgen", "policies.keep=flash-cloud"),
            {"budget": {"kept_flash": "200 KiB", "kv": "10 MiB"}},
        ),
    ],
)
def test_beside_other_ways(overrides: tuple[str, ...], changes: dict[str, Any], alone: Any) -> None:
    run = run_scenario(live(*overrides, **changes))
    assert run.measured["answers"] == alone
    assert sum(one.from_cloud for one in turns(run)) > 0


def test_a_later_process_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Any) -> None:
    monkeypatch.setenv("KVFERRY_STORES", str(tmp_path))
    first, again = run_scenario(live()), run_scenario(live())
    assert turns(first)[0].from_cloud == 0 and turns(again)[0].from_cloud == 64
    assert first.measured["answers"] == again.measured["answers"] == alone
    assert found(run_scenario(live(backend="sim"), inputs=again.inputs)) == found(again)
    # Another codec's and another model's KV is none of it.
    other = run_scenario(live("policies.load={name: stream-only, codec: huffman}"))
    assert turns(other)[0].from_cloud == 0
    wide = run_scenario(live("workload.block=32"))
    assert turns(wide)[0].from_cloud == 0 and wide.measured["answers"] == alone


def test_what_was_damaged_there_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: Any) -> None:
    monkeypatch.setenv("KVFERRY_STORES", str(tmp_path))
    run_scenario(live())
    for path in tmp_path.glob("*.kvs"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 3)
            file.write(b"other bytes")
    again = run_scenario(live())
    assert again.measured["answers"] == alone


def test_without_its_folder_nothing_is_found() -> None:
    assert turns(run_scenario(live("workload.turns=1")))[0].from_cloud == 0
    assert turns(run_scenario(live("workload.turns=1")))[0].from_cloud == 0


def test_a_way_to_the_cloud_that_ends(tmp_path: Path, alone: Any) -> None:
    trace = tmp_path / "short.csv"
    # For the first turn's blocks, or not even that.
    trace.write_text("time_s,bytes_per_s\n0,1000000\n0.01,1000000\n")
    run = run_scenario(live(link={"up": {"trace": str(trace), "on_end": "end"}}))
    assert run.measured["answers"] == alone
    assert any("what did not reach the cloud was not kept there: " in note for note in run.notes), run.notes
    assert turns(run)[-1].computed > 15

"""Recorded conversations on a real model: lengths and shared beginnings of a log, tokens of its own."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import LIVE_TURNS, tiny
from whole_model import by_transformers

from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Two conversations about one manual of 70 tokens, and one about nothing.
TABLE = """arrival,conversation,question,output,context,document
0,a,9,7,70,manual
0.1,b,12,5,70,manual
0.3,a,20,7,,
0.4,b,5,6,,
0.6,c,30,4,,
"""


def of_log(path: Path, turns: int, kept_memory: str = "8 MiB", **more: Any) -> Scenario:
    workload = {"kind": "session", "trace": str(path), "turns": turns, **more}
    described = LIVE_TURNS | {"workload": workload}
    return tiny(described, f"budget.kept_memory={kept_memory}", "budget.kept_flash=64 MiB")


def mooncake(path: Path, *rows: tuple[int, int, int, list[int]]) -> Path:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows))
    return path


def test_a_table_of_conversations(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(TABLE)
    scenario = of_log(path, 5, "256 KiB", block=16)
    run = run_scenario(scenario)
    assert run.outcome == "done" and run.sessions is not None, run.why
    turns = {(one.conversation, one.number): one for one in run.sessions.turns}
    # The manual's four whole blocks were left by the first conversation, two of them in memory.
    assert (turns[1, 0].from_memory, turns[1, 0].from_flash, turns[1, 0].computed) == (32, 32, 18)
    assert turns[0, 1].prompt == 79 + 7 + 20 and turns[0, 1].arrival_s >= 0.3
    assert turns[2, 0].computed == 30
    assert run.measured["answers"] == by_transformers(scenario, run.measured["answers"])


def test_hash_ids(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "log.jsonl", (0, 600, 5, [1, 2]), (10, 620, 4, [1, 7]), (20, 1100, 3, [1, 2, 5]))
    scenario = of_log(path, 3)
    run = run_scenario(scenario)
    assert run.outcome == "done" and run.sessions is not None, run.why
    # One block of 512 tokens, by its hash id.
    assert sorted(one.computed for one in run.sessions.turns) == [620 - 512, 1100 - 512, 600]
    assert run.measured["answers"] == by_transformers(scenario, run.measured["answers"])


def test_what_another_conversation_was_answered_is_refused(tmp_path: Path) -> None:
    # The second turn's block 5 has the first one's answer, and the third request begins with it.
    rows = (0, 1100, 20, [1, 2, 3]), (10, 1700, 10, [1, 2, 5, 6]), (20, 1600, 10, [1, 2, 5, 9])
    with pytest.raises(InputError, match=r"workload\.trace: conversation 1 has in common with another one") as error:
        run_scenario(of_log(mooncake(tmp_path / "log.jsonl", *rows), 3))
    assert "\n" not in str(error.value)

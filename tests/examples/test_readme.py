"""The README's commands and Python are run as they stand; its tables say what a run and the reports say."""

import csv
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from command import Call

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)
    for kind, block in BLOCKS
    if kind == "sh"
    for line in block.splitlines()
    if line.startswith("kvferry ")
]
# Whole studies and searches, for seconds to minutes; each of these commands runs on something small elsewhere.
LONG = ("sweep", "search", "reproduce", "tune")
# What is measured here, and what goes on from that.
MEASURED = ("calibrate", "fidelity")
# What needs results of others: the tutorial has it, whose commands follow each other.
AFTER_OTHERS = ("report",)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _marked(command: list[str]) -> Any:
    live = "live/quickstart" in command
    marks = [pytest.mark.long] if command[1] in LONG or live else []
    return pytest.param(command, marks=[*marks, pytest.mark.torch] if live else marks)


@pytest.mark.parametrize("command", [_marked(c) for c in COMMANDS if c[1] not in MEASURED + AFTER_OTHERS], ids=" ".join)
def test_a_command_of_the_readme(command: list[str], call: Call) -> None:
    if "live/quickstart" in command:
        pytest.importorskip("torch")
    _run(command, call)


@pytest.mark.long
@pytest.mark.torch
def test_what_the_readme_measures(call: Call) -> None:
    pytest.importorskip("torch")
    for command in (c for c in COMMANDS if c[1] in MEASURED):
        _run([*command, "--quick"] if command[1] == "calibrate" else [*command, "--runs", "1"], call)


def _run(command: list[str], call: Call) -> str:
    code, out, err = call(*command[1:])
    assert code == 0, err
    assert out
    return out


def test_the_table_of_the_readme_is_what_its_command_prints(call: Call) -> None:
    (shown,) = [block for kind, block in BLOCKS if kind == "console"]
    command, _, _, *rows = shown.splitlines()
    printed = _run(shlex.split(command.removeprefix("$ ")), call).splitlines()
    assert len(rows) == 4
    for row in rows:
        assert any(line.strip().startswith(row.strip()) for line in printed), row


def test_the_python_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = [block for kind, block in BLOCKS if kind == "python"]
    assert len(text.splitlines()) <= 5
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "README.md", "exec"), {})  # noqa: S102
    assert (tmp_path / "pictures/gantt.png").is_file()


VERDICTS = {
    "sparkv": "SparKV",
    "kvswap": "KVSwap",
    "dynakv": "DynaKV",
    "pd_device": "P/D-Device",
    "specontext": "SpeContext",
}


@pytest.mark.parametrize("paper", VERDICTS)
def test_the_readme_counts_the_verdicts_as_the_reports_do(paper: str) -> None:
    with (ROOT / f"docs/validation/data/{paper}-claims.csv").open() as file:
        rows = list(csv.DictReader(file))
    verdicts = [row["verdict"] + (", chosen" if row["chosen"] else "") for row in rows]
    helped = [verdict for verdict in verdicts if re.match("hit, (fitted|chosen)", verdict)]
    chosen = " or a choice" if any("chosen" in verdict for verdict in helped) else ""
    missed = sum(verdict.startswith("miss") for verdict in verdicts)
    counts = f"{verdicts.count('hit')} hit, {len(helped)} hit after a fit{chosen}, {missed} missed"
    if "measured" in verdicts:
        counts += f", {verdicts.count('measured')} not judged"
    (row,) = [line for line in README.splitlines() if re.match(rf"\| .*{VERDICTS[paper]}\? \|", line)]
    assert f"{len(verdicts)} claims" in row
    assert row.endswith(f"| {counts} |")

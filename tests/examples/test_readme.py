"""The README's commands and scenario are run as they stand."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvferry.scenarios.loader import load_scenario

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
COMMANDS = [
    shlex.split(line, comments=True)
    for kind, block in BLOCKS
    if kind == "sh"
    for line in block.splitlines()
    if line.startswith("kvferry ")
]
# Whole studies and searches: minutes.
LONG = ("sweep", "search", "reproduce")
# What is measured here, and what goes on from that.
MEASURED = ("calibrate", "fidelity")
# What needs results of others: the tutorial has it, whose commands follow each other.
AFTER_OTHERS = ("report",)


def _marked(command: list[str]) -> Any:
    live = "live/quickstart" in command
    marks = [pytest.mark.long] if command[1] in LONG or live else []
    return pytest.param(command, marks=[*marks, pytest.mark.torch] if live else marks)


@pytest.mark.parametrize("command", [_marked(c) for c in COMMANDS if c[1] not in MEASURED + AFTER_OTHERS], ids=" ".join)
def test_a_command_of_the_readme(command: list[str], tmp_path: Path) -> None:
    if "live/quickstart" in command:
        pytest.importorskip("torch")
    _run(command, tmp_path)


@pytest.mark.long
@pytest.mark.torch
def test_what_the_readme_measures(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for command in (c for c in COMMANDS if c[1] in MEASURED):
        _run([*command, "--quick"] if command[1] == "calibrate" else [*command, "--runs", "1"], tmp_path)


def _run(command: list[str], folder: Path) -> None:
    program = "from kvferry.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *command[1:]], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_scenario_of_the_readme(tmp_path: Path) -> None:
    (text,) = [block for kind, block in BLOCKS if kind == "yaml"]
    path = tmp_path / "laptop-wifi.yaml"
    path.write_text(text)
    assert load_scenario(path).workload.context == 16 * 1024

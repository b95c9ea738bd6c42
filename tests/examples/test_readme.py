"""The README's commands and scenario are run as they stand."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

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
# Whole studies: minutes.
LONG = ("sweep", "reproduce")


@pytest.mark.parametrize(
    "command", [pytest.param(c, marks=pytest.mark.long) if c[1] in LONG else c for c in COMMANDS], ids=" ".join
)
def test_a_command_of_the_readme(command: list[str], tmp_path: Path) -> None:
    program = "from kvferry.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *command[1:]], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_scenario_of_the_readme(tmp_path: Path) -> None:
    (text,) = [block for kind, block in BLOCKS if kind == "yaml"]
    path = tmp_path / "laptop-wifi.yaml"
    path.write_text(text)
    assert load_scenario(path).workload.context == 16 * 1024

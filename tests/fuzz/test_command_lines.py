"""Command lines: every argument of every command with values that it cannot have, alone and together."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import typer
from limited import called
from seeds import blocks, check_each

from kvferry.cli.main import app

HERE = "tests/fuzz/test_command_lines.py"
# What stands where a name, a path or a number should.
ODD = (
    "",
    "-",
    ".",
    "x",
    "x" * 256,
    "x/" * 3000,
    "a\0b",
    "\x1b[31mred",
    "\udcff",
    "nowhere/at/all",
    "folder",
    "empty.yaml",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/proc/self/mem",
    "~nobody/x",
    "-1",
    "0",
    "nan",
    "1e999",
    "9" * 400,
    "4 parsecs",
    "a=b",
    "workload.context=-1",
    "workload={}",
    "link.trace=" + "x" * 256,
    'link.trace="a\\0b"',
    "link.trace=folder",
    "device=/dev/zero",
    "[[[",
    "--help",
)
SMALL = ("--set", "model=tiny", "--set", "workload.context=2Ki")
# What keeps a command short, whatever else it is asked: one that serves cannot listen, one that measures reads a file.
SHORT = {
    "run": SMALL,
    "compare": (*SMALL, "--systems", "ferry,stream-only"),
    "schedule": SMALL,
    "serve": ("--host", "256.256.256.256"),
    "serve-cloud": ("--host", "256.256.256.256"),
    "calibrate": ("--from", "nowhere.json"),
    "sweep": ("-j", "1"),
    "search": ("-j", "1"),
}
# What the command needs, by its name for it. Others are wrong: they would take long if they were right.
NEEDED = {
    "scenario": "quickstart",
    "study": "study.yaml",
    "name": "mine",
    "trace": "wifi-campus",
    "traces": "wifi-campus",
}
WRONG = {"fidelity", "encode", "serve-cloud", "tune"}


def parameters() -> dict[str, list[Any]]:
    """What each command takes, by its words."""

    def of(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, list[Any]]]:
        if hasattr(command, "list_commands"):
            for name in command.list_commands(None):
                yield from of(command.get_command(None, name), (*words, name))
        else:
            yield " ".join(words), [one for one in command.params if not getattr(one, "is_flag", False)]

    return dict(of(typer.main.get_command(app), ()))


COMMANDS = parameters()
EVERY = [(command, one.name) for command, known in COMMANDS.items() for one in known]


def line(command: str, given: dict[str, str]) -> list[str]:
    """The words of a command with these values, and with what it needs besides."""
    words, options = command.split(), []
    for one in COMMANDS[command]:
        value = given.get(one.name)
        if one.param_type_name == "option":
            if value is None and one.required:
                value = "loader" if one.name == "role" else "new"
            options += [] if value is None else [one.opts[0], value]
        else:
            needed = "nothing" if command in WRONG else NEEDED.get(one.name, "nothing")
            value = needed if value is None and one.required else value
            words += [] if value is None else [value]
    return [*words, *options, *SHORT.get(command, ())]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "study.yaml").write_text("base: quickstart\naxes: {seed: [0]}\n")
    return tmp_path


def wrong(words: list[str], folder: Path) -> str | None:
    found = called(*words, folder=folder)
    return f"{[word[:60] for word in words]}: {found.fault}: {found}" if found.fault else None


@blocks(quick=12, long=len(EVERY) * len(ODD), size=12)
def test_every_argument_with_every_odd_value(seeds: range, folder: Path) -> None:
    def case(seed: int) -> str | None:
        # In an order that has all commands in its beginning.
        n = seed * 7919 % (len(EVERY) * len(ODD))
        (command, name), value = EVERY[n // len(ODD)], ODD[n % len(ODD)]
        return wrong(line(command, {name: value}), folder)

    check_each(seeds, f"{HERE}::test_every_argument_with_every_odd_value", case)


@blocks(quick=10, long=10_000, size=10)
def test_random_command_lines(seeds: range, folder: Path) -> None:
    def case(seed: int) -> str | None:
        chance = Random(seed)
        command = chance.choice(sorted(COMMANDS))
        known = [one.name for one in COMMANDS[command]]
        given = {name: chance.choice(ODD) for name in chance.sample(known, chance.randint(0, min(3, len(known))))}
        words = line(command, given)
        if chance.random() < 0.2:
            words.insert(chance.randrange(len(words) + 1), chance.choice(ODD))
        return wrong(words, folder)

    check_each(seeds, f"{HERE}::test_random_command_lines", case)

"""Tests import what tests/support holds by bare name; the command can be called by every test."""

import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path

# Before numpy and torch are there: what tests calculate is small, and threads that share it wait for each other at
# full load, in as many processes as there are cores. Processes that tests start do likewise.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

import pytest
import typer.main
from hypothesis import settings

from kvferry.cli import main as command
from kvferry.pipelines.plugins import drop, used
from kvferry.system.garbage import YOUNG

sys.path.insert(0, str(Path(__file__).parent / "support"))

import warm_start

warm_start.begin()

# How long an example takes is no property: machines are busy at times. `make test-all` looks at more examples.
settings.register_profile("quick", deadline=None, max_examples=20)
settings.register_profile("thorough", deadline=None, max_examples=150)
settings.load_profile("quick")

# A process of the command makes its options once; a process of tests would do so for each of a thousand calls.
typer.main.get_command = cache(typer.main.get_command)  # type: ignore[assignment]
# Two schemas hold a thousand patterns, twice what Python keeps: each key would have all of them compiled again.
re._MAXCACHE = 10_000  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests that are collected stay: looking for cycles among them would take a second each time. Later
    objects are looked through as seldom as in the command."""
    gc.disable()
    found = yield
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
    return found


# What a shell without job control starts in the background ignores Ctrl-C, and so would its children: tests that
# interrupt them would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The empty folder in which a test runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cold_start() -> Iterator[None]:
    """Servers and codec workers that a test starts are a new Python each, as users have them."""
    warm_start.end()
    yield
    warm_start.begin()


@pytest.fixture
def small_here(here: Path) -> None:
    """A folder with the small scenario that commands run."""
    from command import SMALL

    Path("small.yaml").write_text(SMALL)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """Run the command in this process: exit code, standard output, standard error. Its plugins are gone behind it."""

    def calling(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kvferry", *arguments])
        # The process goes on, whatever threads earlier tests have left.
        monkeypatch.setattr(command, "_leave", sys.exit)
        with pytest.raises(SystemExit) as leave:
            command.main()
        out, err = capsys.readouterr()
        return int(leave.value.code or 0), out, err

    yield calling
    for plugin in used():
        drop(plugin)

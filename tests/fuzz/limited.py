"""The command in a process of its own that has so much time and memory, and what it printed."""

import gc
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import typer

import kvferry.api
import kvferry.cli
from kvferry.cli import main as command
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

# A case that needs more processor time hangs, or would fill a small machine; and one that waits for so many times as
# long, however busy the machine is.
MOST_S, _WAITING = 120, 10
MOST_BYTES = 6 * 2**30
# Processor time after which a word must have been said.
SILENT_S = 15.0
# A line of progress.
SAID_SO = re.compile(r" \d+ s so far\b")
# What commands write on the way to a file, and must take away again.
TEMPORARY = ("tmp*", "kvferry-*", "*.partial", ".*.partial", "*/*.partial", "*/.*.partial")


@dataclass(frozen=True)
class Called:
    """`code` is None when time ran out, and negative when a signal ended the process. `left`: temporary files."""

    code: int | None
    out: str
    err: str
    silent_s: float = 0.0
    left: tuple[str, ...] = ()

    @property
    def is_long(self) -> bool:
        """Time ran out, and lines said that it works on."""
        return self.code is None and SAID_SO.search(self.err) is not None

    @property
    def fault(self) -> str | None:
        """What no input may lead to; None: nothing of the kind."""
        if self.code is None:
            return None if self.is_long else f"it took more than {MOST_S} s of processor time and did not say so"
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}"
        if "a fault of its own" in self.err or "Traceback" in self.err or "Warning:" in self.err:
            return "a fault of its own"
        if self.code and not any(one.startswith(("kvferry:", "Usage:")) for one in self.err.splitlines()):
            return "an error without a message"
        if self.left:
            return f"left behind: {', '.join(self.left)}"
        if self.silent_s > SILENT_S:
            return f"{self.silent_s:.0f} s of processor time without a word"
        loose = [character for character in self.out + self.err if not character.isprintable() and character != "\n"]
        return f"control characters as they came: {loose[:5]}" if loose else None

    def __str__(self) -> str:
        return f"exit code {self.code}; {self.err[-2000:] or self.out[-300:]}"


@cache
def _ready() -> None:
    """Pay here for what commands import and read first: several times what a small case takes."""
    for package in (kvferry.api, kvferry.cli):
        for module in iter_modules(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    for name in ("typer.rich_utils", "rich.markdown", "joblib", "kvferry.cloud.server"):
        import_module(name)
    run_scenario(load_scenario("quickstart", ["workload.context=1Ki"]))
    _command()
    # Children that share what lies here do not copy it page by page to count it.
    gc.collect()
    gc.freeze()


@cache
def _command() -> Any:
    """The command, whose options take 30 ms to be gathered."""
    return typer.main.get_command(command.app)


def called(*arguments: str, folder: Path, most_s: int = MOST_S) -> Called:
    """Run ``kvferry ARGUMENTS`` in a folder. Forked: imports are paid once, and nothing that it does stays."""
    _ready()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _run(arguments, folder, out.fileno(), err.fileno(), most_s)
        _, status, used = os.wait4(child, 0)
        code = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    silent_s = 0.0 if texts[1] else used.ru_utime
    left = tuple(str(one.relative_to(folder)) for pattern in TEMPORARY for one in folder.glob(pattern))
    return Called(None if code in (-signal.SIGALRM, -signal.SIGXCPU) else code, *texts, silent_s, left)


def _run(arguments: tuple[str, ...], folder: Path, out: int, err: int, most_s: int) -> None:
    """In the child: never returns."""
    code = 70
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_WAITING * most_s)
        resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace")
        # By lines: what was said stays, also of a command that is ended.
        sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
        os.chdir(folder)
        # A fault's log goes where the case lies.
        tempfile.tempdir = str(folder)
        sys.argv = ["kvferry", *arguments]
        vars(command)["app"] = _command()
        command.main()
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

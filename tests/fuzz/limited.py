"""The command in a process of its own that has so much time and memory, and what it printed."""

import os
import resource
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from kvferry.cli import main as command
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

# A case that needs more hangs, or would fill a small machine.
MOST_S = 120
MOST_BYTES = 6 * 2**30


@dataclass(frozen=True)
class Called:
    """`code` is None when time ran out, and negative when a signal ended the process."""

    code: int | None
    out: str
    err: str

    @property
    def fault(self) -> str | None:
        """What no input may lead to; None: nothing of the kind."""
        if self.code is None:
            return f"it ran for more than {MOST_S} s"
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}"
        if "a fault of its own" in self.err or "Traceback" in self.err or "Warning:" in self.err:
            return "a fault of its own"
        if self.code and not any(one.startswith(("kvferry:", "Usage:")) for one in self.err.splitlines()):
            return "an error without a message"
        loose = [character for character in self.out + self.err if not character.isprintable() and character != "\n"]
        return f"control characters as they came: {loose[:5]}" if loose else None

    def __str__(self) -> str:
        return f"exit code {self.code}; {self.err[-2000:] or self.out[-300:]}"


@cache
def _ready() -> None:
    """Pay here for what most commands import and read first: several times what a small case takes."""
    for module in ("api.scenario", "api.result", "analysis.envelope", "analysis.metrics", "analysis.tables"):
        import_module(f"kvferry.{module}")
    run_scenario(load_scenario("quickstart", ["workload.context=1Ki"]))


def called(*arguments: str, folder: Path, most_s: int = MOST_S) -> Called:
    """Run ``kvferry ARGUMENTS`` in a folder. Forked: imports are paid once, and nothing that it does stays."""
    _ready()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _run(arguments, folder, out.fileno(), err.fileno(), most_s)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Called(None if code == -signal.SIGALRM else code, *texts)


def _run(arguments: tuple[str, ...], folder: Path, out: int, err: int, most_s: int) -> None:
    """In the child: never returns."""
    code = 70
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(most_s)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace")
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace")
        os.chdir(folder)
        # A fault's log goes where the case lies.
        tempfile.tempdir = str(folder)
        sys.argv = ["kvferry", *arguments]
        command.main()
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

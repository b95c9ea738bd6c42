"""Servers and codec workers that tests start are forked from one process, which has imported what they begin with: a
new Python takes half a second for that, and most runs for real start two. The fixture `cold_start` has new ones."""

import io
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection

from kvferry.cloud import child_server
from kvferry.codecs import pool

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["kvferry.cloud.server_process", "kvferry.cloud.server", "kvferry.codecs.pool", "kvferry.traces.resolve"]
)


class WarmProcess:
    """A `python -m MODULE` with three pipes, as ``subprocess.Popen`` would have it."""

    def __init__(self, command: Sequence[str], *, stdin: int, stdout: int, stderr: int, text: bool) -> None:
        assert [*command[:2]] == [sys.executable, "-m"] and text and {stdin, stdout, stderr} == {subprocess.PIPE}
        ours, theirs = [], []
        for number in range(3):
            reading, writing = (Connection(end, readable=True, writable=True) for end in os.pipe())
            ours.append(reading if number else writing)
            theirs.append(writing if number else reading)
        self._process = _CONTEXT.Process(target=_run, args=(command[2], *theirs))
        with pool._without_main():
            self._process.start()
        for end in theirs:
            end.close()
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(os.dup(end.fileno()), "r" if number else "w") for number, end in enumerate(ours)
        )
        for end in ours:
            end.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("python", timeout or 0.0)
        return code


def _run(module: str, *pipes: Connection) -> None:
    for number, end in enumerate(pipes):
        os.dup2(end.fileno(), number)
        end.close()
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.FileIO(number, "w" if number else "r", closefd=False), line_buffering=number > 0)  # type: ignore[arg-type]
        for number in range(3)
    )
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__")


class _Warm:
    """What of ``subprocess`` the start of a server uses."""

    PIPE, TimeoutExpired, Popen = subprocess.PIPE, subprocess.TimeoutExpired, WarmProcess


# The process that they come from is none of a forked one's children.
os.register_at_fork(after_in_child=lambda: end())


def begin() -> None:
    """From now on this process starts servers and codec workers so; what is forked from it does not."""
    child_server.subprocess = _Warm  # type: ignore[misc, assignment]
    pool.CONTEXT = _CONTEXT


def end() -> None:
    """From now on each is a new Python."""
    child_server.subprocess = subprocess  # type: ignore[misc]
    pool.CONTEXT = multiprocessing.get_context("spawn")

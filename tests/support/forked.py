"""Scripts in a process of their own that has what this one has imported: importing torch takes seconds."""

import ctypes
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest


class Forked:
    """A child that runs a script with `arguments` behind its name; `inside`: in the namespaces of that process."""

    def __init__(self, script: str, *arguments: str, inside: int | None = None) -> None:
        its_in, writing = os.pipe()
        reading, its_out = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.dup2(its_in, 0)
            os.dup2(its_out, 1)
            for end in (its_in, writing, reading, its_out):
                os.close(end)
            _run(script, arguments, inside)
        os.close(its_in)
        os.close(its_out)
        self.stdin: BinaryIO = os.fdopen(writing, "wb")
        self.stdout: BinaryIO = os.fdopen(reading, "rb")

    def wait(self, most_s: float = 100.0) -> int:
        """Its exit code; negative where a signal has ended it."""
        until_s = time.monotonic() + most_s
        while not (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            if time.monotonic() > until_s:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.01)
        self.stdin.close()
        self.stdout.close()
        return os.waitstatus_to_exitcode(ended[1])


def _run(script: str, arguments: tuple[str, ...], inside: int | None) -> None:
    code = 1
    try:
        sys.argv, sys.stdin, sys.stdout = ["-c", *arguments], os.fdopen(0), os.fdopen(1, "w")
        if inside is not None:
            for kind in ("user", "mnt"):
                if ctypes.CDLL(None, use_errno=True).setns(os.open(f"/proc/{inside}/ns/{kind}", os.O_RDONLY), 0):
                    raise OSError(ctypes.get_errno(), f"cannot enter the {kind} namespace")
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(textwrap.dedent(script))
            file.flush()
            runpy.run_path(file.name)
        sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@contextmanager
def mounts_of_its_own(folder: Path) -> Iterator[int]:
    """The process whose namespaces a script enters that mounts something; skips a test where that is not allowed."""
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        subprocess.run([*alone, "mount", "-t", "tmpfs", "small", str(folder)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small file system is not allowed here")
    waiting = [*alone, "sh", "-c", "echo; exec cat"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.stdin.close()

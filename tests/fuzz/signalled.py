"""Commands as real processes which a signal ends at some moment of the processor time that they normally take."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from kvferry.analysis.dataset import read_points

# It goes with the test that started it, however that ends: in a session of its own, a server would serve for ever.
_WITH_ITS_PARENT = "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGKILL)"
# As the installed script does, and a word once it is there: while Python itself starts, Ctrl-C is its own affair.
PROGRAM = f"{_WITH_ITS_PARENT}; from kvferry.cli.entry import main; open('begun', 'w').close(); main()"
# What a process may take to end behind a signal, on a machine with other work.
PATIENCE_S = 60.0
# Where nothing of Python's is there yet to catch it, the signal itself ends the process: a shell says the same.
CODES = {signal.SIGINT: (130, -signal.SIGINT), signal.SIGTERM: (143, -signal.SIGTERM)}
_LOOK_S = 0.01
# matplotlib names a clip by its bounds, whose last digit hangs on the order of a set: on Python's hash seed.
_CLIP = re.compile(rb"\bp[0-9a-f]{10}\b")


@dataclass(frozen=True)
class Ended:
    """How a command ended in its folder, and the processor time that it took, or that a server took to its URL."""

    folder: Path
    code: int
    said: str
    used_s: float
    process_id: int

    @property
    def out(self) -> Path:
        return self.folder / "out"


def carried_out(
    folder: Path, arguments: tuple[str, ...], serves: bool = False, cut: Random | None = None, used_s: float = 0.0
) -> tuple[Ended, signal.Signals | None]:
    """The command in its own folder, with its own folder for temporary files. With `cut`, it gets a signal at a
    share of `used_s`; a server gets one in any case."""
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    with open(folder / "said", "wb") as said, open(folder / "printed", "wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            cwd=folder,
            # torch keeps what it compiles from process to process.
            env=dict(os.environ, TMPDIR=str(folder / "tmp"), TORCHINDUCTOR_CACHE_DIR=str(folder / "compiled")),
            stdout=printed,
            stderr=said,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    number, now_s = None, 0.0
    try:
        until_s = cut.uniform(0.0, 1.2 if serves else 1.0) * used_s if cut else float("inf")
        while process.poll() is None:
            if not (folder / "begun").exists():
                time.sleep(_LOOK_S / 10)
                continue
            now_s = _used_s(process.pid)
            serving = serves and (folder / "printed").stat().st_size > 0
            if now_s >= until_s or serving:
                time.sleep(cut.uniform(0.0, 0.3 if serving else _LOOK_S) if cut else 0.0)
                number = cut.choice((signal.SIGINT, signal.SIGTERM)) if cut else signal.SIGINT
                _send(process, number, to_all=number == signal.SIGINT and cut is not None and cut.random() < 0.5)
                break
            time.sleep(_LOOK_S)
        code = process.wait(PATIENCE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Ended(folder, code, (folder / "said").read_text(), now_s, process.pid), number


def _send(process: subprocess.Popen[bytes], number: signal.Signals, to_all: bool) -> None:
    """To the process, or, as a terminal does, to all that it has started."""
    with suppress(ProcessLookupError):
        if to_all:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


def _used_s(process_id: int) -> float:
    """Processor time of the process itself."""
    # Behind the name, which may have spaces.
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def what_is_wrong(ended: Ended, number: signal.Signals | None) -> str | None:
    """With the way in which the process ended, or with what it left behind."""
    if ended.code not in ((0,) if number is None else (0, *CODES[number])):
        return f"exit code {ended.code} after {number}: {ended.said}"
    for word in ("Traceback", "a fault of its own", "Exception ignored", "Error"):
        if word in ended.said:
            return f"{word} after {number}: {ended.said}"
    if left := _left(ended.process_id):
        return f"processes are left after {number}: {left}"
    left_files = [*(ended.folder / "tmp").rglob("*"), *_shared(ended.process_id), *_unfinished(ended.folder)]
    return f"files are left after {number}: {', '.join(map(str, left_files))}" if left_files else None


def _left(session: int) -> dict[int, str]:
    """Processes of the session a moment after its first one has ended."""
    until_s = time.monotonic() + PATIENCE_S / 4
    while (found := dict(_of_session(session))) and time.monotonic() < until_s:
        time.sleep(0.1)
    for process_id in found:
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
    return found


def _of_session(session: int) -> Iterator[tuple[int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, of = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                yield int(folder.name), (folder / "cmdline").read_text().replace("\0", " ")


def _shared(process_id: int) -> list[Path]:
    """Semaphores and memory that worker processes share, named by the process that made them."""
    return [path for path in Path("/dev/shm").glob("*") if f"-{process_id}-" in path.name]


def _unfinished(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.suffix in (".partial", ".tmp") or (path.name.startswith("tmp") and path != folder / "tmp"):
            yield path


def contents(folder: Path) -> dict[str, bytes]:
    """What the files of results say, or the one, without how long things took, and without the names of clips in
    pictures."""
    return {
        str(path.relative_to(folder)): _CLIP.sub(b"", path.read_bytes()) if path.suffix == ".svg" else path.read_bytes()
        for path in sorted((folder, *folder.rglob("*")))
        if path.is_file() and path.name not in (".lock", "timings.parquet")
    }


def points_kept(folder: Path) -> int:
    return len(read_points(folder)) if folder.exists() else 0

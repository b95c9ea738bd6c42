"""Files that appear whole or not at all, and errors that say why one cannot be written."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvferry.specs.errors import InputError, KvferryError
from kvferry.system.whole_file import write_file


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fail_with(number: int) -> Any:
    def replace(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number))

    return replace


@pytest.mark.parametrize(
    ("number", "word"),
    [(errno.ENOSPC, "disk is full"), (errno.EROFS, "no permission"), (errno.EACCES, "no permission"), (errno.EIO, "I")],
)
def test_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, word: str) -> None:
    (tmp_path / "metrics.json").write_text("old")
    monkeypatch.setattr(os, "replace", fail_with(number))
    with pytest.raises(KvferryError, match=word) as caught:
        write_file(tmp_path / "metrics.json", b"new")
    assert not isinstance(caught.value, InputError)
    assert str(tmp_path / "metrics.json") in str(caught.value)
    # The old file stands, and nothing half-written lies beside it.
    assert contents(tmp_path) == {"metrics.json": b"old"}


def test_a_file_that_stops_halfway_is_not_there(tmp_path: Path) -> None:
    """For real: the system refuses to let a file grow beyond a limit."""
    code = (
        "import pathlib, resource, sys; from kvferry.system.whole_file import write_file;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "write_file(pathlib.Path(sys.argv[1]) / 'spans.parquet', bytes(5000))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert "KvferryError: cannot write" in done.stderr
    assert "spans.parquet" in done.stderr
    assert contents(tmp_path) == {}


def test_an_interrupt_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: object, target: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "trace.json", b"{}")
    assert contents(tmp_path) == {}


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    write_file(tmp_path / ("x" * 255), b"new")
    assert contents(tmp_path) == {"x" * 255: b"new"}
    with pytest.raises(KvferryError, match="longer than a file's may be"):
        write_file(tmp_path / ("x" * 256), b"new")


def test_a_device_or_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(KvferryError, match="pipe: it is a device or a pipe; name a file"):
        write_file(pipe, b"new")
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]

"""Folders of temporary stores do not outlive their process for long, however it ends."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kvferry.backends.live.loading.temporary_stores import TemporaryStores

OWNER = """
import sys, time
from kvferry.cli import main as command
from kvferry.backends.live.loading.temporary_stores import TemporaryStores

stores = TemporaryStores()
(stores.path / "a.kvs").write_bytes(b"x" * 1000)
def app(**_):
    print(stores.path, flush=True)
    time.sleep(60)
command.app = app
command.main()
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def ended_by(number: signal.Signals) -> tuple[Path, int]:
    """The folder of a process that was ended by this signal, and its exit code."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    path = Path(owner.stdout.readline().strip())
    assert (path / "a.kvs").exists()
    another = TemporaryStores()
    assert path.exists()  # it is another's, who lives
    another.remove()
    owner.send_signal(number)
    code = owner.wait(30)
    owner.stdout.close()
    return path, code


def test_a_terminated_process_leaves_nothing() -> None:
    path, code = ended_by(signal.SIGTERM)
    assert (path.exists(), code) == (False, 143)


def test_what_a_killed_process_left_is_swept_by_the_next() -> None:
    path, _ = ended_by(signal.SIGKILL)
    assert path.exists()
    stores = TemporaryStores()
    assert not path.exists() and stores.path.exists()
    stores.remove()
    assert not stores.path.exists()


def test_only_folders_of_this_kind_are_swept(tmp_path: Path) -> None:
    (tmp_path / "kvferry-stores-file").write_text("a file")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "kept").touch()
    os.symlink(tmp_path / "mine", tmp_path / "kvferry-stores-link")
    (tmp_path / "other").mkdir()
    TemporaryStores().remove()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"kvferry-stores-file", "kvferry-stores-link", "mine", "other"}
    assert (tmp_path / "mine" / "kept").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's folder")
def test_other_users_folders_are_left(tmp_path: Path) -> None:
    theirs = tmp_path / "kvferry-stores-theirs"
    theirs.mkdir()
    os.chown(theirs, 12_345, 12_345)
    TemporaryStores().remove()
    assert theirs.exists()

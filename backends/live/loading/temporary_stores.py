"""A folder of stores that goes with its process, however that ends; no torch is needed for it."""

import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

_PREFIX = "kvferry-stores-"


class TemporaryStores:
    """A folder for this process, removed when the process ends or this object goes.

    The process holds a lock on its folder, which the system releases however the process ends. Folders of this user
    that are locked by no process were left by killed ones: they are removed when the next folder is made.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path, lock = _locked_folder()
        self._remove = weakref.finalize(self, _remove, self.path, lock)

    def remove(self) -> None:
        self._remove()


def _locked_folder() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = _lock(path)
        if lock is not None:
            return path, lock
        # Another process swept it away before it was locked.


def _lock(path: Path) -> int | None:
    """The descriptor of a folder that this process has locked, or None if it is gone or another's."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(folder), os.lstat(path)):
            return folder
    except OSError:
        pass
    os.close(folder)
    return None


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _sweep(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                lock = _lock(path)
                if lock is not None:
                    _remove(path, lock)

"""A folder of stores, one file NAME.kvs for each context; nothing outside it can be reached."""

import re
import stat
from pathlib import Path
from threading import Lock

from kvferry.cloud.store import Store
from kvferry.specs.errors import InputError

SUFFIX = ".kvs"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class NoContext(InputError):
    """A name that is not in the folder, or leads out of it."""


class StoreFolder:
    """Stores by the name of their context. Given a single file, that one is all there is.

    Raises InputError when there is no such folder or file.
    """

    def __init__(self, path: Path) -> None:
        self._only: str | None = None
        if path.is_file() and path.suffix == SUFFIX:
            self._folder, self._only = path.parent.resolve(), path.stem
        elif path.is_dir():
            self._folder = path.resolve()
        else:
            what = f"not a store (NAME{SUFFIX}) nor a folder of stores" if path.exists() else "no such file or folder"
            raise InputError(f"{path}: {what}")
        self._stores: dict[str, tuple[tuple[int, ...], Store]] = {}
        self._lock = Lock()

    def names(self) -> list[str]:
        """The contexts that are there now, sorted."""
        return sorted(path.stem for path in self._folder.glob(f"*{SUFFIX}") if self._path(path.stem) is not None)

    def open(self, name: str) -> Store:
        """The context's store, opened once and shared; opened anew when the file was replaced.

        Raises NoContext, and DamagedStore for a file that is no store.
        """
        path = self._path(name)
        if path is None:
            raise NoContext(f"no context {name[:100]!r} here; there are: {', '.join(self.names()[:20]) or 'none'}")
        with self._lock:
            status = path.stat()
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            if name not in self._stores or self._stores[name][0] != version:
                # Whoever still reads from the one before keeps it; it is closed when nobody does.
                self._stores[name] = version, Store(path)
            return self._stores[name][1]

    def _path(self, name: str) -> Path | None:
        if not _NAME.fullmatch(name) or (self._only is not None and name != self._only):
            return None
        path = self._folder / f"{name}{SUFFIX}"
        try:
            kind = path.lstat().st_mode
        except OSError:
            return None
        if stat.S_ISLNK(kind):
            # Where a link leads counts, not where it lies.
            path = path.resolve()
            return path if path.parent == self._folder and path.is_file() else None
        return path if stat.S_ISREG(kind) else None

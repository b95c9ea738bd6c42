"""A folder of stores, one file NAME.kvs for each context. No name leads to a file outside the folder."""

import os
import re
import stat
import tempfile
from pathlib import Path
from threading import Lock

from kvferry.cloud.store import DamagedStore, Store, remove_unfinished
from kvferry.codecs.codec import DamagedChunk
from kvferry.specs.errors import InputError

SUFFIX = ".kvs"
# Files that are open between requests, a descriptor each; of others the one that was opened first is closed.
MOST_OPEN = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class NoContext(InputError):
    """The folder has no context of this name."""


class StoreFolder:
    """Stores by the name of their context. The path of a single store makes a folder with only that one.

    Raises InputError when the path is neither a folder nor a store.
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
        if self._only is None:
            remove_unfinished(self._folder)
        self._stores: dict[str, tuple[tuple[int, ...], Store]] = {}
        self._lock = Lock()

    def names(self) -> list[str]:
        """The names of the contexts that are in the folder now, sorted."""
        return sorted(path.stem for path in self._folder.glob(f"*{SUFFIX}") if self._path(path.stem) is not None)

    def open(self, name: str) -> Store:
        """The context's store. It is opened once and shared, and opened again when its file was replaced.

        Raises NoContext, and DamagedStore for a file that is no store.
        """
        path = self._path(name)
        if path is None:
            raise NoContext(f"no context {name[:100]!r} here; there are: {', '.join(self.names()[:20]) or 'none'}")
        with self._lock:
            status = path.stat()
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            if name not in self._stores or self._stores[name][0] != version:
                # Answers that are still read from the previous one keep it open until they end.
                self._stores.pop(name, None)
                self._stores[name] = version, Store(path)
                while len(self._stores) > MOST_OPEN:
                    del self._stores[next(iter(self._stores))]
            return self._stores[name][1]

    def keep(self, name: str, content: bytes) -> str:
        """Puts a store into the folder, under its name once it is whole, and returns its tag. Raises InputError for a
        name that is none, and for what is no store."""
        if not _NAME.fullmatch(name) or self._only is not None:
            raise InputError(f"no context can be put under {name[:100]!r}")
        path, part = self._folder / f"{name}{SUFFIX}", None
        try:
            handle, made = tempfile.mkstemp(dir=self._folder, prefix=f".{name}.", suffix=".part")
            part = Path(made)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            with Store(part) as store:
                tag = store.tag
                for level in range(store.index.header.levels):
                    store.read(range(store.index.lengths[..., level].size), level)
            part.replace(path)
        except (DamagedStore, DamagedChunk) as error:
            raise InputError(f"what was put is no store: {str(error).rpartition(': ')[2]}") from None
        except OSError as error:
            raise InputError(f"what was put cannot be kept: {error.strerror}") from None
        finally:
            if part is not None:
                part.unlink(missing_ok=True)
        return tag

    def _path(self, name: str) -> Path | None:
        if not _NAME.fullmatch(name) or (self._only is not None and name != self._only):
            return None
        path = self._folder / f"{name}{SUFFIX}"
        try:
            kind = path.lstat().st_mode
        except OSError:
            return None
        if stat.S_ISLNK(kind):
            # A link is served only when it leads to a file in this folder.
            path = path.resolve()
            return path if path.parent == self._folder and path.is_file() else None
        return path if stat.S_ISREG(kind) else None

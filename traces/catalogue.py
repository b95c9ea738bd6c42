"""Recorded bandwidth traces by name: where their public home is, how to read them, and how to know them again.

The files themselves are not part of the project. They lie in the folder that KVFERRY_TRACES names (else in the user's
cache), one folder per source, and are fetched into it on demand, each checked against its SHA-256.
"""

import hashlib
import logging
import os
import zipfile
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from kvferry.specs.base import Spec
from kvferry.specs.document import expanded
from kvferry.specs.errors import InputError, KvferryError
from kvferry.system.whole_file import write_file
from kvferry.traces.format import MAX_BYTES, read_lines
from kvferry.traces.rate import RateTrace

FOLDER_VARIABLE = "KVFERRY_TRACES"
# What a server may send: a source's archive at most.
_MAX_DOWNLOAD_BYTES = 512 * 2**20
_TIMEOUT_S = 30
# A path that stays inside its folder.
Inside = Annotated[str, Field(pattern=r"^[\w+-][\w.+-]*(/[\w+-][\w.+-]*)*$", max_length=200)]


class Entry(Spec):
    """One recorded trace."""

    about: str
    # Below the source's folder.
    file: Inside
    # Below the source's address, or within its archive; None: no stable address is known.
    at: str | None = None
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    reader: str
    drop_slow_start: bool = False
    # What to keep, in seconds from the first sample; None: from the beginning, to the end.
    trim_s: tuple[float | None, float | None] = (None, None)
    # The bundled model of a SparKV environment that this trace is nearest to.
    near: str | None = None


class Source(Spec):
    """A publication of traces, pinned to a commit."""

    about: str
    home: str
    commit: str | None = None
    licence: str
    # What `at` is appended to; with `archive`, that zip file is fetched and `at` is how the member's name ends.
    address: str | None = None
    archive: str | None = None
    # Whether a download from this address has succeeded.
    verified: bool = False
    # Why there is no address, when there is none.
    missing: str = ""
    traces: Mapping[str, Entry]


@lru_cache(maxsize=1)
def sources() -> Mapping[str, Source]:
    """Every source by the name of its folder."""
    import yaml

    text = "\n".join(read_lines(Path(__file__).with_name("catalogue.yaml")))
    return {name: Source.model_validate(source) for name, source in yaml.safe_load(text).items()}


@lru_cache(maxsize=1)
def catalogue() -> Mapping[str, tuple[str, Entry]]:
    """Every trace by name, with the name of its source."""
    return {name: (source, entry) for source, one in sources().items() for name, entry in one.traces.items()}


def folder() -> Path:
    """Where recorded traces lie: KVFERRY_TRACES, else the user's cache."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return expanded(named)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "kvferry" / "traces"


def path_of(name: str) -> Path:
    """The path of a trace's file, whether or not it has been fetched. Raises InputError for an unknown name."""
    if name not in catalogue():
        raise unknown_trace(name, catalogue())
    source, entry = catalogue()[name]
    return folder() / source / entry.file


def unknown_trace(name: str, known: Iterable[str]) -> InputError:
    """An error that suggests the nearest names: all of them would fill the screen."""
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return InputError(f"no trace is called {name!r:.200}.{hint} All names: kvferry traces list")


def recorded_trace(name: str) -> RateTrace:
    """A trace of the catalogue, read and trimmed as it says.

    Raises InputError when its file is not there (saying how to get it) or is another file of that name.
    """
    path = path_of(name)
    _, entry = catalogue()[name]
    if not path.is_file():
        raise InputError(f"the recorded trace {name!r} is not here ({path}); get it with: kvferry traces fetch {name}")
    _check(path, entry)
    from kvferry.traces.importers import import_trace

    return import_trace(path, entry.reader, drop_slow_start=entry.drop_slow_start, trim_s=entry.trim_s)


def fetch(name: str) -> Path:
    """Download a trace's file unless it is here already; its path.

    It appears under its name only whole and with the right SHA-256. Raises InputError for a name without an address,
    KvferryError when the server or what it sends is not as it should be.
    """
    path = path_of(name)
    source_name, entry = catalogue()[name]
    source = sources()[source_name]
    if path.is_file():
        _check(path, entry)
        return path
    if source.address is None or entry.at is None:
        raise InputError(f"{name!r} has no address to fetch it from: {source.missing} Put the file at {path}")
    url = source.address + (source.archive or entry.at)
    try:
        if source.archive is None:
            _download(url, path, f"sha256:{entry.sha256}")
        else:
            _download_member(url, path, entry)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        # requests' errors are OSErrors; pooch reports a wrong hash as a ValueError.
        what = " ".join(str(error).split())[:300] or type(error).__name__
        raise KvferryError(f"{name!r} could not be fetched from {url}: {what}. Or put the file at {path}") from None
    return path


def _download(url: str, path: Path, known_hash: str | None) -> None:
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    path.parent.mkdir(parents=True, exist_ok=True)
    # pooch downloads beside the target and renames when the hash is right.
    pooch.retrieve(url, known_hash, fname=path.name, path=path.parent, downloader=_bounded)


def _bounded(url: str, output: Any, _: Any) -> None:
    """pooch's downloader, with an end to waiting and to size."""
    import requests

    with requests.get(url, stream=True, timeout=_TIMEOUT_S) as response:
        response.raise_for_status()
        received = 0
        with open(output, "wb") as file:
            for part in response.iter_content(2**16):
                received += len(part)
                if received > _MAX_DOWNLOAD_BYTES:
                    raise ValueError(f"more than {_MAX_DOWNLOAD_BYTES:,} bytes")
                file.write(part)


def _download_member(url: str, path: Path, entry: Entry) -> None:
    """One file out of an archive, whose own hash is not known."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        archive_path = Path(scratch) / "archive.zip"
        _download(url, archive_path, None)
        with zipfile.ZipFile(archive_path) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(entry.at or "/")]
            if len(members) != 1 or members[0].file_size > MAX_BYTES:
                raise ValueError(f"no single file of readable size in it ends in {entry.at!r}")
            content = archive.read(members[0])
    if _sha256(content) != entry.sha256:
        raise ValueError(f"SHA-256 of {members[0].filename} is {_sha256(content)}, expected {entry.sha256}")
    write_file(path, content)


def _check(path: Path, entry: Entry) -> None:
    """Raise InputError when the file's SHA-256 is not the one in the catalogue."""
    found = _sha256(path.read_bytes()) if path.stat().st_size <= MAX_BYTES else "that of a much larger file"
    if found != entry.sha256:
        raise InputError(f"{path}: not the file that the catalogue means: SHA-256 is {found}, not {entry.sha256}")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

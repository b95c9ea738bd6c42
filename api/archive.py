"""The folder of a sweep or a search as one archive that others rerun, and such an archive as a folder again.

manifest.json names every file of the archive with its digest. Archives come from others: names are checked before
anything is written, sizes are bounded, and no code of theirs is run here.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import secrets
import shlex
import shutil
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kvferry.analysis.dataset import rows_bytes
from kvferry.analysis.envelope import to_json
from kvferry.analysis.study_record import (
    FRONT,
    ORDER,
    PROVENANCE,
    SEARCH,
    check_texts,
    keys_in_order,
    read_provenance,
    yaml_bytes,
)
from kvferry.analysis.study_text import files_of, with_files
from kvferry.scenarios.named_files import content_digest, portable_name
from kvferry.specs import human
from kvferry.specs.document import read_document, read_text, regular_file
from kvferry.specs.errors import InputError, KvferryError
from kvferry.system.whole_file import write_file

MANIFEST, POINTS = "manifest.json", "points.parquet"
SUFFIX = ".kvferry.zip"
MOST_ENTRIES, MOST_ENTRY_BYTES, MOST_BYTES = 5_000, 200_000_000, 500_000_000
# A manifest says a line of each file; names of one are no longer than file systems take.
MOST_MANIFEST_BYTES, MOST_PART_BYTES, MOST_NAME_BYTES = 5_000_000, 255, 1_000
# What an archive may hold.
_NAMES = re.compile(
    r"(manifest\.json|study\.yaml|search\.(yaml|json)|provenance\.json|points\.parquet|order\.parquet"
    r"|plugins/[0-9a-f]{12}/\w[\w.-]*\.py|plots/[\w.-]+\.(png|svg|pdf|tex)|files/[0-9a-f]{12}/[^/\\\0]+(/[^/\\\0]+)*)"
)
_CHUNK = 1 << 20
# Whole numbers that others count with, too.
_MOST_COUNT = 2**63
# Of entries: no clock is in an archive, so that equal folders make equal ones.
_WHEN = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Manifest:
    """``files``: SHA-256 by name; ``absent``: files too large to be packed, by the name under which they are looked
    for, with digest and size."""

    study: str
    code: str
    versions: Mapping[str, str]
    rows: int
    plugins: Mapping[str, str]
    files: Mapping[str, str]
    absent: Mapping[str, Mapping[str, Any]]


def pack(folder: Path, output: Path) -> Manifest:
    """Writes the archive of a sweep's or a search's folder. Equal folders give equal bytes. Raises InputError for a
    folder that has no rows or does not say what it is of."""
    provenance = read_provenance(folder)
    contents: dict[str, bytes] = {POINTS: _rows(folder)}
    tree = read_document(folder / provenance.text_file).plain()
    large = {str(path): f"files/{portable_name(path)}" for path in files_of(tree)}
    contents[provenance.text_file] = yaml_bytes(with_files(tree, large))
    kept = [path for part in ("plugins", "files", "plots") for path in sorted((folder / part).rglob("*"))]
    said = [PROVENANCE, ORDER, *([FRONT] if provenance.kind == "search" else [])]
    for path in (*(folder / name for name in said), *(path for path in kept if path.is_file())):
        name = path.relative_to(folder).as_posix()
        if _NAMES.fullmatch(name):
            if not _is_good(name):
                raise InputError(f"{folder}: {name!r:.100} is no name for a file of an artefact; give it a plainer one")
            contents[name] = _content(path)
    manifest = Manifest(
        study=provenance.study,
        code=provenance.code,
        versions=provenance.versions,
        rows=len(keys_in_order(folder)),
        plugins=provenance.plugins,
        files={name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
        absent={name: asdict(one) for name, one in provenance.files.items() if not one.kept},
    )
    contents[MANIFEST] = to_json(asdict(manifest)).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, _WHEN)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | 0o644) << 16
            archive.writestr(entry, contents[name])
    write_file(output, buffer.getvalue())
    return manifest


def _rows(folder: Path) -> bytes:
    """Returns the rows of the points alone, as a sweep or a search into an empty folder would write them."""
    return rows_bytes(folder, keys_in_order(folder))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        folder = shlex.quote(str(path.parent))
        again = f"kvferry search {shlex.quote(str(path.parent / SEARCH))} -o {folder}" if path.name == FRONT else ""
        raise InputError(f"{path}: is gone; {again or 'what made the folder'} writes it again") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def unpack(file: Path, folder: Path) -> Manifest:
    """Writes an archive's files below a folder, which is new or empty. Nothing is written unless all of it is good.

    Raises InputError for what is no such archive: names that lead elsewhere, links, too much of anything, a digest that
    is not the manifest's.
    """
    if problem := regular_file(file):
        raise InputError(f"{file} {problem}")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        own = f"; kvferry unpack {shlex.quote(str(folder))} --check checks it" if (folder / MANIFEST).is_file() else ""
        raise InputError(f"{folder}: is there already{own}; --output names a folder that is new or empty")
    try:
        with zipfile.ZipFile(file) as archive:
            contents = dict(_entries(file, archive))
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise InputError(f"{file}: is no archive of kvferry pack: {str(error)[:200]}") from None
    manifest = _manifest(file, contents.get(MANIFEST, b""))
    found = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items() if name != MANIFEST}
    for name in sorted({*found, *manifest.files}):
        if found.get(name) != manifest.files.get(name):
            raise InputError(f"{file}: {name} is not what its manifest says; it was changed, or is not whole")
    _write(folder, contents)
    return manifest


def _write(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes all files or none: into a folder with a name of its own first. Raises KvferryError."""
    there = folder.is_dir()
    # Within a folder that is there: it may be another disk than what lies beside it, or a shell's own folder.
    partial = (folder if there else folder.parent) / f".{secrets.token_hex(8)}.partial"
    try:
        for name, content in contents.items():
            write_file(partial / PurePosixPath(name), content)
        if there:
            for path in partial.iterdir():
                path.rename(folder / path.name)
        else:
            partial.rename(folder)
    except (KvferryError, OSError) as error:
        what = str(error).replace(str(partial), str(folder))
        raise KvferryError(f"{folder}: nothing was unpacked: {what}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _is_good(name: str) -> bool:
    """Returns whether a file of an artefact may be called so: it stays in its folder, and each file system takes it."""
    parts = name.split("/")
    lengths = [len(part.encode("utf-8", "surrogatepass")) for part in (*parts, name)]
    return (
        _NAMES.fullmatch(name) is not None
        and name.isprintable()
        and not {".", ".."} & {*parts}
        and max(lengths[:-1]) <= MOST_PART_BYTES
        and lengths[-1] <= MOST_NAME_BYTES
    )


def _entries(file: Path, archive: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    entries = archive.infolist()
    if len(entries) > MOST_ENTRIES:
        raise InputError(f"{file}: {len(entries):,} files; an artefact has at most {MOST_ENTRIES:,}")
    seen: set[str] = set()
    left = MOST_BYTES
    for entry in entries:
        name, kind = entry.filename, stat.S_IFMT(entry.external_attr >> 16)
        if not _is_good(name) or kind not in (0, stat.S_IFREG):
            raise InputError(f"{file}: {name!r:.100} is no file of an artefact; nothing was unpacked")
        if name.casefold() in seen:
            raise InputError(f"{file}: {name!r:.100} stands twice; nothing was unpacked")
        seen.add(name.casefold())
        most = MOST_MANIFEST_BYTES if name == MANIFEST else MOST_ENTRY_BYTES
        content = _bounded(file, archive, entry, min(left, most))
        left -= len(content)
        yield name, content
    for name in seen:
        if above := seen & {str(path) for path in PurePosixPath(name).parents}:
            raise InputError(f"{file}: {above.pop()!r:.100} is a file and a folder; nothing was unpacked")


def _bounded(file: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """Returns what an entry holds, whatever size it says it has."""
    found = bytearray()
    with archive.open(entry) as content:
        while chunk := content.read(_CHUNK):
            found += chunk
            if len(found) > most:
                what = f"holds more than {human.size(most)}; an artefact has at most {human.size(MOST_BYTES)}"
                raise InputError(f"{file}: {entry.filename!r:.100} {what}")
    return bytes(found)


def _manifest(file: Path, content: bytes) -> Manifest:
    try:
        found = Manifest(**json.loads(content))
        for key in ("study", "code"):
            if not isinstance(getattr(found, key), str):
                raise ValueError(f"{key} is {getattr(found, key)!r:.40} and no text")
        if type(found.rows) is not int or not 0 <= found.rows < _MOST_COUNT:
            raise ValueError(f"rows is {found.rows!r:.40} and no number of rows")
        for key in ("versions", "plugins", "files"):
            check_texts(key, getattr(found, key))
        if not isinstance(found.absent, dict):
            raise ValueError(f"absent is {found.absent!r:.40} and no mapping")
        for name, one in found.absent.items():
            if not _is_good(name):
                raise ValueError(f"absent names {name!r:.60}, which is no file of an artefact")
            check_texts(f"absent.{name:.60}", {"sha256": one["sha256"]})
            if type(one["bytes"]) is not int or not 0 <= one["bytes"] < _MOST_COUNT:
                raise ValueError(f"absent.{name:.60}.bytes is {one['bytes']!r:.40} and no size")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise InputError(f"{file}: {MANIFEST}: {str(error)[:200] or 'is missing'}") from None
    return found


def manifest_of(folder: Path) -> Manifest:
    """Returns the manifest of a folder that was unpacked before. Raises InputError."""
    if not (folder / MANIFEST).is_file():
        raise InputError(
            f"{folder}: holds no {MANIFEST}; give a file that kvferry pack wrote, or what was unpacked of it"
        )
    return _manifest(folder, read_text(folder / MANIFEST, MOST_MANIFEST_BYTES, "manifest").encode())


def missing_files(folder: Path, manifest: Manifest) -> list[str]:
    """Lines on files that were too large to pack and do not lie where they are looked for."""
    lines = []
    for name, one in manifest.absent.items():
        path = folder / PurePosixPath(name)
        if not path.exists():
            size = human.size(one["bytes"])
            lines.append(
                f"{path} is not in the artefact ({size}, sha256 {one['sha256'][:12]}...); put it there, then:"
                f" kvferry unpack {shlex.quote(str(folder))} --check"
            )
        elif content_digest(path) != one["sha256"]:
            lines.append(f"{path} is another file than the one that was used (sha256 {one['sha256'][:12]}...)")
    return lines

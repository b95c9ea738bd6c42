r"""KV blocks that stay in a file, where another process finds them: fixed places, and a log of what lies in them.

``FILE.log`` begins with what the KV is of, in JSON; then each frame says of places that something lies there from now
on (its name, and a digest of its bytes), or nothing. A place's old content is struck off before it is written over, and
the new one is noted once it is there. So a process that is killed at any moment leaves places that are noted and whole,
or not noted; what the power took, and what others have changed, does not fit its digest and is dropped. A digest is
made of the sums of the place's blocks, which are taken as they are written: in whole places, or part by part.
"""

import fcntl
import hashlib
import json
import os
import stat
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvferry.disk import log_frames
from kvferry.disk.block_sums import BlockSums
from kvferry.disk.direct_storage import BLOCK_BYTES, Data, Storage
from kvferry.disk.kv_log import log_of
from kvferry.disk.opened_file import failed
from kvferry.machine.ops import Extents
from kvferry.specs.errors import InputError

_NAME = "kvferry-kept-blocks"
FORMAT = f"{_NAME} 2"
# Kinds of frames.
_OF, _HERE, _GONE = b"keep", b"here", b"gone"
_PLACE = struct.Struct("<Q")
NAME_BYTES, _DIGEST_BYTES = 32, 16
_ENTRY_BYTES = _PLACE.size + NAME_BYTES + _DIGEST_BYTES


class _Entry(NamedTuple):
    """The name of what lies in a place, and the digest of its bytes."""

    name: bytes
    digest: bytes


class KeptBlocks:
    """A ByteStore of `places`, each of `place_bytes`. ``kept``: the place of each name; ``dropped``: how many blocks an
    earlier process had noted that are not whole any more.

    `of`: what the KV is of, which has to be the same for all processes. `make` opens the file's storage; `name_of`
    names the block with an id, by its content. Raises InputError for a file of other KV, or another's.
    """

    def __init__(
        self,
        path: Path,
        of: Mapping[str, str | int],
        *,
        places: int,
        place_bytes: int,
        make: Callable[[Path, BlockSums], Storage],
        name_of: Callable[[int], bytes],
    ) -> None:
        if place_bytes % BLOCK_BYTES:
            what = f"a block of {place_bytes:,} bytes lies in no whole number of the {BLOCK_BYTES:,} that are read"
            raise InputError(f"workload.block: {what}; a larger one would do")
        self.path, self._place_bytes, self._name_of = path, place_bytes, name_of
        self._lock = _locked(path)
        self._log, self._log_bytes = -1, 0
        try:
            noted = _noted(path, {"format": FORMAT, **of, "place bytes": place_bytes})
            self._sums = sums = BlockSums(places * place_bytes)
            self._entries = self._whole(noted, places)
            # Places whose sums are recorded.
            self._summed = set(self._entries)
            self.dropped = len(noted) - len(self._entries)
            # Without what is no more there, and under its name only once it is whole.
            self._begin_log(of)
            _sized(path, self._lock, places * place_bytes)
            self.kept = {name: place for place, (name, _) in self._entries.items()}
            self.storage = make(path, sums)
        except BaseException:
            self.close()
            raise

    def read(self, extents: Extents) -> Data:
        return self.storage.read(extents)

    def write(self, extents: Extents, data: bytes | bytearray | memoryview) -> None:
        """Raises StorageFull and other StorageErrors: then nothing is noted in these places."""
        assert extents.blocks is not None
        places = [offset // self._place_bytes for offset, _ in extents]
        self._strike(places)
        self.storage.write(extents, data)
        self._summed.update(places)
        self.note(dict(zip(extents.blocks, places, strict=True)))

    def write_parts(self, extents: Extents, data: bytes | bytearray | memoryview) -> None:
        """Writes parts of places, in which nothing is noted until ``note`` says what they hold."""
        places = np.unique(extents.arrays[0] // self._place_bytes).tolist()
        self._strike(places)
        for place in set(places) - self._summed:
            # Its blocks are written in part, too: what is there now is known from here on.
            self._sums.record(self._blocks_of(place), memoryview(self._there(place)))
            self._summed.add(place)
        self.storage.write(extents, data)

    def note(self, blocks: Mapping[int, int]) -> None:
        """Notes blocks that lie whole in these places."""
        entries = [_Entry(self._name_of(block), self._digest(place)) for block, place in blocks.items()]
        if entries:
            self._note([*blocks.values()], entries)

    def close(self) -> None:
        if hasattr(self, "storage"):
            self.storage.close()
        for fd in (self._log, self._lock):
            if fd >= 0:
                os.close(fd)
        self._log = self._lock = -1

    # --- the log -------------------------------------------------------------------------------------------------

    def _strike(self, places: Sequence[int]) -> None:
        taken = [place for place in places if place in self._entries]
        if taken:
            self._append(_GONE, b"".join(map(_PLACE.pack, taken)))
        for place in taken:
            name, _ = self._entries.pop(place)
            if self.kept.get(name) == place:
                del self.kept[name]

    def _note(self, places: Sequence[int], entries: Sequence[_Entry]) -> None:
        self._append(_HERE, _packed(zip(places, entries, strict=True)))
        for place, entry in zip(places, entries, strict=True):
            self._entries[place] = entry
            self.kept[entry.name] = place

    def _append(self, kind: bytes, content: bytes) -> None:
        self._log_bytes = log_frames.append(self._log, log_of(self.path), self._log_bytes, kind, content)

    def _begin_log(self, of: Mapping[str, str | int]) -> None:
        path = log_of(self.path)
        part = path.with_name(path.name + ".part")
        said = json.dumps({"format": FORMAT, **of, "place bytes": self._place_bytes}).encode()
        try:
            part.unlink(missing_ok=True)
            self._log = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            self._log_bytes = log_frames.append(self._log, part, 0, _OF, said)
            if self._entries:
                content = _packed(self._entries.items())
                self._log_bytes = log_frames.append(self._log, part, self._log_bytes, _HERE, content)
            os.fsync(self._log)
            part.replace(path)
        except OSError as error:
            raise failed("make", path, 0, self._log_bytes, error) from error

    def _whole(self, noted: Mapping[int, _Entry], places: int) -> dict[int, _Entry]:
        """Returns the entries whose bytes are there, and records their sums."""
        found = dict[int, _Entry]()
        for place, entry in noted.items():
            if place >= places:
                continue
            there = self._there(place)
            if len(there) < self._place_bytes:
                continue
            self._sums.record(self._blocks_of(place), memoryview(there))
            if self._digest(place) == entry.digest:
                found[place] = entry
        return found

    def _there(self, place: int) -> bytes:
        return os.pread(self._lock, self._place_bytes, place * self._place_bytes)

    def _blocks_of(self, place: int) -> np.ndarray:
        """The numbers of a place's blocks in the file."""
        each = self._place_bytes // BLOCK_BYTES
        return np.arange(place * each, (place + 1) * each)

    def _digest(self, place: int) -> bytes:
        each = self._place_bytes // BLOCK_BYTES
        return hashlib.blake2b(self._sums.of(place * each, each).tobytes(), digest_size=_DIGEST_BYTES).digest()


def _packed(entries: Iterable[tuple[int, _Entry]]) -> bytes:
    return b"".join(_PLACE.pack(place) + name + digest for place, (name, digest) in entries)


def _locked(path: Path) -> int:
    """Returns the file's descriptor, which no other process has while this one does."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise InputError(f"live.kv_file: {path} cannot be written: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise InputError(f"live.kv_file: {path} is no regular file; name another")
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise InputError(f"live.kv_file: {path} is being used by another run; name another file") from None
    return fd


def _sized(path: Path, fd: int, n_bytes: int) -> None:
    """Makes the file as long as its places. Raises StorageFull."""
    try:
        os.ftruncate(fd, min(n_bytes, os.fstat(fd).st_size))
        if n_bytes:
            os.posix_fallocate(fd, 0, n_bytes)
    except OSError as error:
        raise failed("make", path, 0, n_bytes, error) from error


def _noted(path: Path, of: Mapping[str, str | int]) -> dict[int, _Entry]:
    """Returns what the file's log says of its places. Raises InputError where it says that the KV is of something else,
    or there is a file without it."""
    log = log_of(path)
    if not log.is_file():
        if path.stat().st_size:
            raise InputError(f"live.kv_file: {path} is nothing that a run has left, and would be lost; name another")
        return {}
    noted: dict[int, _Entry] = {}
    try:
        with log.open("rb") as file:
            first = True
            for frame in log_frames.frames(file, log):
                content = log_frames.content_of(file, log, frame)
                if first:
                    _check(path, frame.kind, content, of)
                elif frame.kind == _GONE:
                    for (place,) in _PLACE.iter_unpack(content):
                        noted.pop(place, None)
                elif frame.kind == _HERE and len(content) % _ENTRY_BYTES == 0:
                    for at in range(0, len(content), _ENTRY_BYTES):
                        name_at = at + _PLACE.size
                        name, digest = content[name_at : name_at + NAME_BYTES], content[name_at + NAME_BYTES :]
                        noted[_PLACE.unpack_from(content, at)[0]] = _Entry(name, digest[:_DIGEST_BYTES])
                else:
                    raise InputError(f"{log}: a frame of another kind, {frame.kind!r}")
                first = False
            if first:
                raise InputError(f"{log}: is no log of kept KV")
    except InputError as error:
        raise InputError(f"live.kv_file: {error}; delete it and its log, or name another") from None
    except OSError as error:
        raise InputError(f"live.kv_file: {log} cannot be read: {error.strerror}") from None
    return noted


def _check(path: Path, kind: bytes, content: bytes, of: Mapping[str, str | int]) -> None:
    """Raises InputError unless the first frame says the same."""
    try:
        said = json.loads(content) if kind == _OF else None
    except ValueError:
        said = None
    found = said.get("format") if isinstance(said, dict) else None
    if isinstance(found, str) and found != of["format"] and found.startswith(_NAME):
        raise InputError(f"{path} is of another version of KVFerry ({found}; {of['format']} is read)")
    if not isinstance(said, dict) or found != of["format"]:
        raise InputError(f"{log_of(path)}: is no log of kept KV")
    differ = [key for key in of if said.get(key) != of[key]]
    if differ:
        shown = ", ".join(f"{key} {said.get(key)!s:.80} instead of {of[key]}" for key in differ)
        raise InputError(f"{path} holds other KV: {shown}")

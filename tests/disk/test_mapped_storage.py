"""A mapped file: what it holds, how much of it is in memory, and what happens when others change it."""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from kvferry.disk.mapped_storage import MappedStorage
from kvferry.disk.opened_file import StorageError, file_system
from kvferry.machine.ops import Extents
from kvferry.specs.errors import InputError

MIB = 1 << 20
SIZE, HELD = 4 * MIB, MIB
CONTENT = np.random.default_rng(1).bytes(SIZE)


def resident_bytes(storage: MappedStorage) -> int:
    """What of the file lies in the page cache, as the kernel says."""
    libc = ctypes.CDLL(None, use_errno=True)
    pages = storage.size_bytes // 4096
    there = (ctypes.c_ubyte * pages)()
    address = ctypes.c_void_p(storage._bytes.ctypes.data)
    assert libc.mincore(address, ctypes.c_size_t(storage.size_bytes), there) == 0, os.strerror(ctypes.get_errno())
    return 4096 * int((np.frombuffer(there, np.uint8) & 1).sum())


def test_what_was_written_is_read_from_far_less_memory(tmp_path: Path) -> None:
    content = np.random.default_rng(1).integers(0, 256, 8 * MIB, np.uint8)
    with MappedStorage.create(tmp_path / "kv.bin", 8 * MIB, most_bytes=MIB) as storage:
        storage.write(Extents((0, 5 * MIB), (5 * MIB, 3 * MIB)), content.tobytes())
        drops = file_system(os.stat(tmp_path).st_dev) not in ("tmpfs", "ramfs")
        assert not drops or resident_bytes(storage) <= 1.5 * MIB
        for _ in range(2):
            read = storage.read(Extents((512, 7 * MIB), (MIB, MIB)))
            first, last = read.rows()
            assert (first == content[512 : MIB + 512]).all()
            assert (last == content[7 * MIB :]).all()
            read.release()
        # Going round through more than memory holds, everything faults again every time.
        assert storage.pages.faulted_bytes == 4 * MIB
        assert storage.pages.peak_bytes == MIB
        storage.read(Extents((0,), (8 * MIB,)))
        assert not drops or resident_bytes(storage) <= 1.5 * MIB


def test_what_memory_holds_does_not_fault_again(tmp_path: Path) -> None:
    with MappedStorage.create(tmp_path / "kv.bin", 2 * MIB, most_bytes=2 * MIB) as storage:
        for _ in range(3):
            storage.read(Extents((0, MIB), (MIB, MIB)))
        assert storage.pages.faulted_bytes == 2 * MIB
        assert storage.pages.written_back_bytes == 0


@pytest.mark.parametrize("extent", [(2 * MIB - 1, 2), (-1, 1), (0, 2 * MIB + 1)])
def test_extents_outside_are_refused(tmp_path: Path, extent: tuple[int, int]) -> None:
    with MappedStorage.create(tmp_path / "kv.bin", 2 * MIB, most_bytes=MIB) as storage:
        with pytest.raises(StorageError, match="do not lie inside"):
            storage.read(Extents((extent[0],), (extent[1],)))
        with pytest.raises(InputError, match="4 bytes are to be written to .*, and 2 were given"):
            storage.write(Extents((0,), (4,)), b"no")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MappedStorage]:
    """Written in pieces that are no whole blocks; memory holds its last quarter by then."""
    with MappedStorage.create(tmp_path / "kv.bin", SIZE, most_bytes=HELD) as store:
        for at in range(0, SIZE, 200_000):
            part = CONTENT[at : at + 200_000]
            store.write(Extents((at,), (len(part),)), part)
        yield store


def cut(path: Path) -> None:
    os.truncate(path, SIZE // 2)


def cut_and_stretch(path: Path) -> None:
    os.truncate(path, 0)
    os.truncate(path, SIZE)


def flip_a_bit(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(bytes([CONTENT[0] ^ 1]))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (cut, f"kv.bin has {SIZE // 2} bytes; .* has been cut"),
        (cut_and_stretch, "kv.bin holds zeros where something else was written, .* at offset 0: "),
        (flip_a_bit, "kv.bin holds other bytes than were written there, .* at offset 0: "),
    ],
)
def test_a_file_that_others_changed_is_neither_read_nor_written(
    store: MappedStorage, harm: Callable[[Path], None], message: str
) -> None:
    harm(store.path)
    with pytest.raises(StorageError, match=message):
        store.read(Extents((100,), (10,)))
    with pytest.raises(StorageError, match=message):
        store.write(Extents((100,), (10,)), bytes(10))

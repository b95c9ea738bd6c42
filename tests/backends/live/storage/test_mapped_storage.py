"""A mapped file: what it holds, how much of it is in memory, and what happens when it is cut."""

import ctypes
import os
from pathlib import Path

import numpy as np
import pytest

from kvferry.backends.live.storage.mapped_storage import MappedStorage
from kvferry.backends.live.storage.opened_file import StorageError, file_system
from kvferry.machine.ops import Extents
from kvferry.specs.errors import InputError

MIB = 1 << 20


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
        assert storage.faulted_bytes == 4 * MIB
        assert storage.peak_bytes == MIB
        storage.read(Extents((0,), (8 * MIB,)))
        assert not drops or resident_bytes(storage) <= 1.5 * MIB


def test_what_memory_holds_does_not_fault_again(tmp_path: Path) -> None:
    with MappedStorage.create(tmp_path / "kv.bin", 2 * MIB, most_bytes=2 * MIB) as storage:
        for _ in range(3):
            storage.read(Extents((0, MIB), (MIB, MIB)))
        assert storage.faulted_bytes == 2 * MIB
        assert storage.written_back_bytes == 0


def test_a_cut_file_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    with MappedStorage.create(tmp_path / "kv.bin", 2 * MIB, most_bytes=MIB) as storage:
        os.truncate(tmp_path / "kv.bin", MIB)
        with pytest.raises(StorageError, match="has been cut"):
            storage.read(Extents((0,), (4096,)))
        with pytest.raises(StorageError, match="has been cut"):
            storage.write(Extents((0,), (4,)), b"four")


@pytest.mark.parametrize("extent", [(2 * MIB - 1, 2), (-1, 1), (0, 2 * MIB + 1)])
def test_extents_outside_are_refused(tmp_path: Path, extent: tuple[int, int]) -> None:
    with MappedStorage.create(tmp_path / "kv.bin", 2 * MIB, most_bytes=MIB) as storage:
        with pytest.raises(StorageError, match="do not lie inside"):
            storage.read(Extents((extent[0],), (extent[1],)))
        with pytest.raises(InputError, match="4 bytes are to be written to .*, and 2 were given"):
            storage.write(Extents((0,), (4,)), b"no")

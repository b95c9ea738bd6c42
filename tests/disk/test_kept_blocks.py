"""Blocks of KV in a file that stays: another process finds those that are whole, and no others."""

import errno
import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kvferry.disk import kept_blocks
from kvferry.disk.block_sums import BlockSums
from kvferry.disk.direct_storage import Storage
from kvferry.disk.kept_blocks import KeptBlocks
from kvferry.disk.kv_log import log_of
from kvferry.disk.opened_file import StorageError, StorageFull
from kvferry.machine.ops import Extents
from kvferry.specs.errors import InputError

SIZE = 4096


def name(block: int) -> bytes:
    return sha256(str(block).encode()).digest()


def content(block: int) -> bytes:
    return bytes([block]) * SIZE


def opened(path: Path, places: int = 4, size: int = SIZE, **of: str | int) -> KeptBlocks:
    def storage(where: Path, sums: BlockSums) -> Storage:
        return Storage(where, writable=True, sums=sums)

    said = {"model": "a", "block tokens": 16} | of
    return KeptBlocks(path, said, places=places, place_bytes=size, make=storage, name_of=name)


def at(*places: int, blocks: Sequence[int] = ()) -> Extents:
    return Extents([place * SIZE for place in places], [SIZE] * len(places), blocks=list(blocks) or None)


def write(kept: KeptBlocks, **blocks: int) -> None:
    """By place, p0 and so on."""
    places = [int(place[1:]) for place in blocks]
    kept.write(at(*places, blocks=list(blocks.values())), b"".join(map(content, blocks.values())))


def names(kept: KeptBlocks) -> dict[bytes, int]:
    return dict(kept.kept)


def test_what_was_written_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    kept = opened(path)
    write(kept, p0=7, p2=9)
    # Another block in the first place: the one that was there is no more.
    write(kept, p0=8)
    kept.close()
    again = opened(path)
    assert names(again) == {name(8): 0, name(9): 2} and again.dropped == 0
    assert bytes(again.read(at(0, 2))) == content(8) + content(9)
    again.close()
    # The log was begun with what is there: it does not grow from run to run.
    size = log_of(path).stat().st_size
    opened(path).close()
    assert log_of(path).stat().st_size == size


@pytest.mark.parametrize(("cut", "left"), [(0, {}), (4095, {}), (4096, {7: 0}), (8192, {7: 0, 8: 1})])
def test_a_file_that_was_cut(tmp_path: Path, cut: int, left: dict[int, int]) -> None:
    path = tmp_path / "kv"
    kept = opened(path)
    write(kept, p0=7, p1=8, p2=9)
    kept.close()
    os.truncate(path, cut)
    again = opened(path)
    assert names(again) == {name(block): place for block, place in left.items()}
    assert again.dropped == 3 - len(left)
    # It has all its room again.
    write(again, p3=5)
    assert bytes(again.read(at(3))) == content(5)
    again.close()


def test_a_log_that_was_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    kept = opened(path)
    whole, sizes = [names(kept)], [log_of(path).stat().st_size]
    for n, block in enumerate((7, 8, 9)):
        write(kept, **{f"p{n % 2}": block})
        whole.append(names(kept))
        sizes.append(log_of(path).stat().st_size)
    kept.close()
    data, log = path.read_bytes(), log_of(path).read_bytes()
    for cut in range(sizes[0], len(log)):
        path.write_bytes(data)
        log_of(path).write_bytes(log[:cut])
        again = opened(path)
        # No more than was noted by then, and that only if it is still there.
        for one, place in again.kept.items():
            block = next(block for block in (7, 8, 9) if name(block) == one)
            assert bytes(again.read(at(place))) == content(block)
        again.close()


def test_a_place_is_struck_off_before_it_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kv"
    kept = opened(path)
    write(kept, p0=7, p1=8)

    def full(fd: int, buffers: Sequence[Any], offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(StorageFull, match="the device is full"):
            write(kept, p0=9)
    assert names(kept) == {name(8): 1}
    kept.close()
    assert names(opened(path)) == {name(8): 1}


def test_bytes_that_others_changed(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    kept = opened(path)
    write(kept, p0=7, p1=8)
    kept.close()
    with path.open("r+b") as file:
        file.seek(SIZE + 5)
        file.write(b"?")
    again = opened(path)
    assert names(again) == {name(7): 0} and again.dropped == 1
    # While it is open, a read tells.
    with path.open("r+b") as file:
        file.write(b"?")
    with pytest.raises(StorageError, match="holds other bytes than were written there"):
        again.read(at(0))
    again.close()


def test_fewer_places_and_more(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    kept = opened(path)
    write(kept, p0=7, p3=8)
    kept.close()
    fewer = opened(path, places=2)
    assert names(fewer) == {name(7): 0} and path.stat().st_size == 2 * SIZE
    fewer.close()
    more = opened(path, places=9)
    assert names(more) == {name(7): 0} and path.stat().st_size == 9 * SIZE
    more.close()


def test_other_kv_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    kept = opened(path)
    write(kept, p0=7)
    with pytest.raises(InputError, match="kv is being used by another run; name another file"):
        opened(path)
    kept.close()
    with pytest.raises(
        InputError, match="live.kv_file: .*kv holds other KV: model a instead of b, block tokens 16 instea"
    ):
        opened(path, **{"model": "b", "block tokens": 32})
    assert names(opened(path)) == {name(7): 0}


def test_a_file_of_another_version_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_blocks, "FORMAT", "kvferry-kept-blocks 1")
    opened(tmp_path / "kv").close()
    monkeypatch.undo()
    said = r"kv is of another version of KVFerry \(kvferry-kept-blocks 1; kvferry-kept-blocks 2 is read\); delete it"
    with pytest.raises(InputError, match=said):
        opened(tmp_path / "kv")


@pytest.mark.parametrize("log", [None, b"a letter", b"KVFR and no more, though it is long enough"])
def test_a_file_of_a_user_is_not_touched(tmp_path: Path, log: bytes | None) -> None:
    path = tmp_path / "kv"
    path.write_bytes(b"a thesis")
    if log is not None:
        log_of(path).write_bytes(log)
    with pytest.raises(InputError, match="live.kv_file: ") as error:
        opened(path)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == b"a thesis"


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """A device has no length either, as a new file."""
    path = tmp_path / "kv"
    os.mkfifo(path)
    with pytest.raises(InputError, match="kv is no regular file; name another"):
        opened(path)
    assert not log_of(path).exists()


def test_no_room_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, begin: int, n_bytes: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageFull, match="cannot make 16384 bytes of .*kv at offset 0: the device is full"):
        opened(tmp_path / "kv")


def test_blocks_that_end_between_blocks_of_the_device(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="workload.block: a block of 6,144 bytes lies in no whole number of the 4,096"):
        opened(tmp_path / "kv", size=6144)
    assert not (tmp_path / "kv").exists()


def part(place: int, begin: int, n_bytes: int) -> Extents:
    return Extents([place * SIZE + begin], [n_bytes])


def test_a_place_that_was_written_part_by_part(tmp_path: Path) -> None:
    path = tmp_path / "kv"
    kept = opened(path)
    write(kept, p0=7)
    # In part over one that is noted, and over bytes that an earlier run has left.
    kept.write_parts(part(0, 0, 1000), bytes([9]) * 1000)
    assert names(kept) == {}
    kept.write_parts(part(0, 1000, SIZE - 1000), bytes([9]) * (SIZE - 1000))
    kept.write_parts(part(1, 100, 50), b"x" * 50)
    kept.note({9: 0})
    kept.close()
    again = opened(path)
    assert names(again) == {name(9): 0} and again.dropped == 0
    assert bytes(again.read(at(0))) == content(9)
    again.write_parts(part(1, 0, 10), b"y" * 10)
    assert bytes(again.read(part(1, 0, 151))) == b"y" * 10 + bytes(90) + b"x" * 50 + bytes(1)
    # Half of it, and no note: nothing is there.
    again.write_parts(part(0, 0, 1000), bytes(1000))
    again.close()
    last = opened(path)
    assert names(last) == {} and last.dropped == 0
    last.close()

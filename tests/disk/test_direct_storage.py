"""A storage file: what is written is read, wherever it lies; errors name file and offset."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.disk import parts_of_blocks as module
from kvferry.disk.direct_storage import BLOCK_BYTES, Data, Storage, StorageError
from kvferry.disk.opened_file import file_system
from kvferry.machine.ops import Extents
from kvferry.specs.errors import InputError
from kvferry.system.aligned_memory import address, aligned_memory

SIZE = 16 * BLOCK_BYTES


def extents(*pieces: tuple[int, int]) -> Extents:
    return Extents(tuple(offset for offset, _ in pieces), tuple(length for _, length in pieces))


def pattern(n_bytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(n_bytes)


@pytest.fixture(params=["direct", "page cache"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """A file of 16 blocks with a pattern in it; commands of 2 blocks, 3 at once."""
    path = tmp_path / "kv.bin"
    path.write_bytes(pattern(SIZE))
    direct = request.param == "direct"
    with Storage(path, writable=True, depth=3, command_bytes=2 * BLOCK_BYTES, direct=direct) as store:
        if direct and store.note:
            pytest.skip(store.note)
        yield store


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [(0, 0)],
        [(0, BLOCK_BYTES)],
        [(0, SIZE)],  # eight commands
        [(3 * BLOCK_BYTES, BLOCK_BYTES), (0, 2 * BLOCK_BYTES)],
        [(1, 1)],
        [(BLOCK_BYTES - 1, 2)],  # over the edge of a block
        [(100, 5 * BLOCK_BYTES), (7, 0), (SIZE - 1, 1), (SIZE, 0)],
    ],
)
def test_extents_are_read_as_they_lie(store: Storage, pieces: list[tuple[int, int]]) -> None:
    data = store.read(extents(*pieces))
    whole = pattern(SIZE)
    assert bytes(data) == b"".join(whole[offset : offset + length] for offset, length in pieces)
    assert [len(view) for view in data.views] == [length for _, length in pieces]


def test_writing_changes_these_bytes_and_no_others(store: Storage) -> None:
    pieces = [(2 * BLOCK_BYTES, 3 * BLOCK_BYTES), (100, 50), (8 * BLOCK_BYTES - 1, BLOCK_BYTES + 2), (SIZE - 3, 3)]
    new = pattern(sum(length for _, length in pieces), seed=1)
    expected = bytearray(pattern(SIZE))
    at = 0
    for offset, length in pieces:
        expected[offset : offset + length] = new[at : at + length]
        at += length
    store.write(extents(*pieces), new)
    assert bytes(store.read(extents((0, SIZE)))) == expected
    assert store.path.read_bytes() == expected


@given(
    writes=st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 3 * BLOCK_BYTES), st.booleans()), max_size=6),
    reads=st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 3 * BLOCK_BYTES)), max_size=6),
)
def test_a_file_is_an_array_of_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    writes: list[tuple[int, int, bool]],
    reads: list[tuple[int, int]],
) -> None:
    plain = bytearray(SIZE)
    path = tmp_path_factory.mktemp("store") / "kv.bin"
    with Storage.create(path, SIZE, depth=2, command_bytes=BLOCK_BYTES) as store:
        for i, (offset, length, on_blocks) in enumerate(writes):
            if on_blocks:
                offset, length = offset // BLOCK_BYTES * BLOCK_BYTES, length // BLOCK_BYTES * BLOCK_BYTES
            length = min(length, SIZE - offset)
            plain[offset : offset + length] = pattern(length, seed=i)
            store.write(extents((offset, length)), pattern(length, seed=i))
        pieces = [(offset, min(length, SIZE - offset)) for offset, length in reads]
        assert bytes(store.read(extents(*pieces))) == b"".join(plain[o : o + n] for o, n in pieces)


def test_a_file_that_ends_inside_a_block_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "odd.bin"
    path.write_bytes(pattern(BLOCK_BYTES + 100))
    with Storage(path, depth=2, command_bytes=BLOCK_BYTES) as store:
        assert bytes(store.read(extents((BLOCK_BYTES - 5, 105)))) == pattern(BLOCK_BYTES + 100)[-105:]
    if store.note is None:
        with pytest.raises(InputError, match="needs a multiple of 4096"):
            Storage(path, writable=True)


@pytest.mark.parametrize("piece", [(0, SIZE + 1), (SIZE, 1), (-1, 2), (5, -1)])
def test_what_does_not_lie_in_the_file_is_refused(store: Storage, piece: tuple[int, int]) -> None:
    with pytest.raises(StorageError, match=rf"kv.bin has {SIZE} bytes; {piece[1]} at offset {piece[0]} "):
        store.read(extents(piece))


def test_as_many_bytes_as_extents_must_be_given(store: Storage) -> None:
    with pytest.raises(InputError, match="2 bytes are to be written to .*kv.bin, and 3 were given"):
        store.write(extents((0, 1), (5, 1)), b"abc")
    assert store.path.read_bytes() == pattern(SIZE)


def test_extents_may_be_arrays(store: Storage) -> None:
    offsets = np.array([5 * BLOCK_BYTES, 0, 3 * BLOCK_BYTES + 7])
    lengths = np.array([BLOCK_BYTES, 0, 100])
    assert bytes(store.read(Extents(offsets, lengths))) == bytes(
        store.read(Extents(tuple(offsets.tolist()), tuple(lengths.tolist())))
    )


def test_thousands_of_commands_in_one_request(tmp_path: Path) -> None:
    blocks = 2500
    with Storage.create(tmp_path / "kv.bin", blocks * BLOCK_BYTES, depth=5) as store:
        marks = np.zeros((blocks, BLOCK_BYTES), np.uint8)
        marks.view(np.int64)[:, 0] = np.arange(blocks)
        order = np.random.default_rng(3).permutation(blocks)
        each = Extents(order * BLOCK_BYTES, np.full(blocks, BLOCK_BYTES))
        store.write(each, marks[order].tobytes())
        for _ in range(3):
            data = store.read(each)
            found = [int.from_bytes(view[:8], "little") for view in data.views]
            assert found == order.tolist()
            data.release()
    assert (np.fromfile(tmp_path / "kv.bin", np.int64).reshape(blocks, -1)[:, 0] == np.arange(blocks)).all()


def test_threads_share_a_storage(store: Storage) -> None:
    whole = pattern(SIZE)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(50):
            pieces = [(int(o), int(n)) for o, n in zip(rng.integers(0, SIZE // 2, 4), rng.integers(0, SIZE // 2, 4))]
            data = store.read(extents(*pieces))
            assert bytes(data) == b"".join(whole[offset : offset + length] for offset, length in pieces)
            data.release()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, range(4)))


def test_what_lies_askew_in_memory_is_written_in_portions(store: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_COPIED_BYTES", 4 * BLOCK_BYTES)
    memory = aligned_memory(SIZE + BLOCK_BYTES)[3:]
    new = pattern(SIZE, seed=2)
    memory[:SIZE] = new
    store.write(extents((0, SIZE)), memory[:SIZE])
    assert store.path.read_bytes() == new


def test_after_closing_nothing_is_read(store: Storage) -> None:
    store.close()
    store.close()
    with pytest.raises(StorageError, match=r"kv\.bin has been closed"):
        store.read(extents((0, 1)))


@pytest.mark.parametrize("setting", [{"depth": 0}, {"command_bytes": 1000}, {"command_bytes": 0}])
def test_settings_that_make_no_sense_are_reported(tmp_path: Path, setting: dict[str, int]) -> None:
    (tmp_path / "kv.bin").write_bytes(b"x")
    with pytest.raises(InputError, match="depth of at least 1 and commands of a multiple of 4096"):
        Storage(tmp_path / "kv.bin", **setting)  # type: ignore[arg-type]


def test_a_new_file_has_its_room_and_is_zero(tmp_path: Path) -> None:
    with Storage.create(tmp_path / "kv.bin", 5000) as store:
        assert store.size_bytes == 2 * BLOCK_BYTES  # whole blocks
        assert bytes(store.read(extents((0, 2 * BLOCK_BYTES)))) == bytes(2 * BLOCK_BYTES)
    assert [path.name for path in tmp_path.iterdir()] == ["kv.bin"]
    assert (tmp_path / "kv.bin").stat().st_mode & 0o777 == 0o600


def test_memory_given_back_is_used_again_and_other_is_not(store: Storage) -> None:
    def where(data: Data) -> int:
        return address(data.views[0])

    first, second = store.read(extents((0, SIZE))), store.read(extents((0, SIZE)))
    was = where(first)
    assert was != where(second)
    first.release()
    first.release()  # harmless
    assert first.views == []
    third, fourth = store.read(extents((0, SIZE))), store.read(extents((0, SIZE)))
    assert where(third) == was
    assert where(fourth) != was
    assert bytes(second) == bytes(third) == bytes(fourth) == pattern(SIZE)


def test_a_file_system_without_direct_io_is_used_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kv.bin"
    path.write_bytes(pattern(SIZE))
    os_open = os.open

    def refuse(name: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return os_open(name, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with Storage(path) as store:
        assert store.note is not None
        assert "kv.bin refuses direct I/O" in store.note
        assert bytes(store.read(extents((10, 20)))) == pattern(SIZE)[10:30]


def test_memory_that_looks_like_a_file_is_called_so() -> None:
    folder = Path("/dev/shm")
    if file_system(folder.stat().st_dev if folder.exists() else 0) != "tmpfs":
        pytest.skip("no file system in memory here")
    path = folder / f"kvferry-test-{os.getpid()}"
    path.write_bytes(pattern(SIZE))
    try:
        with Storage(path) as store:
            assert store.note is not None
            assert "memory (tmpfs)" in store.note or "refuses direct I/O" in store.note
            assert bytes(store.read(extents((10, 20)))) == pattern(SIZE)[10:30]
    finally:
        path.unlink()

"""Storage that fails: cut files, full devices, failing commands. A clear error each time, and nothing hangs."""

import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvferry.backends.live.engine.machine import LiveMachine
from kvferry.disk.direct_storage import BLOCK_BYTES, Storage, StorageError, aligned_memory
from kvferry.machine.ops import Extents, FeedForward, Op
from kvferry.specs.errors import InputError

WHOLE = Extents((0,), (32 * BLOCK_BYTES,))
FIRST = Extents((0,), (BLOCK_BYTES,))


class Idle:
    def run(self, op: Op, request: int | None, inputs: Any = ()) -> None:
        return None


@pytest.fixture(params=[True, False], ids=["direct", "page cache"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    path = tmp_path / "kv.bin"
    settings = {"depth": 4, "command_bytes": BLOCK_BYTES, "direct": request.param}
    with Storage.create(path, 32 * BLOCK_BYTES, **settings) as store:
        yield store


@pytest.mark.parametrize("left_bytes", [0, BLOCK_BYTES, 20 * BLOCK_BYTES + 100])
def test_a_file_that_was_cut_is_neither_read_nor_written(store: Storage, left_bytes: int) -> None:
    os.truncate(store.path, left_bytes)
    for request in (lambda: store.read(FIRST), lambda: store.write(FIRST, bytes(BLOCK_BYTES))):
        with pytest.raises(StorageError, match=rf"kv\.bin ends at byte {left_bytes}; it had 131072 bytes .* cut since"):
            request()


@pytest.mark.parametrize("left_bytes", [0, 100, 20 * BLOCK_BYTES, 20 * BLOCK_BYTES + 100])
def test_a_file_cut_in_the_middle_of_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_bytes: int) -> None:
    preadv = os.preadv

    def cut_before(fd: int, buffers: Any, offset: int) -> int:
        os.truncate(tmp_path / "kv.bin", left_bytes)
        return preadv(fd, buffers, offset)

    with Storage.create(tmp_path / "kv.bin", 32 * BLOCK_BYTES, depth=1, command_bytes=BLOCK_BYTES) as store:
        monkeypatch.setattr(os, "preadv", cut_before)
        with pytest.raises(StorageError, match=rf"kv\.bin ends at byte {left_bytes}, .* it had 131072 bytes"):
            store.read(WHOLE)


def test_a_file_cut_in_the_middle_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the write makes it longer again: as long as it was, or nearly."""
    pwritev = os.pwritev

    def cut_before(fd: int, buffers: Any, offset: int) -> int:
        if offset == 20 * BLOCK_BYTES:
            os.truncate(tmp_path / "kv.bin", 0)
        return pwritev(fd, buffers, offset)

    with Storage.create(tmp_path / "kv.bin", 32 * BLOCK_BYTES, depth=1, command_bytes=BLOCK_BYTES) as store:
        monkeypatch.setattr(os, "pwritev", cut_before)
        with pytest.raises(StorageError, match=rf"kv\.bin ends at byte {31 * BLOCK_BYTES}; it had 131072 bytes"):
            store.write(Extents((0,), (31 * BLOCK_BYTES,)), aligned_memory(31 * BLOCK_BYTES))
        data = os.urandom(32 * BLOCK_BYTES)
        os.truncate(store.path, 32 * BLOCK_BYTES)
        store.write(WHOLE, data)
        with pytest.raises(StorageError, match=r"holds zeros where something else was written, .* at offset 0: "):
            store.read(WHOLE)


@pytest.mark.parametrize(("offset", "n_bytes"), [(0, 1), (31 * BLOCK_BYTES + 4095, 1), (5 * BLOCK_BYTES - 3, 10)])
def test_bytes_that_others_changed_are_not_read(store: Storage, offset: int, n_bytes: int) -> None:
    data = os.urandom(32 * BLOCK_BYTES)
    store.write(WHOLE, data)
    with open(store.path, "r+b") as other:
        other.seek(offset)
        other.write(bytes(byte ^ 1 for byte in data[offset : offset + n_bytes]))
    block = offset // BLOCK_BYTES * BLOCK_BYTES
    with pytest.raises(
        StorageError, match=rf"holds other bytes than were written there, .* at offset {block}: .* from"
    ):
        store.read(WHOLE)
    with pytest.raises(StorageError, match=rf"at offset {block}: "):
        store.read(Extents((block + 100,), (1,)))
    with pytest.raises(StorageError, match=rf"at offset {block}: "):
        store.write(Extents((block + 100,), (1,)), b"x")
    elsewhere = 10 * BLOCK_BYTES
    assert bytes(store.read(Extents((elsewhere,), (4,)))) == data[elsewhere : elsewhere + 4]
    # What is written anew is known again.
    store.write(WHOLE, data)
    assert bytes(store.read(WHOLE)) == data


def test_words_that_changed_places_are_noticed(store: Storage) -> None:
    data = bytes(range(8)) + bytes(BLOCK_BYTES - 8)
    store.write(FIRST, data)
    with open(store.path, "r+b") as other:
        other.write(data[8:16] + data[:8])
    with pytest.raises(StorageError, match="other bytes than were written"):
        store.read(FIRST)


def test_a_write_that_fails_leaves_nothing_that_can_be_read_as_written(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(WHOLE, b"a" * 32 * BLOCK_BYTES)

    def failing(*_: object, **__: object) -> None:
        raise StorageError("cannot write: Input/output error")

    monkeypatch.setattr(store._threads, "run", failing)
    with pytest.raises(StorageError, match="Input/output"):
        store.write(FIRST, b"b" * BLOCK_BYTES)
    monkeypatch.undo()
    with pytest.raises(StorageError, match="other bytes than were written"):
        store.read(FIRST)


def test_a_cut_file_fails_the_ticket_and_what_needs_it(store: Storage) -> None:
    os.truncate(store.path, 100)
    with LiveMachine("device", Idle(), capacity_bytes=1, storage=store, source=lambda *_: b"") as machine:
        needs_it = machine.submit(FeedForward(1), after=(machine.read(FIRST),))
        with pytest.raises(StorageError, match="ends at byte 100"):
            machine.env.run(until=needs_it)
        machine.env.run(until=machine.submit(FeedForward(1)))


def test_a_failing_command_ends_the_read_and_leaves_the_storage_usable(
    store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def failing(fd: int, buffers: Any, offset: int) -> int:
        if offset == 17 * BLOCK_BYTES:
            raise OSError(5, "Input/output error")
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    for _ in range(3):
        with pytest.raises(StorageError, match=r"cannot read 4096 bytes of .*kv\.bin at offset 69632: Input/output"):
            store.read(WHOLE)
    monkeypatch.undo()
    assert bytes(store.read(WHOLE)) == bytes(32 * BLOCK_BYTES)


def test_commands_that_the_system_cuts_short_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv, pwritev = os.preadv, os.pwritev
    data = bytes(range(256)) * (32 * BLOCK_BYTES // 256)

    with Storage.create(tmp_path / "kv.bin", 32 * BLOCK_BYTES, command_bytes=8 * BLOCK_BYTES) as store:
        monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: preadv(fd, (buffers[0][:BLOCK_BYTES],), offset))
        monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: pwritev(fd, (buffers[0][:BLOCK_BYTES],), offset))
        store.write(WHOLE, data)
        assert bytes(store.read(WHOLE)) == data


def test_an_interrupt_is_raised_when_nothing_is_under_way(store: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a request, with commands under way, Ctrl-C: the next requests find all in order."""
    data = aligned_memory(32 * BLOCK_BYTES)
    data[:] = bytes(range(256)) * (len(data) // 256)
    store.write(WHOLE, data)
    preadv, main = os.preadv, threading.get_ident()

    def preadv_interrupted(fd: int, buffers: Any, offset: int) -> int:
        if threading.get_ident() == main:
            raise KeyboardInterrupt
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv_interrupted)
    interrupts = 0
    try:
        store.read(WHOLE)
    except KeyboardInterrupt:
        interrupts += 1
    assert interrupts
    monkeypatch.undo()
    for _ in range(3):
        assert bytes(store.read(WHOLE)) == bytes(data)


def test_closing_waits_for_what_is_under_way(tmp_path: Path) -> None:
    n_bytes = 64 << 20
    store = Storage.create(tmp_path / "kv.bin", n_bytes, depth=4, command_bytes=1 << 16)
    whole = Extents((0,), (n_bytes,))
    outcomes: list[object] = []

    def read() -> None:
        try:
            while True:
                data = store.read(whole)
                outcomes.append(len(data.views[0]))
                data.release()
        except BaseException as error:
            outcomes.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    while not outcomes:
        time.sleep(0.001)
    store.close()
    for reader in readers:
        reader.join(30)
        assert not reader.is_alive()
    *read_whole, first, second = sorted(outcomes, key=lambda outcome: isinstance(outcome, BaseException))
    assert set(read_whole) == {n_bytes}
    assert all(isinstance(error, StorageError) and "has been closed" in str(error) for error in (first, second))


# --- no room -----------------------------------------------------------------------------------------------------


ON_A_SMALL_DEVICE = """
    import os, subprocess, sys
    from pathlib import Path
    from kvferry.disk.direct_storage import BLOCK_BYTES, Storage, StorageFull
    from kvferry.machine.ops import Extents

    folder = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={16 * BLOCK_BYTES}", "small", folder], check=True)
    try:
        Storage.create(folder / "kv.bin", 32 * BLOCK_BYTES)
    except StorageFull as error:
        print(error)
    print(sorted(os.listdir(folder)))
    Storage.create(folder / "kv.bin", 8 * BLOCK_BYTES).close()
    print(sorted(os.listdir(folder)))

    sparse = folder / "sparse.bin"
    sparse.touch()
    os.truncate(sparse, 32 * BLOCK_BYTES)
    with Storage(sparse, writable=True, depth=2, command_bytes=BLOCK_BYTES) as store:
        try:
            store.write(Extents((0,), (32 * BLOCK_BYTES,)), bytes(32 * BLOCK_BYTES))
        except StorageFull as error:
            print(error)
"""


def test_a_full_device_is_reported_and_no_part_of_a_file_is_left(tmp_path: Path) -> None:
    # A mount of this process alone, so that it goes with it, whatever happens.
    alone = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        subprocess.run([*alone, "mount", "-t", "tmpfs", "small", str(tmp_path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small file system is not allowed here")
    command = [*alone, sys.executable, "-c", textwrap.dedent(ON_A_SMALL_DEVICE), str(tmp_path)]
    make, before, after, write = subprocess.check_output(command, text=True, timeout=60).splitlines()
    assert make.startswith("cannot make 131072 bytes of ")
    assert make.endswith("kv.bin at offset 0: the device is full")
    assert before == "[]"
    assert after == "['kv.bin']"
    assert write.startswith("cannot write 4096 bytes of ")
    assert write.endswith(": the device is full")
    assert 0 < int(write.split("at offset ")[1].split(":")[0]) <= 16 * BLOCK_BYTES


def test_a_limit_on_file_sizes_is_reported_likewise(tmp_path: Path) -> None:
    """Needs no right to mount: the system's limit for one process stands in for a full device."""
    script = """
        import resource, sys
        from pathlib import Path
        from kvferry.disk.direct_storage import Storage, StorageFull
        from kvferry.machine.ops import Extents
        folder = Path(sys.argv[1])
        Storage.create(folder / "there.bin", 1 << 20).close()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        with Storage(folder / "there.bin", writable=True, command_bytes=4096) as store:
            try:
                store.write(Extents((1 << 19,), (8192,)), bytes(8192))
            except StorageFull as error:
                print(error)
        try:
            Storage.create(folder / "new.bin", 1 << 20)
        except StorageFull as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    write, create = subprocess.check_output(command, text=True, timeout=60).splitlines()
    assert re.search(r"there\.bin at offset (524288|528384): no file may be as large$", write)
    assert create.endswith("new.bin at offset 0: no file may be as large")
    assert [path.name for path in tmp_path.iterdir()] == ["there.bin"]


def test_what_is_stopped_while_a_file_is_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "posix_fallocate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Storage.create(tmp_path / "kv.bin", 1)
    assert list(tmp_path.iterdir()) == []


# --- no file -----------------------------------------------------------------------------------------------------


def test_what_is_no_file_is_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "none.bin", tmp_path, tmp_path / "fifo"):
        with pytest.raises(InputError, match=f"there is no storage file {path}"):
            Storage(path)
    with pytest.raises(StorageError, match=r"cannot make 4096 bytes of .*none/kv\.bin at offset 0: No such file"):
        Storage.create(tmp_path / "none" / "kv.bin", 1)

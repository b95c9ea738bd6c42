"""Stores: what was put comes back, and nothing half-written is ever taken for whole."""

import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
import zlib
from pathlib import Path

import numpy as np
import pytest

from kvferry.cloud.store import DamagedStore, Index, Store, StoredModel, StoreHeader, StoreWriter
from kvferry.cloud.store_folder import StoreFolder
from kvferry.codecs.codec import DamagedChunk, decode, encode
from kvferry.specs.errors import InputError

MODEL = StoredModel(name="tiny", fingerprint="f1", tokenizer="bytes", layers=2, kv_heads=3, head_dim=4)
HEADER = StoreHeader.at_all_levels(MODEL, [5, 2], "fp16")


def pieces(header: StoreHeader = HEADER) -> dict[tuple[int, int, int, int], bytes]:
    """Every chunk of a small store: random numbers."""
    rng = np.random.default_rng(0)
    t_count, layers, heads = header.shape
    return {
        (t, l, h, level): encode(
            header.codec, *rng.standard_normal((2, header.tokens[t], header.model.head_dim)), level=level
        )
        for t in range(t_count)
        for l in range(layers)
        for h in range(heads)
        for level in range(header.levels)
    }


def write(path: Path, header: StoreHeader = HEADER) -> dict[tuple[int, int, int, int], bytes]:
    chunks = pieces(header)
    with StoreWriter(path, header, range(sum(header.tokens))) as writer:
        for (t, l, h, level), data in chunks.items():
            writer.put(t, l, h, data, level)
    return chunks


def test_what_was_put_comes_back(tmp_path: Path) -> None:
    chunks = write(tmp_path / "a.kvs")
    with Store(tmp_path / "a.kvs") as store:
        assert store.index.header == HEADER
        assert store.index.token_ids.tolist() == [0, 1, 2, 3, 4, 5, 6]
        # Flat ids: (t, l, h) = (1, 0, 2) is 1 x 6 + 0 x 3 + 2 = 8.
        assert store.read([8, 0]) == [chunks[1, 0, 2, 0], chunks[0, 0, 0, 0]]
        # The first chunk lies behind the 16 bytes of the beginning; 24 of header and 5 x 8 x 2 of numbers.
        assert store.index.extents([0], 0) == [(16, 104)]
        assert store.index.encoded_bytes()[:, 0, 0].tolist() == [104, 24 + 2 * 8 * 2]


def test_chunks_may_be_put_in_any_order(tmp_path: Path) -> None:
    chunks = pieces()
    with StoreWriter(tmp_path / "a.kvs", HEADER, range(7)) as writer:
        for t, l, h, level in reversed(chunks):
            writer.put(t, l, h, chunks[t, l, h, level], level)
    with Store(tmp_path / "a.kvs") as store:
        assert store.read(range(12)) == list(chunks.values())


def test_levels_and_their_sizes(tmp_path: Path) -> None:
    pytest.importorskip("constriction")
    header = StoreHeader.at_all_levels(MODEL, [64], "cachegen")
    chunks = write(tmp_path / "a.kvs", header)
    with Store(tmp_path / "a.kvs") as store:
        assert store.read([4], 3) == [chunks[0, 1, 1, 3]]
        totals = [sum(len(data) for place, data in chunks.items() if place[3] == level) for level in range(5)]
        assert store.index.level_scale == pytest.approx([total / totals[0] for total in totals])
        assert store.index.encoded_bytes(2)[0, 1, 0] == len(chunks[0, 1, 0, 2])
        with pytest.raises(InputError, match="levels 0 to 4"):
            store.read([0], 5)


def test_active_blocks_travel_along(tmp_path: Path) -> None:
    header = StoreHeader.at_all_levels(MODEL, [5, 2], "fp16", has_active_blocks=True)
    blocks = np.arange(12).reshape(2, 2, 3)
    with StoreWriter(tmp_path / "a.kvs", header, range(7), blocks) as writer:
        for (t, l, h, level), data in pieces().items():
            writer.put(t, l, h, data, level)
    with Store(tmp_path / "a.kvs") as store:
        again = Index.from_bytes(store.table)
    assert again.active_blocks is not None
    assert (again.active_blocks == blocks).all()
    assert (again.lengths == store.index.lengths).all()


def test_ids_that_are_not_there(tmp_path: Path) -> None:
    write(tmp_path / "a.kvs")
    with Store(tmp_path / "a.kvs") as store:
        for bad in ([12], [-1], [0, 99]):
            with pytest.raises(InputError, match="has chunks 0 to 11"):
                store.read(bad)


def test_another_models_store_says_what_differs(tmp_path: Path) -> None:
    write(tmp_path / "a.kvs")
    with Store(tmp_path / "a.kvs") as store:
        store.index.check_model(MODEL)
        store.index.check_model(MODEL.model_copy(update={"name": "by another name"}))
        for key, value in {
            "fingerprint": "f2",
            "tokenizer": "words",
            "layers": 3,
            "kv_heads": 1,
            "head_dim": 8,
        }.items():
            with pytest.raises(InputError, match=f"{key.replace('_', ' ')} .* instead of {value}"):
                store.index.check_model(MODEL.model_copy(update={key: value}))


@pytest.mark.parametrize(
    ("header", "first_token", "message"),
    [
        (StoreHeader.at_all_levels(MODEL, [5, 2], "kivi"), 0, "encoded with fp16 at 1 levels, not with kivi at 1"),
        (StoreHeader.at_all_levels(MODEL, [5, 3], "fp16"), 0, "holds 7 tokens, not the 8 asked for"),
        (StoreHeader.at_all_levels(MODEL, [2, 2, 2, 1], "fp16"), 0, "chunks of 5, 2 tokens, not of 2, 2, 2 [.]{3}"),
        (HEADER, 1, r"holds another context: 7 of 7 tokens differ, first number 0 \(0 instead of 1\)"),
    ],
)
def test_another_contexts_store_says_what_differs(
    tmp_path: Path, header: StoreHeader, first_token: int, message: str
) -> None:
    write(tmp_path / "a.kvs")
    with Store(tmp_path / "a.kvs") as store:
        store.index.check_context(HEADER, range(7))
        with pytest.raises(InputError, match=message):
            store.index.check_context(header, range(first_token, first_token + sum(header.tokens)))


# --- what must be refused --------------------------------------------------------------------------------------------


def test_every_shorter_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.kvs")
    whole = (tmp_path / "a.kvs").read_bytes()
    for length in [*range(64), *range(64, len(whole), 37), len(whole) - 1]:
        (tmp_path / "b.kvs").write_bytes(whole[:length])
        with pytest.raises(DamagedStore, match="store"):
            Store(tmp_path / "b.kvs")


def test_damage_is_noticed_wherever_it_is(tmp_path: Path) -> None:
    chunks = write(tmp_path / "a.kvs")
    whole = (tmp_path / "a.kvs").read_bytes()
    data_end = 16 + sum(map(len, chunks.values()))
    for at in range(0, len(whole), 13):
        (tmp_path / "b.kvs").write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        if 16 <= at < data_end:
            with Store(tmp_path / "b.kvs") as store, pytest.raises(DamagedChunk, match="chunk [0-9]+ at level 0"):
                store.read(range(12))
        else:
            with pytest.raises(DamagedStore):
                Store(tmp_path / "b.kvs")


def test_an_index_that_lies(tmp_path: Path) -> None:
    """Checksums that fit, contents that do not: offsets beyond the file, lengths of arrays, headers."""
    write(tmp_path / "a.kvs")
    whole = (tmp_path / "a.kvs").read_bytes()
    with Store(tmp_path / "a.kvs") as store:
        table = store.table
    body = whole[: len(whole) - 28 - len(table)]

    def refused(table: bytes) -> str:
        trailer = struct.pack("<QI16s", len(table), zlib.crc32(table), b"kvferry store /\n")
        (tmp_path / "b.kvs").write_bytes(body + table + trailer)
        with pytest.raises(DamagedStore) as caught:
            Store(tmp_path / "b.kvs")
        return str(caught.value)

    (header_bytes,) = struct.unpack_from("<I", table)
    offsets = 4 + header_bytes
    assert "leads out of it" in refused(table[:offsets] + struct.pack("<Q", 10**6) + table[offsets + 8 :])
    assert "leads out of it" in refused(table[:offsets] + struct.pack("<Q", 2**64 - 8) + table[offsets + 8 :])
    assert "leads out of it" in refused(table[:offsets] + struct.pack("<Q", 0) + table[offsets + 8 :])
    lengths = offsets + 8 * 12
    assert "an empty chunk" in refused(table[:lengths] + bytes(4) + table[lengths + 4 :])
    assert "bytes too many" in refused(table + b"\0")
    assert "no index" in refused(table[:-1])
    assert "a header of" in refused(struct.pack("<I", 2**31) + table[4:])
    assert "no codec 'gzip'" in refused(table.replace(b'"fp16"', b'"gzip"'))
    assert "version" in refused(table.replace(b'"version":1', b'"version":2'))
    assert "lovels: Extra" in refused(table.replace(b'"levels":', b'"lovels":'))


def test_no_memory_is_taken_for_a_boast() -> None:
    header = HEADER.model_dump(mode="json")
    header["model"]["layers"], header["model"]["kv_heads"], header["tokens"] = 1000, 10_000, [1] * 100
    with pytest.raises(ValueError, match="1,000,000,000 chunks"):
        StoreHeader.model_validate(header)


@pytest.mark.parametrize(
    ("path", "message"), [("none.kvs", "No such file"), ("", "Is a directory"), ("empty.kvs", "does not begin")]
)
def test_what_is_no_store_says_so(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "empty.kvs").touch()
    with pytest.raises((InputError, DamagedStore), match=message):
        Store(tmp_path / path)


# --- writing ---------------------------------------------------------------------------------------------------------


def test_an_error_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with StoreWriter(tmp_path / "a.kvs", HEADER, range(7)) as writer:
            writer.put(0, 0, 0, b"x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("times", "message"), [(1, "11 chunks of 12"), (2, "put before")])
def test_a_chunk_missing_or_put_twice(tmp_path: Path, times: int, message: str) -> None:
    def put() -> None:
        with StoreWriter(tmp_path / "a.kvs", HEADER, range(7)) as writer:
            for _ in range(times):
                writer.put(0, 0, 0, b"x")

    with pytest.raises(ValueError, match=message):
        put()
    assert list(tmp_path.iterdir()) == []


def test_the_store_before_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    write(tmp_path / "a.kvs")
    before = (tmp_path / "a.kvs").read_bytes()
    with pytest.raises(RuntimeError), StoreWriter(tmp_path / "a.kvs", HEADER, range(7)):
        raise RuntimeError
    assert (tmp_path / "a.kvs").read_bytes() == before


def test_a_killed_writer_leaves_no_store(tmp_path: Path) -> None:
    script = """
        import sys, time
        from pathlib import Path
        from kvferry.cloud.store import StoredModel, StoreHeader, StoreWriter
        model = StoredModel(name="m", fingerprint="f", tokenizer="t", layers=1, kv_heads=2, head_dim=4)
        header = StoreHeader.at_all_levels(model, [5], "fp16")
        with StoreWriter(Path(sys.argv[1]) / "a.kvs", header, range(5)) as writer:
            writer.put(0, 0, 0, bytes(10**6))
            print("half", flush=True)
            time.sleep(60)
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    child.stdout.close()
    assert [path.name[:7] for path in tmp_path.iterdir()] == [".a.kvs."]  # what was begun, under no store's name
    assert StoreFolder(tmp_path).names() == []


@pytest.mark.skipif(sys.platform == "win32", reason="no resource limits")
def test_no_room_is_said_and_nothing_kept(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        from pathlib import Path
        from kvferry.cloud.store import StoredModel, StoreHeader, StoreWriter
        from kvferry.specs.errors import InputError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
        model = StoredModel(name="m", fingerprint="f", tokenizer="t", layers=1, kv_heads=1, head_dim=4)
        try:
            with StoreWriter(Path(sys.argv[1]) / "a.kvs", StoreHeader.at_all_levels(model, [5], "fp16"), range(5)) as w:
                w.put(0, 0, 0, bytes(2 * 10**6))
        except InputError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert "a.kvs: cannot be written: File too large; nothing was kept of it" in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_folder_lists_and_opens_its_contexts(tmp_path: Path) -> None:
    for name in ("b", "a-1"):
        write(tmp_path / f"{name}.kvs")
    (tmp_path / "notes.txt").write_text("no store")
    folder = StoreFolder(tmp_path)
    assert folder.names() == ["a-1", "b"]
    assert folder.open("b") is folder.open("b")
    assert StoreFolder(tmp_path / "b.kvs").names() == ["b"]
    with pytest.raises(InputError, match="no context 'a-1' here; there are: b"):
        StoreFolder(tmp_path / "b.kvs").open("a-1")


def test_a_replaced_file_is_opened_anew(tmp_path: Path) -> None:
    write(tmp_path / "a.kvs")
    folder = StoreFolder(tmp_path)
    before = folder.open("a")
    time.sleep(0.01)
    header = StoreHeader.at_all_levels(MODEL, [3], "fp16")
    write(tmp_path / "a.kvs", header)
    assert folder.open("a").index.header == header
    # A reader of the old one can go on.
    assert decode(before.read([0])[0])[0].shape == (5, 4)


@pytest.mark.parametrize(
    "name",
    ["../secret", "..", ".", "", "/etc/passwd", "a/../../secret", "secret\0", "a.kvs/../../secret", "..\\secret", ".a"],
)
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    write(tmp_path / "secret.kvs")
    (tmp_path / "inner").mkdir()
    write(tmp_path / "inner" / "a.kvs")
    with pytest.raises(InputError, match="no context"):
        StoreFolder(tmp_path / "inner").open(name)


def test_links_that_lead_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "secret.kvs")
    (tmp_path / "inner").mkdir()
    os.symlink(tmp_path / "secret.kvs", tmp_path / "inner" / "a.kvs")
    folder = StoreFolder(tmp_path / "inner")
    assert folder.names() == []
    with pytest.raises(InputError, match="no context 'a' here; there are: none"):
        folder.open("a")


def test_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    for path, message in ((tmp_path / "a.txt", "not a store"), (tmp_path / "b", "no such file or folder")):
        with pytest.raises(InputError, match=message):
            StoreFolder(path)


def test_unfinished_stores_of_killed_processes_go_after_a_day(tmp_path: Path) -> None:
    names = ".a.kvs.x1.part", ".b.kvs.x2.part", ".film.part", ".d.x3.part", "mine.part"
    old, now, others, empty, shown = (tmp_path / name for name in names)
    for path, content in zip(
        (old, now, others, empty, shown),
        (b"kvferry store 1\nhalf", b"kvferry store 1\n", b"half of a film", b"", b"kvferry store 1\n"),
        strict=True,
    ):
        path.write_bytes(content)
        if path != now:
            os.utime(path, (time.time() - 90_000,) * 2)
    StoreFolder(tmp_path)
    assert set(tmp_path.iterdir()) == {now, others, shown}
    os.utime(now, (time.time() - 90_000,) * 2)
    write(tmp_path / "c.kvs")
    assert {path.name for path in tmp_path.iterdir()} == {"c.kvs", ".film.part", "mine.part"}

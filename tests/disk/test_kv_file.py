"""A KV file and its log: what a reader finds, by hand and after any sequence of steps that was cut off anywhere."""

import json
import struct
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kept_clusters import ENTRY_BYTES, KeptClusters, entry

from kvferry.disk import log_frames
from kvferry.disk.kv_file import KvFile
from kvferry.disk.kv_log import KvLog, check_own, last_block, log_of
from kvferry.disk.log_frames import HEAD_BYTES, append
from kvferry.disk.opened_file import StorageFull
from kvferry.layouts.cluster_layout import ClusterLayout
from kvferry.layouts.dual_head import DualHeadLayout
from kvferry.layouts.pools import PoolLayout
from kvferry.layouts.sequence_order import SequenceLayout
from kvferry.specs.errors import InputError

SIZES: dict[str, Any] = {
    "layers": 1,
    "sequences": 1,
    "heads": 1,
    "blocks": 8,
    "first_blocks": 1,
    "block_tokens": 4,
    "row_tokens": 40,
    "token_bytes": ENTRY_BYTES,
}
ONE = PoolLayout(**SIZES)
TWO: dict[str, Any] = SIZES | {"layers": 2, "sequences": 2, "first_blocks": 2, "blocks": 12, "row_tokens": 60}
# Page buffers of two entries.
BUFFERS: dict[str, Any] = {"alignment_bytes": 32, "page_bytes": 32, "page_buffers": 2, "hot_steps": 3}
LAYOUTS: list[ClusterLayout] = [
    PoolLayout(**TWO, spare=1, file_spare=8),
    PoolLayout(**TWO, **BUFFERS, file_spare=8),
    DualHeadLayout(**TWO, most_tokens=4, file_spare=8),
    DualHeadLayout(**TWO, **BUFFERS, most_tokens=8, file_spare=8),
    SequenceLayout(**TWO),
]


def all_written(n: int) -> bool:
    return True


def cut_once(folder: Path) -> KeptClusters:
    """Prompt of four tokens in one cluster; token 4 comes, and what is odd leaves."""
    kept = KeptClusters(folder, ONE, context=4)
    turns = iter([0, 2, 0, 1, 0, 1, 0, 1])  # cluster 0, cut, stay and leave in turn, and token 1 leaves for sure
    kept.step(lambda below: next(turns) % below)
    kept.close()
    return kept


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_one_split_by_hand(tmp_path: Path) -> None:
    kept = cut_once(tmp_path)
    # Pools of 2 x 4 entries: [0 1 2 3 . . . .]; then [0 2 4 3 . . . .][1 3 . .], with 3 in the first no longer counted.
    assert [(at, len(part) // ENTRY_BYTES) for at, part in kept.writes[0]] == [(0, 4)]
    assert [(at, len(part) // ENTRY_BYTES) for at, part in kept.writes[1]] == [(ENTRY_BYTES, 2), (512, 2)]
    found = kept.crashed(len(kept.log), all_written)
    assert (found.step, found.tokens, found.dropped_bytes) == (1, 5, 0)
    assert {n: part.tolist() for n, part in found.clusters(0, 0).items()} == {0: [0, 2, 4], 1: [1, 3]}
    of_row = found.entries(0, 0)
    assert of_row.clusters.tolist() == [0, 1, 0, 1, 0]
    assert of_row.keys[:, 0].tolist() == [[0, 0]] * 5
    assert of_row.values[:, 0].tolist() == [[token, token + 0.5] for token in range(5)]
    # The log has the new entry, and those of the prompt that lie elsewhere now, once; the file alone has token 0.
    summary = found.summary()
    assert (summary["entries"], summary["entries_in_place"], summary["clusters"]) == (5, 5, 2)
    log = kept.log
    assert [log.count(entry(0, 0, token)) for token in range(5)] == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("share", ["nothing", "the first", "the second", "all"])
def test_one_split_of_which_so_much_was_written(tmp_path: Path, share: str) -> None:
    kept = cut_once(tmp_path)
    found = kept.crashed(
        len(kept.log), lambda n: {"nothing": False, "all": True}.get(share, share.endswith("first") ^ n)
    )
    kept.check(found, 1)
    behind = {"nothing": 4, "the first": 2, "the second": 2, "all": 0}[share]
    assert found.summary()["entries_behind"] == behind


def test_before_the_split_was_told(tmp_path: Path) -> None:
    kept = cut_once(tmp_path)
    found = kept.crashed(len(kept.log) - 1, all_written)
    kept.check(found, 0)
    assert found.dropped_bytes == kept.ends[1] - kept.ends[0] - 1
    assert found.summary()["clusters"] == 1


def test_a_log_that_was_cut_off_at_every_byte(tmp_path: Path) -> None:
    """With three steps, of which one splits and one waits."""
    kept = KeptClusters(tmp_path, ONE, context=4)
    for what in (2, 1, 0):
        turns = iter([0, what])
        kept.step(lambda below, turns=turns: next(turns, 1) % below)  # type: ignore[misc]
    kept.close()
    for n_bytes in range(len(kept.log) + 1):
        step = int(np.searchsorted(kept.ends, n_bytes, side="right")) - 1
        if step < 0:
            with pytest.raises(InputError, match=r"kv.bin.log: (no step was finished|has no header)"):
                kept.crashed(n_bytes, all_written)
        else:
            kept.check(kept.crashed(n_bytes, lambda n: n % 2 == 0), step)


# --- any sequence ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: type(layout).__name__)
@settings(deadline=None)
@given(data=st.data())
def test_any_sequence_that_was_cut_off_anywhere(layout: ClusterLayout, data: st.DataObject) -> None:
    """Keys join, wait and cut, page buffers are filled and given up; the process is killed at any byte of the log, with
    any part of the writes under way done."""
    chance = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    steps = data.draw(st.integers(1, 30))
    with TemporaryDirectory() as folder:
        kept = KeptClusters(Path(folder), layout, context=9)
        for _ in range(steps):
            kept.step(lambda below: int(chance.integers(below)))
            kept.places.check()
        kept.close()
        whole = kept.crashed(len(kept.log), all_written)
        kept.check(whole, steps)
        assert whole.summary()["entries_behind"] == 0
        for end in data.draw(st.lists(st.integers(kept.ends[0], len(kept.log)), min_size=1, max_size=4)):
            found = kept.crashed(end, lambda n: bool(chance.integers(2)))
            step = int(np.searchsorted(kept.ends, end, side="right")) - 1
            kept.check(found, step)
            assert found.dropped_bytes == end - kept.ends[step]


# --- harm ------------------------------------------------------------------------------------------------------------


def kept_whole(folder: Path) -> Path:
    kept = cut_once(folder)
    kept.crashed(len(kept.log), all_written)
    return folder / "crashed" / "kv.bin"


def test_a_file_without_its_log(tmp_path: Path) -> None:
    path = kept_whole(tmp_path)
    path.with_name("kv.bin.log").unlink()
    with pytest.raises(InputError, match=r"kv\.bin\.log: there is no such file; kv\.bin is what live\.kv_file names"):
        KvFile(path)


def test_the_log_of_another_file(tmp_path: Path) -> None:
    path = kept_whole(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-4096] + last_block("1" * 32))
    with pytest.raises(InputError, match=r"is not the log of .*kv\.bin, but that of another file"):
        KvFile(path)
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=f"has {len(whole) - 1:,} bytes, {len(whole):,} when it was made"):
        KvFile(path)


def test_what_only_the_file_has_was_changed(tmp_path: Path) -> None:
    path = kept_whole(tmp_path)
    with open(path, "r+b") as file:
        file.write(b"\1")
    with pytest.raises(InputError, match=r"1 entries of layer 0, row 0, from token 0 on are not what was written"):
        KvFile(path)


def test_a_file_of_later_steps_than_its_log(tmp_path: Path) -> None:
    """That cannot come of a process that was killed. It is said, not read."""
    path = kept_whole(tmp_path)
    log = path.with_name("kv.bin.log")
    log.write_bytes(log.read_bytes()[:-1])
    with pytest.raises(InputError, match="no step was finished: 2 entries of layer 0, row 0, from token 1 on are not"):
        KvFile(path)


@settings(deadline=None)
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_log_with_a_bit_flipped(at: float, bit: int) -> None:
    with TemporaryDirectory() as folder:
        path = kept_whole(Path(folder))
        log = path.with_name("kv.bin.log")
        whole = bytearray(log.read_bytes())
        whole[int(at * len(whole))] ^= 1 << bit
        log.write_bytes(whole)
        with pytest.raises(InputError, match="kv.bin.log: "):
            KvFile(path)


@settings(deadline=None)
@given(data=st.data())
def test_a_log_whose_writer_meant_harm(data: st.DataObject) -> None:
    """Its checksums are right. Whatever its numbers say: it is read, or refused."""
    with TemporaryDirectory() as folder:
        path = kept_whole(Path(folder))
        log = path.with_name("kv.bin.log")
        with open(log, "rb") as file:
            parts = [(frame.kind, log_frames.content_of(file, log, frame)) for frame in log_frames.frames(file, log)]
        which = data.draw(st.integers(0, len(parts) - 1))
        kind, content = parts[which]
        changed = bytearray(content)
        for _ in range(data.draw(st.integers(1, 3))):
            changed[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
        parts[which] = data.draw(st.sampled_from([kind, b"head", b"prom", b"step", b"none"])), bytes(changed)
        with open(log, "r+b") as file:
            file.truncate(0)
            at = 0
            for part in parts:
                at = append(file.fileno(), log, at, *part)
        with suppress(InputError):
            found = KvFile(path)
            assert found.summary()["tokens"] == found.raw(0, 0).shape[0]
            found.clusters(0, 0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"layers": 1 << 40}, "is not what comes next"),
        ({"context": 1 << 40}, "at least [0-9,]+ are its entries'"),
        ({"heads": 1 << 40, "sequences": 1 << 40}, "at least [0-9,]+ are its entries'"),
        ({"head_dim": 1 << 47}, "at least [0-9,]+ are its entries'"),
        ({"layers": 0}, "its layers is 0"),
        ({"layers": True}, "its layers is True, which is no int"),
        ({"dtype": "object"}, "its dtype is 'object'"),
        ({"version": 2}, "no kvferry-kv-log of version 1"),
        ({"data_bytes": 64}, "names places outside of the file"),
    ],
)
def test_a_header_that_claims_what_is_not_there(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    """Nothing is reserved for it."""
    path = kept_whole(tmp_path)
    log = path.with_name("kv.bin.log")
    whole = log.read_bytes()
    length = struct.unpack_from("<Q", whole, 8)[0]
    header = json.loads(whole[HEAD_BYTES : HEAD_BYTES + length]) | change
    with open(log, "r+b") as file:
        file.truncate(0)
        begin = append(file.fileno(), log, 0, b"head", json.dumps(header).encode())
        file.seek(begin)
        file.write(whole[HEAD_BYTES + length :])
    with pytest.raises(InputError, match=why):
        KvFile(path)


def test_files_of_another_kind(tmp_path: Path) -> None:
    for name in ("a", "a.log"):
        (tmp_path / name).write_bytes(b"not a log at all, but some other text")
    with pytest.raises(InputError, match=r"a\.log: no frame begins at byte 0"):
        KvFile(tmp_path / "a")
    (tmp_path / "a.log").write_bytes(b"")
    with pytest.raises(InputError, match="has no header"):
        KvFile(tmp_path / "a")
    with pytest.raises(InputError, match="there is no such file"):
        KvFile(tmp_path / "b")
    with pytest.raises(InputError, match="is no file"):
        KvFile(tmp_path)
    with pytest.raises(InputError, match="is no file"):
        KvFile("")


# --- the writer ------------------------------------------------------------------------------------------------------


def test_one_run_writes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "kv.bin"
    kept = KeptClusters(tmp_path, ONE, context=4)
    with pytest.raises(InputError, match=r"live\.kv_file: .*kv\.bin is being written by another run"):
        KvLog(path)
    path.touch()
    with pytest.raises(InputError, match=r"kv\.bin\.log: a run is still writing it"):
        KvFile(path)
    kept.close()
    # What lay there goes.
    with KvLog(path):
        assert path.with_name("kv.bin.log").read_bytes() == b""


def test_no_room_for_a_record(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full, pytest.raises(StorageFull, match=r"cannot write .*x\.log .* device is full"):
        append(full.fileno(), tmp_path / "x.log", 0, b"step", bytes(100))


def test_files_that_no_run_has_left_are_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "kv"
    check_own(file)
    file.write_bytes(b"\0" * 4096 + last_block("0" * 32))
    log_of(file).write_bytes(b"KVFR")
    check_own(file)
    log_of(file).write_text("a log of something else")
    with pytest.raises(InputError, match=r"kv.log is nothing that a run has left, and would be lost; name another"):
        check_own(file)
    log_of(file).unlink()
    file.write_text("notes")
    with pytest.raises(InputError, match=r"kv is nothing that a run has left"):
        check_own(file)

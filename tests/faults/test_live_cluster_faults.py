"""Clusters on storage that fails, or whose process dies, while one of them is cut in two."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forked import Forked, mounts_of_its_own
from live_faults import cut, cut_and_stretch, cut_in_half, flip_a_bit, opened, reported_until_it_failed
from tiny import LIVE_PLAIN, changed

from kvferry.disk.direct_storage import Storage, StorageFull
from kvferry.machine.ops import Extents
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Nothing is kept in memory between steps, and clusters are cut early.
SCENARIO = changed(
    LIVE_PLAIN,
    system="dynakv",
    workload={"context": 256, "batch": 1, "output": 40},
    policies={"residency": "none", "selected_share": 0.3, "threshold": 0.7},
)


def clustered(folder: Path, **changes: Any) -> Scenario:
    return load_scenario(changed(SCENARIO, live={"kv_folder": str(folder)}, **changes))


def of_a_cut(extents: Extents) -> bool:
    """A write of what a cut has made: clusters of several entries, from their first on, behind those of the prompt."""
    pieces = extents.pieces
    return pieces is not None and extents.n_bytes < 20_000 and bool(((pieces.firsts == 0) & (pieces.tokens > 1)).any())


@pytest.mark.parametrize("harm", [cut, cut_in_half, cut_and_stretch, flip_a_bit])
def test_a_file_of_clusters_harmed_while_decoding(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """All clusters are read in every step."""

    def then(said: int) -> None:
        if said == 5:
            harm(opened(tmp_path))

    reported, error = reported_until_it_failed(clustered(tmp_path, policies={"selected_share": 1.0}), then)
    assert 5 <= reported[-1] <= 6
    assert "has been cut since" in str(error) or "the file has been changed from outside" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_what_a_cut_has_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, failed = Storage.write, list[int]()
    said = [0]

    def fail(storage: Storage, extents: Extents, data: Any) -> None:
        if of_a_cut(extents):
            failed.append(said[-1])
            raise StorageFull("cannot write: the device is full")
        write(storage, extents, data)

    monkeypatch.setattr(Storage, "write", fail)
    reported, error = reported_until_it_failed(clustered(tmp_path), said.append)
    assert "the device is full" in str(error)
    # The step after the cut may have been under way; nothing was written behind it.
    assert len(failed) == 1
    assert reported[-1] <= failed[0] + 2
    assert list(tmp_path.iterdir()) == []


def test_a_cut_that_the_device_lost_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said that it had written all. Clusters that are read again are not what was written: the sums say so."""
    write, lost = Storage.write, list[Extents]()

    def lose(storage: Storage, extents: Extents, data: Any) -> None:
        write(storage, extents, data)
        if of_a_cut(extents) and not lost:
            lost.append(extents)
            offset, length = next(iter(extents))
            with open(opened(tmp_path), "r+b") as file:
                file.seek(offset + length // 2)
                file.write(bytes(length - length // 2))

    monkeypatch.setattr(Storage, "write", lose)
    _, error = reported_until_it_failed(clustered(tmp_path, policies={"selected_share": 1.0}), lambda said: None)
    assert "the file has been changed from outside" in str(error)


KILLED = """
    import json, os, signal, sys
    from kvferry.disk.direct_storage import Storage
    from kvferry.machine.ops import Extents
    from kvferry.pipelines.decoding import workload as decoding
    from kvferry.pipelines.run import run_scenario
    from kvferry.scenarios.loader import load_scenario

    described, share = json.loads(sys.argv[1]), float(sys.argv[2])
    write, really = Storage.write, decoding.LockStepDecode
    # Of the batch: where every cluster lies, as of each token.
    ledgers = [{}]

    class Watched(really):
        def __init__(self, machine, plan, _on_token, *others):
            super().__init__(machine, plan, self.look, *others)

        def look(self, tokens):
            places = self.now.blocks
            whole = [places.whole(layer) for layer in range(self.plan.model.layers)]
            columns = ("rows", "blocks", "firsts", "tokens", "offsets")
            ledgers.append([{name: getattr(one, name).tolist() for name in columns} for one in whole])

    def dies(storage, extents, data):
        pieces = extents.pieces
        rewritten = pieces is not None and len(ledgers) > 3 and (pieces.firsts == 0) & (pieces.tokens > 1)
        if rewritten is False or not rewritten.any():
            return write(storage, extents, data)
        # All writes before have ended: one thread carries them out.
        size = os.fstat(storage._file.fd).st_size
        before = b"".join(bytes(view) for view in storage.read(Extents([0], [size])).views)
        ranges = [[int(offset), int(length)] for offset, length in extents]
        # The step that cuts has not told its token, or has: where clusters lay before it.
        print(json.dumps({"token_bytes": pieces.token_bytes, "ledgers": ledgers[-3:], "ranges": ranges}), flush=True)
        sys.stdout.buffer.write(before)
        sys.stdout.flush()
        sys.stdin.readline()
        # What the device has had of it by then.
        left, at = int(extents.n_bytes * share), 0
        for offset, length in ranges:
            part = min(length, left)
            if part:
                write(storage, Extents([offset], [part]), memoryview(bytes(data))[at : at + part])
            left, at = left - part, at + length
        os.kill(os.getpid(), signal.SIGKILL)

    Storage.write, decoding.LockStepDecode = dies, Watched
    run_scenario(load_scenario(described))
"""


@pytest.mark.parametrize("share", [0.4, *(pytest.param(one, marks=pytest.mark.long) for one in (0.0, 1.0))])
def test_a_process_that_is_killed_while_it_writes_a_cut(tmp_path: Path, share: float) -> None:
    """Its file has no name, and goes with it. Somebody who has it open finds all that was there when the last write
    ended, but for the clusters that were being written: those of the cut lie there in part."""
    described = changed(SCENARIO, live={"kv_folder": str(tmp_path)})
    child = Forked(KILLED, json.dumps(described), str(share))
    said = json.loads(child.stdout.readline())
    fds = Path(f"/proc/{child.pid}/fd")
    (path,) = (one for one in fds.iterdir() if str(tmp_path) in os.readlink(one))
    kept = os.open(path, os.O_RDONLY)
    try:
        before = child.stdout.read(os.fstat(kept).st_size)
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.wait() == -signal.SIGKILL
        after = os.pread(kept, len(before), 0)
    finally:
        os.close(kept)
    assert len(after) == len(before)
    changed_at = np.flatnonzero(np.frombuffer(before, np.uint8) != np.frombuffer(after, np.uint8))
    inside = np.zeros(len(before), bool)
    for offset, length in said["ranges"]:
        inside[offset : offset + length] = True
    assert inside[changed_at].all()
    assert (len(changed_at) > 0) == (share > 0)
    # Where clusters lay before the cut: of each that is written to, nothing but the cut one changes.
    ledger = said["ledgers"][0]
    harmed, whole = set(), 0
    for layer, of_layer in enumerate(ledger):
        columns = (of_layer[name] for name in ("rows", "blocks", "tokens", "offsets"))
        for row, block, tokens, offset in zip(*columns, strict=True):
            part = slice(offset, offset + tokens * said["token_bytes"])
            if before[part] == after[part]:
                whole += 1
            else:
                harmed.add((layer, row, block))
    assert whole > 10 * len(harmed)
    assert len(harmed) <= len(said["ranges"])
    assert list(tmp_path.iterdir()) == []


FULL = """
    import json, os, subprocess, sys
    from pathlib import Path
    from kvferry.disk import direct_storage
    from kvferry.disk.direct_storage import Storage, StorageError
    from kvferry.pipelines.decoding import workload as decoding
    from kvferry.pipelines.run import run_scenario
    from kvferry.scenarios.loader import load_scenario

    folder, described = Path(sys.argv[1]), json.loads(sys.argv[2])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "small", folder], check=True)
    write, really = Storage.write, decoding.LockStepDecode
    reported, under_way = [], []

    def sparse(path, n_bytes):
        path.touch()
        os.truncate(path, n_bytes)

    def filled(tokens):
        reported.append(tokens)
        if tokens == 1:
            # All the room that is left once the prompt's clusters are written goes to somebody else.
            left = os.statvfs(folder)
            with open(folder / "others", "wb") as file:
                file.write(bytes(left.f_bavail * left.f_bsize))

    class Filled(really):
        def __init__(self, machine, plan, _on_token, *others):
            super().__init__(machine, plan, filled, *others)

    def noted(storage, extents, data):
        pieces = extents.pieces
        under_way[:] = [bool(((pieces.firsts == 0) & (pieces.tokens > 1)).any())]
        write(storage, extents, data)
        under_way[:] = []

    direct_storage.make_room, Storage.write, decoding.LockStepDecode = sparse, noted, Filled
    try:
        run_scenario(load_scenario(described))
    except StorageError as error:
        print(json.dumps([type(error).__name__, str(error), under_way, reported, sorted(os.listdir(folder))]))
"""


def test_a_device_that_is_full_when_a_cluster_is_cut(tmp_path: Path) -> None:
    """A file system that promised room, as thinly provisioned ones do, has none for the part that leaves."""
    described = changed(SCENARIO, live={"kv_folder": str(tmp_path)})
    with mounts_of_its_own(tmp_path) as inside:
        child = Forked(FULL, str(tmp_path), json.dumps(described), inside=inside)
        kind, why, of_a_cut, reported, left = json.loads(child.stdout.read())
        assert child.wait() == 0
    assert kind == "StorageFull"
    assert why.endswith("the device is full")
    assert of_a_cut == [True]
    assert reported[-1] < 40
    assert left == ["others"]

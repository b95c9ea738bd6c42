"""A run that keeps its KV file and is killed, also while it cuts a cluster: all finished steps are found."""

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from forked import Forked
from noted_entries import Computed, check_entries, noted_entries, whole
from tiny import LIVE_PLAIN, changed

from kvferry.disk.direct_storage import StorageFull
from kvferry.disk.kv_file import KvFile
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

# Clusters are cut early and often: in three of four steps.
SCENARIO = changed(
    LIVE_PLAIN,
    system="dynakv",
    workload={"context": 256, "batch": 1, "output": 60},
    policies={"selected_share": 0.3, "threshold": 0.7},
)
KILLS = 20


@pytest.fixture(scope="module")
def computed() -> Computed:
    """What the same run computes that nobody kills, and that keeps nothing."""
    with noted_entries() as noted:
        run_scenario(load_scenario(SCENARIO))
    return whole(noted)


def kept_by(path: Path) -> dict[str, Any]:
    return changed(SCENARIO, live={"kv_file": str(path)})


# Makes a process for each kill: it says how many tokens there are as they come.
KILLED = """
    import json, os, random, signal, sys, time
    import torch
    import kvferry.backends.live.world
    from kvferry.pipelines.decoding import workload as decoding
    from kvferry.pipelines.run import run_scenario
    from kvferry.scenarios.loader import load_scenario

    described, chance = json.loads(sys.argv[1]), random.Random(int(sys.argv[2]))
    really = decoding.LockStepDecode
    for one in described:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            class Told(really):
                def __init__(self, machine, plan, _on_token, *others):
                    super().__init__(machine, plan, lambda tokens: os.write(writing, b"."), *others)

            decoding.LockStepDecode = Told
            run_scenario(load_scenario(one))
            os._exit(0)
        os.close(writing)
        tokens, wanted = 0, chance.randrange(1, 59)
        while tokens < wanted and (said := os.read(reading, 1)):
            tokens += 1
        time.sleep(chance.random() * 0.03)
        os.set_blocking(reading, False)
        try:
            tokens += len(os.read(reading, 100))
        except BlockingIOError:
            pass
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(reading)
        print(json.dumps([tokens, os.WTERMSIG(status)]), flush=True)
"""


@pytest.mark.long
def test_killed_at_any_moment(tmp_path: Path, computed: Computed) -> None:
    paths = [tmp_path / f"{n}.kv" for n in range(KILLS)]
    child = Forked(KILLED, json.dumps([kept_by(path) for path in paths]), "7")
    said = child.stdout.read().splitlines()
    assert child.wait() == 0
    steps = set[int]()
    for path, (tokens, number) in zip(paths, map(json.loads, said), strict=True):
        assert number == signal.SIGKILL
        found = KvFile(path)
        # The first token is of the prompts. Others were told once the log knew of them.
        assert tokens - 1 <= found.step < 60
        check_entries(found, computed)
        steps.add(found.step)
    assert len(steps) > KILLS // 3


# Dies as it is about to write what a cut has made, or with a part of it written.
CUT = """
    import json, os, signal, sys
    from kvferry.disk.direct_storage import Storage
    from kvferry.machine.ops import Extents
    from kvferry.pipelines.run import run_scenario
    from kvferry.scenarios.loader import load_scenario

    described, share, cuts = json.loads(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    write = Storage.write

    def dies(storage, extents, data):
        global cuts
        pieces = extents.pieces
        cut = pieces is not None and extents.n_bytes < 50_000 and ((pieces.firsts == 0) & (pieces.tokens > 1)).any()
        cuts -= bool(cut)
        if cuts:
            return write(storage, extents, data)
        left, at = int(extents.n_bytes * share), 0
        for offset, length in extents:
            part = min(length, left)
            if part:
                write(storage, Extents([offset], [part]), memoryview(bytes(data))[at : at + part])
            left, at = left - part, at + length
        os.kill(os.getpid(), signal.SIGKILL)

    Storage.write = dies
    run_scenario(load_scenario(described))
"""


@pytest.mark.parametrize(
    ("share", "cuts"),
    [pytest.param(0.0, 1, marks=pytest.mark.long), (0.5, 9), pytest.param(1.0, 1, marks=pytest.mark.long)],
)
def test_killed_between_the_log_and_the_file(tmp_path: Path, computed: Computed, share: float, cuts: int) -> None:
    path = tmp_path / "run.kv"
    # Nothing is kept in memory or in an area of its own: what is written is what is new, or cut.
    described = changed(kept_by(path), policies={"residency": "none"})
    assert Forked(CUT, json.dumps(described), str(share), str(cuts)).wait() == -signal.SIGKILL
    found = KvFile(path)
    check_entries(found, computed)
    summary = found.summary()
    assert found.step >= cuts
    assert found.dropped_bytes == 0
    assert (summary["entries_behind"] > 0) == (share < 1)
    # The step that cuts is among those that are found.
    assert summary["clusters"] > summary["rows"] * (256 // 16)


def test_no_room_for_the_log(tmp_path: Path, computed: Computed, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of a record: the run ends with its reason, and the steps before are found."""
    path, room, write = tmp_path / "run.kv", 100_000, os.pwrite

    def limited(fd: int, data: memoryview, at: int) -> int:
        if at >= room:
            raise OSError(errno.ENOSPC, "no space")
        return write(fd, data[: room - at], at)

    # The file with the KV is written otherwise.
    monkeypatch.setattr(os, "pwrite", limited)
    with pytest.raises(StorageFull, match=r"run\.kv\.log at offset 100000: the device is full"):
        run_scenario(load_scenario(kept_by(path)))
    found = KvFile(path)
    assert 0 < found.step < 59
    assert found.dropped_bytes > 0
    assert found.log_bytes == room
    check_entries(found, computed)

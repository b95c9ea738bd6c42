"""Conversations whose process is killed: the next one finds what is whole in their file, and nothing else."""

import json
import os
import signal
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import pytest
from forked import Forked
from tiny import LIVE_TURNS, changed

from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def kept_by(path: Path) -> dict[str, Any]:
    return changed(LIVE_TURNS, live={"kv_file": str(path)})


def ran(described: dict[str, Any]) -> Run:
    run = run_scenario(load_scenario(described))
    assert run.outcome == "done", run.why
    return run


@pytest.fixture(scope="module")
def whole() -> Any:
    """The answers of the same conversations where nobody is killed, and nothing lies in a file from before."""
    return ran(LIVE_TURNS).measured["answers"]


# Dies in its n-th write: before it, with a part of its bytes written, or with all of them before that is noted.
MIDWAY = """
    import json, os, signal, sys
    from kvferry.disk.direct_storage import Storage
    from kvferry.machine.ops import Extents
    from kvferry.pipelines.run import run_scenario
    from kvferry.scenarios.loader import load_scenario

    described, share, left = json.loads(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    write = Storage.write

    def dies(storage, extents, data):
        global left
        left -= 1
        if left:
            return write(storage, extents, data)
        (begin, *_), part = extents.offsets, int(extents.n_bytes * share) // 512 * 512
        with open(storage.path, "r+b") as file:
            file.seek(begin)
            file.write(memoryview(data)[:part])
        os.kill(os.getpid(), signal.SIGKILL)

    Storage.write = dies
    run_scenario(load_scenario(described))
"""


THREE_WAYS: dict[str, Any] = {"system": "three-way", "policies": {"keep": "memory-flash"}}


@pytest.mark.parametrize(
    ("share", "write", "system"),
    [
        pytest.param(0.0, 2, {}, marks=pytest.mark.long),
        (0.4, 3, {}),
        pytest.param(0.4, 5, {}, marks=pytest.mark.long),
        pytest.param(1.0, 3, {}, marks=pytest.mark.long),
        pytest.param(0.4, 3, THREE_WAYS, marks=pytest.mark.long),
        pytest.param(1.0, 3, THREE_WAYS, marks=pytest.mark.long),
    ],
)
def test_killed_in_a_write(tmp_path: Path, whole: Any, share: float, write: int, system: dict[str, Any]) -> None:
    budget = {"kept_memory": "256 KiB", "kept_flash": "1280 KiB"}
    described = changed(kept_by(tmp_path / "kept.kv"), budget=budget, **system)
    assert Forked(MIDWAY, json.dumps(described), str(share), str(write)).wait() == -signal.SIGKILL
    again = ran(described)
    assert again.measured["answers"] == whole
    # A place is struck off before it is written over, and noted behind: nothing is left that is not whole.
    assert again.measured["kept_blocks_dropped"] == 0
    assert again.sessions is not None and sum(turn.from_flash for turn in again.sessions.turns[:2]) > 0


@pytest.mark.long
def test_killed_at_any_moment(tmp_path: Path, whole: Any) -> None:
    chance, path = Random(7), tmp_path / "kept.kv"
    described = changed(kept_by(path), live={"kv_file": str(path), "paced": True})
    code = """
        import json, sys
        from kvferry.pipelines.run import run_scenario
        from kvferry.scenarios.loader import load_scenario
        import kvferry.backends.live.world
        print("ready", flush=True)
        run_scenario(load_scenario(json.loads(sys.argv[1])))
    """
    for _ in range(6):
        child = Forked(code, json.dumps(described))
        assert child.stdout.readline() == b"ready\n"
        sleep(chance.random() * 1.5)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert ran(described).measured["answers"] == whole

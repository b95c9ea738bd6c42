"""Decoding with KV on storage that fails: a clear error each time, and no token after it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import Forked, mounts_of_its_own
from live_faults import cut, cut_and_stretch, cut_in_half, flip_a_bit, opened, punch_hole, reported_until_it_failed
from tiny import LIVE_DECODING, changed

from kvferry.disk.direct_storage import Storage, StorageError, StorageFull
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

pytest.importorskip("torch")
Call = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.torch

SCENARIO = changed(
    LIVE_DECODING,
    workload={"context": 512, "batch": 1, "output": 40},
    policies={"selected_tokens": 32},
)


def kvswap(folder: Path) -> dict[str, Any]:
    return SCENARIO | {"live": SCENARIO["live"] | {"kv_folder": str(folder)}}


def scenario(folder: Path) -> Scenario:
    return load_scenario(kvswap(folder))


def recording(folder: Path, path: Path, output: int = 2) -> Scenario:
    described = kvswap(folder)
    described["workload"] = SCENARIO["workload"] | {"output": output}
    return load_scenario(described | {"live": described["live"] | {"record_selections": str(path)}})


def flexgen(folder: Path) -> dict[str, Any]:
    """Reads all that is stored in every step."""
    changed = {"system": "flexgen", "policies": {"group_tokens": 4}}
    return kvswap(folder) | changed


@pytest.mark.parametrize(
    ("system", "harm"),
    [("kvswap", cut), ("kvswap", cut_in_half)]
    + [("flexgen", harm) for harm in (cut, cut_in_half, cut_and_stretch, punch_hole, flip_a_bit)],
)
@pytest.mark.parametrize("writes", [1, 2, 3], ids="after layer {}".format)
def test_a_file_harmed_during_prefill(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Call,
    system: str,
    harm: Callable[[Path], None],
    writes: int,
) -> None:
    write, written = Storage.write, 0

    def then_harm(storage: Storage, extents: Any, data: Any) -> None:
        nonlocal written
        write(storage, extents, data)
        written += 1
        if written == writes:
            harm(opened(tmp_path))

    monkeypatch.setattr(Storage, "write", then_harm)
    described = kvswap(tmp_path) if system == "kvswap" else flexgen(tmp_path)
    # Units fill blocks, and no group becomes complete: no later write meets the end of the file.
    described["workload"] = SCENARIO["workload"] | {"output": 3}
    described["policies"] = described["policies"] | {"group_tokens": 16}
    (described_in := tmp_path.with_suffix(".yaml")).write_text(json.dumps(described))
    code, out, err = call("run", str(described_in), "--json")
    assert (code, out) == (1, "")
    assert "has been cut since" in err or "the file has been changed from outside" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("harm", [cut, cut_in_half, cut_and_stretch, punch_hole, flip_a_bit])
@pytest.mark.parametrize("tokens", [1, 5], ids="after {} tokens".format)
def test_a_file_harmed_while_decoding(tmp_path: Path, harm: Callable[[Path], None], tokens: int) -> None:
    def then(said: int) -> None:
        if said == tokens:
            harm(opened(tmp_path))

    reported, error = reported_until_it_failed(load_scenario(flexgen(tmp_path)), then)
    # All that is stored is read in every step. A step may have been under way, beyond what was harmed.
    assert tokens <= reported[-1] <= tokens + 1
    assert "has been cut since" in str(error) or "the file has been changed from outside" in str(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("harm", [cut, cut_and_stretch])
def test_a_file_cut_while_groups_are_reused(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    def then(said: int) -> None:
        if said == 5:
            harm(opened(tmp_path))

    reported, error = reported_until_it_failed(scenario(tmp_path), then)
    # The next group that is not in a reuse buffer ends it, some tokens later at most, and the file goes with the run.
    assert 5 <= reported[-1] < 40
    assert "kv.bin" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_fails_while_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Storage.read
    failing = False

    def fail(storage: Storage, extents: Any) -> Any:
        if failing and len(extents):
            raise StorageError("cannot read: Input/output error")
        return read(storage, extents)

    def harm(tokens: int) -> None:
        nonlocal failing
        failing = tokens == 3

    monkeypatch.setattr(Storage, "read", fail)
    reported, error = reported_until_it_failed(scenario(tmp_path), harm)
    assert reported[-1] == 3
    assert "Input/output error" in str(error)


def test_no_room_for_the_group_that_became_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Storage.write
    full = False

    def fail(storage: Storage, extents: Any, data: Any) -> None:
        if full:
            raise StorageFull("cannot write: the device is full")
        write(storage, extents, data)

    def harm(tokens: int) -> None:
        nonlocal full
        full = True

    monkeypatch.setattr(Storage, "write", fail)
    reported, error = reported_until_it_failed(scenario(tmp_path), harm)
    # Four tokens make a group; it is not selected before its write has failed.
    assert reported[-1] <= 6
    assert "the device is full" in str(error)


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("missing/selections.npz", "cannot be written: No such file or directory"),
        ("", "is a folder; name a file"),
        ("file/selections.npz", "cannot be written: Not a directory"),
        ("pipe", "is a device or a pipe; name a file"),
    ],
)
def test_selections_that_cannot_be_recorded_are_refused_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, why: str
) -> None:
    from kvferry.backends.live.decoding import parts

    def loaded(scenario: Scenario) -> None:
        pytest.fail("the model was loaded")

    monkeypatch.setattr(parts, "warm_model", loaded)
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / where
    with pytest.raises(InputError, match=f"live.record_selections: {path} {why}"):
        run_scenario(recording(tmp_path, path))
    assert [path.name for path in tmp_path.iterdir() if path.name != "pipe"] == ["file"]


@pytest.mark.parametrize("key", ["record_selections", "record_keys", "kv_file"])
def test_a_file_of_the_users_is_not_replaced_by_what_a_scenario_names(tmp_path: Path, key: str) -> None:
    """Also not the file beside it that a shorter name of a half-written one would hit."""
    mine, beside = tmp_path / "notes", tmp_path / "notes.part"
    mine.write_text("mine")
    beside.write_text("mine, too")
    described = changed(SCENARIO, live={key: str(mine)}, workload={"output": 2})
    if key == "kv_file":
        described = changed(described, policies={"placement": "storage", "group_tokens": 1})
    with pytest.raises(InputError, match=f"live.{key}: {mine} is no.*would be lost; name another"):
        run_scenario(load_scenario(described))
    assert (mine.read_text(), beside.read_text()) == ("mine", "mine, too")


def test_a_file_that_came_to_lie_there_in_mid_run_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "selections.npz"
    run = run_scenario(recording(tmp_path, path), say=lambda what: None if path.exists() else _write(path))
    assert "would be lost" in run.measured["not_recorded"] and path.read_text() == "mine"


def _write(path: Path) -> None:
    path.write_text("mine")


@pytest.mark.parametrize("output", [2, 1], ids=["no file can be written there", "nothing selected"])
def test_a_run_whose_selections_cannot_be_written_is_kept(tmp_path: Path, output: int) -> None:
    path = tmp_path / "selections.npz"
    said: list[str] = []

    def say(what: str) -> None:
        # First before the model is loaded.
        if output == 2 and not said:
            path.mkdir()
        said.append(what)

    run = run_scenario(recording(tmp_path, path, output=output), say=say)
    assert run.outcome == "done"
    assert len(run.measured["answers"]["0"]) == output
    why = "selections.npz: Is a directory" if output == 2 else "no step selected"
    assert why in run.measured["not_recorded"]
    assert said[-1] == f"the selections are not recorded: {run.measured['not_recorded']}"
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


ON_A_SMALL_DEVICE = """
    import json, os, subprocess, sys
    from pathlib import Path
    from kvferry.disk import opened_file as storage_file
    from kvferry.disk.direct_storage import StorageError
    from kvferry.pipelines.run import run_scenario
    from kvferry.scenarios.loader import load_scenario

    folder = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "small", folder], check=True)
    described = json.loads(sys.argv[2])
    described["live"]["kv_folder"] = str(folder)

    def attempt():
        try:
            run_scenario(load_scenario(described))
        except StorageError as error:
            print(type(error).__name__, error)
        print(sorted(os.listdir(folder)))

    attempt()

    def sparse(path, n_bytes):
        path.touch()
        os.truncate(path, n_bytes)

    # A file system that promises room and has none, as thinly provisioned ones do: it is full in the middle of prefill.
    from kvferry.disk import direct_storage as storage
    storage.make_room = sparse
    attempt()
"""


def test_a_full_device(tmp_path: Path) -> None:
    with mounts_of_its_own(tmp_path) as inside:
        child = Forked(ON_A_SMALL_DEVICE, str(tmp_path), json.dumps(SCENARIO), inside=inside)
        made, after, written, after_writing = child.stdout.read().decode().splitlines()
        assert child.wait() == 0
    assert made.startswith("StorageFull cannot make ")
    assert made.endswith("the device is full")
    assert written.startswith("StorageFull cannot write ")
    assert written.endswith("the device is full")
    assert (after, after_writing) == ("[]", "[]")

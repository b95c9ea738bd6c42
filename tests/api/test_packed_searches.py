"""Searches that last: packed, and rerun elsewhere to the same points and the same front."""

import json
import re
import shlex
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvferry
from kvferry.analysis.executors.choice import InProcess
from kvferry.api.sweep import point_of
from kvferry.pipelines.plugins import drop, used
from kvferry.scenarios.named_files import portable_name
from kvferry.specs.errors import InputError

pytest.importorskip("optuna")

SEARCH = """\
base: {name: small, device: mine.yaml, model: tiny, link: {trace: walk.csv, rtt: 4 ms},
  workload: {kind: context-reuse, context: 1Ki}}
space:
  system: [stream-only, ferry]
  link.trace: [walk.csv, ride.csv]
  link.rtt: {from: 1 ms, to: 100 ms, log: true}
objectives: [ttft_s, {metric: load_s, better: low}]
constraints: [ttft_s <= 40 s]
points: 6
at_once: 3
seeds: 2
"""
DEVICE = "extends: rtx-5080-laptop\nname: mine\nprocessors: {gpu: {flop_per_s: 120 Tflop/s}}\n"
WALK = "time_s,bytes_per_s\n0,10000000\n1,5000000\n2,20000000\n3,20000000\n"
PLUGIN = """\
from kvferry.policies.loading.ferry import Ferry


class Mine(Ferry):
    pass


KVFERRY = {"loader": {"mine": Mine}}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(there)
    for name, text in (("search.yaml", SEARCH), ("mine.yaml", DEVICE), ("walk.csv", WALK)):
        Path(name).write_text(text)
    Path("ride.csv").write_text(WALK.replace("10000000", "9000000"))
    return there


def searched(settings: dict[str, Any] | None = None) -> Path:
    return kvferry.search("search.yaml", settings or {}, output="found", jobs=1, plots=False).folder


def unpacked(settings: dict[str, Any] | None = None) -> Path:
    file, _ = kvferry.pack(searched(settings), "found.zip")
    return kvferry.unpack(file, "out")[0]


def changed(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    path = folder / name
    read, write = (yaml.safe_load, yaml.safe_dump) if path.suffix == ".yaml" else (json.loads, json.dumps)
    text = read(path.read_text())
    change(text)
    path.write_text(write(text))


def test_a_rerun_elsewhere_gives_the_same_bytes(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = kvferry.search("search.yaml", {"policies.codec": "kivi"}, output="found", jobs=1)
    assert found.said == () and found.plots
    file, manifest = kvferry.pack("found")
    assert (file.name, manifest.rows) == ("found.kvferry.zip", len(found.points))
    kept = file.read_bytes()
    assert kvferry.pack("found", "again.zip")[0].read_bytes() == kept and str(tmp_path).encode() not in b"".join(
        zipfile.ZipFile(file).read(name) for name in zipfile.ZipFile(file).namelist()
    )
    front, rows = ((found.folder / name).read_bytes() for name in ("search.json", "points.parquet"))
    shutil.rmtree(place)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    Path("found.kvferry.zip").write_bytes(kept)
    folder, _ = kvferry.unpack("found.kvferry.zip")
    assert {path.name for path in (folder / "plots").iterdir()} == {"pareto.png", "pareto.svg"}
    checked = kvferry.check(folder, jobs=1)
    assert (checked.rows, checked.same, checked.differences, checked.notes) == (manifest.rows, True, (), ())
    assert [(folder / "rerun" / name).read_bytes() for name in ("search.json", "points.parquet")] == [front, rows]
    assert kvferry.check(folder, jobs=1).same


def test_the_command_says_the_same(place: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    searched()
    code, out, said = call("pack", "found")
    assert code == 0 and out.startswith("found.kvferry.zip: ") and "kvferry unpack found.kvferry.zip --check" in said
    code, out, _ = call("unpack", "found.kvferry.zip", "--check", "-o", "out", "-j", "1")
    assert code == 0 and out.endswith(" rows: same bytes\n")
    changed(Path("out"), "search.json", lambda text: text.update(solutions=99))
    code, out, _ = call("unpack", "out", "--check", "-j", "1")
    assert code == 1 and out.startswith("search.json: solutions: 99 there, ")


def test_files_are_named_by_what_is_in_them(place: Path) -> None:
    """So that what was found reads alike wherever it lies."""
    text = (searched() / "search.json").read_text()
    assert any(portable_name(path) in text for path in place.glob("*.csv")) and str(place) not in text


def test_a_search_that_grew_keeps_the_text_of_the_former(place: Path) -> None:
    before = (searched() / "search.yaml").read_bytes()
    Path("search.yaml").write_text(SEARCH.replace("points: 6", "points: 9"))
    found = kvferry.search("search.yaml", output="found", jobs=1, plots=False)
    (kept,) = found.folder.glob("search-*.yaml")
    assert found.said == (f"found held another search, which is kept there as {kept.name}",)
    assert kept.read_bytes() == before and 0 < found.new < len(found.points)
    assert kvferry.check(kvferry.unpack(kvferry.pack("found", "a.zip")[0], "out")[0], jobs=1).same


def test_code_that_comes_along_is_run_when_asked_for(place: Path) -> None:
    Path("own.py").write_text(PLUGIN)
    kvferry.use("own.py")
    Path("search.yaml").write_text(SEARCH.replace("stream-only", "mine"))
    folder = unpacked()
    drop(used()[0])
    with pytest.raises(InputError, match=r"brings code along.*own\.py"):
        kvferry.check(folder)
    assert used() == ()
    try:
        assert kvferry.check(folder, run_plugins=True, jobs=1).same
    finally:
        drop(used()[0])


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("search.yaml", lambda text: text["space"].update({"link.trace": ["/etc/passwd"]}), "leads out of its folder"),
        ("search.yaml", lambda text: text["base"].update(extends="quickstart"), "base.extends: .* is another file"),
        ("search.yaml", lambda text: text.update(base="../x.yaml"), "base: is no scenario that stands there"),
        ("search.yaml", lambda text: text["space"].update({"live.cloud": ["http://127.0.0.1:9/"]}), "is an address"),
        ("provenance.json", lambda text: text.update(settings=["policies.tuned=./a.json"]), "names a file"),
    ],
)  # fmt: skip
def test_a_search_of_others_reaches_its_own_folder_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[Any], None], said: str
) -> None:
    folder = unpacked()
    changed(folder, name, change)
    monkeypatch.setattr(InProcess, "rows", lambda *_: pytest.fail("it was run"))
    with pytest.raises(InputError, match=f"{said}.*; a search of others reaches its own folder alone.*kvferry search"):
        kvferry.check(folder, jobs=1)


def test_no_point_writes_to_a_place_of_its_choice(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = "base: {extends: kvswap/live, backend: sim, workload: {context: 1500, output: 4}}\n"
    Path("search.yaml").write_text(f"{live}space: {{seed: [1, 2]}}\nobjectives: [tpot_s]\npoints: 2\nat_once: 1\n")
    folder = unpacked()
    changed(folder, "search.yaml", lambda text: text["space"].update({"live.record_keys": ["x"]}))
    with pytest.raises(InputError, match=r"search\.yaml: live\.record_keys: 'x' is a place that a run writes to"):
        kvferry.check(folder, jobs=1)
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("search.json", b"[" * 100_000, "search.json: is damaged"),
        ("search.json", b"[]", "search.json: is damaged"),
        ("search.yaml", b"base: [", "search.yaml"),
        ("search.yaml", b"base: quickstart\naxes: {seed: [1]}\n", "search.yaml"),
    ],
)
def test_damaged_records_are_named(place: Path, name: str, content: bytes, said: str) -> None:
    folder = unpacked()
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        kvferry.check(folder, jobs=1)


@pytest.mark.parametrize("name", ["search.yaml", "search.json", "points.parquet", "order.parquet"])
def test_archives_that_lack_a_file_are_refused(place: Path, name: str) -> None:
    """Whether the manifest names it or not."""
    packed, _ = kvferry.pack(searched(), "found.zip")
    with zipfile.ZipFile(packed) as archive:
        contents = {one: archive.read(one) for one in archive.namelist() if one != name}
    for silent in (False, True):
        manifest = json.loads(contents["manifest.json"])
        if silent:
            del manifest["files"][name]
        contents["manifest.json"] = json.dumps(manifest).encode()
        with zipfile.ZipFile("less.zip", "w") as archive:
            for one, content in contents.items():
                archive.writestr(one, content)
        with pytest.raises(InputError, match=name.replace(".", r"\.")):
            kvferry.check(kvferry.unpack("less.zip", f"less-{silent}")[0], jobs=1)
        assert Path("less-True").exists() == silent


def test_a_changed_or_truncated_archive_is_refused_whole(place: Path) -> None:
    packed, _ = kvferry.pack(searched(), "found.zip")
    whole = packed.read_bytes()
    for n_bytes in (len(whole) // 2, len(whole) - 10):
        Path("cut.zip").write_bytes(whole[:n_bytes])
        with pytest.raises(InputError, match="is no archive of kvferry pack"):
            kvferry.unpack("cut.zip", "out")
    with zipfile.ZipFile(packed) as before, zipfile.ZipFile("other.zip", "w") as after:
        for one in before.namelist():
            content = before.read(one)
            after.writestr(one, content.replace(b"points: 6", b"points: 7") if one == "search.yaml" else content)
    with pytest.raises(InputError, match="search.yaml is not what its manifest says"):
        kvferry.unpack("other.zip", "out")
    assert not Path("out").exists()


def test_what_cannot_be_done_with_a_search_says_what_can(place: Path) -> None:
    folder = searched()
    with pytest.raises(InputError, match=r"kvferry search found/search\.yaml -o found draws it"):
        kvferry.plot(folder)
    with pytest.raises(InputError, match=r"is of a search: search\.json says by which settings"):
        point_of(folder, "0123")
    again = kvferry.search(folder / "search.yaml", output=folder, jobs=1)
    assert again.new == 0 and again.said == () and again.plots


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("search.json", r"kvferry search FILE adds the rest, and runs nothing again"),
        ("points.parquet", r"kvferry sweep STUDY adds the rest"),
        ("metrics.json", r"is of a run: kvferry run .*scenario\.yaml makes it again"),
        ("comparison.json", r"is of a comparison: as a sweep with axes: {system: \[\.\.\.\]} it can be packed"),
        ("advice.json", r"is of advice, which a clock cuts"),
        ("other.json", r"give the folder of a sweep or a search"),
    ],
)
def test_other_folders_say_what_they_are(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_text("{}")
    for refused in (lambda: kvferry.pack(tmp_path, tmp_path / "out.zip"), lambda: point_of(tmp_path, "0123")):
        with pytest.raises(InputError, match=said):
            refused()


@pytest.mark.parametrize("name", ["search.json", "order.parquet"])
def test_what_is_gone_is_written_by_the_command_that_is_said(
    place: Path, call: Callable[..., tuple[int, str, str]], name: str
) -> None:
    (searched() / name).unlink()
    with pytest.raises(InputError, match=f"^found/{name}: is gone; ") as error:
        kvferry.pack("found")
    if name == "search.json":
        _, _, typed = str(error.value).partition("kvferry ")
        assert call(*shlex.split(typed.removesuffix(" writes it again")))[0] == 0
        kvferry.pack("found")


def test_the_hints_of_a_refused_check_work_when_typed(place: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    Path("own.py").write_text(PLUGIN)
    kvferry.use("own.py")
    Path("search.yaml").write_text(SEARCH.replace("stream-only", "mine"))
    searched()
    drop(used()[0])
    typed = ["kvferry", "pack", "found", "-o", "my search.zip"]
    said: list[list[str]] = []
    # What pack says, without its flag for code; what is there already; what a check says of code.
    for left_out in ("--run-plugins,", "", "", ""):
        _, out, err = call(*typed[1:])
        (hint,) = re.findall(r"kvferry unpack .*?(?= which runs| checks it|$)", err.splitlines()[-1]) or [""]
        typed = [word for word in shlex.split(hint) if word != left_out]
        said.append(typed)
        if out.endswith("same bytes\n"):
            break
    drop(used()[0])
    assert said[0] == ["kvferry", "unpack", "my search.zip", "--check"]
    assert said[1] == ["kvferry", "unpack", "my search", "--check", "--run-plugins"]
    assert out.endswith("same bytes\n")
    _, _, err = call("unpack", "my search.zip")
    assert "kvferry unpack 'my search' --check checks it" in err

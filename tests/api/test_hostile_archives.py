"""Archives and folders of strangers: all of one is written, or nothing; what its records say is checked first."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import kvferry
from kvferry.api import archive as artefact
from kvferry.api.sweep import point_of
from kvferry.specs.errors import InputError, KvferryError

STUDY = """\
base: {name: small, system: stream-only, device: tiny, model: tiny, link: {rate: 80 Mbit/s},
  workload: {kind: context-reuse, context: 1Ki}}
axes: {seed: [1]}
"""
FILE = "files/0123456789ab"


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a good archive holds."""
    place = tmp_path_factory.mktemp("there")
    (place / "study.yaml").write_text(STUDY)
    kvferry.sweep(place / "study.yaml", jobs=1, plots=False, output=place / "swept")
    file, _ = kvferry.pack(place / "swept", place / "study.zip")
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(
    file: Path, contents: dict[str, bytes], manifest: dict[str, Any] | bytes | None = None, **more: bytes
) -> Path:
    """An archive with these files, whose manifest fits but for what is given."""
    every = {**contents, **more}
    if not isinstance(manifest, bytes):
        digests = {name: hashlib.sha256(one).hexdigest() for name, one in every.items() if name != "manifest.json"}
        text = {**json.loads(contents["manifest.json"]), "files": digests, **(manifest or {})}
        every["manifest.json"] = json.dumps(text).encode()
    else:
        every["manifest.json"] = manifest
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, one in every.items():
            archive.writestr(name, one)
    return file


@pytest.mark.parametrize(
    "manifest",
    [
        *({"rows": rows} for rows in ("abc", None, [], -1, 1.5, True, 10**400)),
        *({key: value} for key in ("study", "code") for value in (None, 5, [])),
        *({key: {"a": 5}} for key in ("versions", "plugins", "files")),
        {"versions": 5},
        *({"absent": {f"{FILE}/a": {"sha256": "0", "bytes": size}}} for size in (10**400, -1, 1.5, "1", True)),
        {"absent": {f"{FILE}/a": {"sha256": 5, "bytes": 1}}},
        {"absent": {f"{FILE}/{'n' * 300}": {"sha256": "0", "bytes": 1}}},
        {"absent": {f"{FILE}/../../../a": {"sha256": "0", "bytes": 1}}},
        {"absent": {"a\ud800": {"sha256": "0", "bytes": 1}}},
        {"absent": {f"{FILE}/a": "abc"}},
        {"absent": []},
        b"[" * 100_000,
        b"\xff",
    ],
    ids=lambda manifest: str(manifest)[:60],
)
def test_each_value_of_a_manifest_is_checked_before_anything_is_written(
    tmp_path: Path, contents: dict[str, bytes], manifest: Any
) -> None:
    with pytest.raises(InputError, match=r"manifest\.json: "):
        kvferry.unpack(packed(tmp_path / "a.zip", contents, manifest), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_a_manifest_has_a_size(tmp_path: Path, contents: dict[str, bytes]) -> None:
    """190 MB of empty lists, packed to 0.2 MB, would take gigabytes."""
    bomb = b'{"versions": [' + b",".join([b"[]"] * 2_000_000) + b"]}"
    with pytest.raises(InputError, match=r"manifest\.json' holds more than 5\.00 MB"):
        kvferry.unpack(packed(tmp_path / "a.zip", contents, bomb), tmp_path / "out")
    folder, _ = kvferry.unpack(packed(tmp_path / "a.zip", contents), tmp_path / "out")
    (folder / "manifest.json").write_bytes(bomb)
    with pytest.raises(InputError, match=r"manifest\.json.*5"):
        kvferry.unpack(folder)


@pytest.mark.parametrize(
    "names",
    [
        (f"{FILE}/x", f"{FILE}/x/y"),
        (f"{FILE}/X/y", f"{FILE}/x"),
        (f"{FILE}/{'n' * 256}",),
        (f"{FILE}/{'ä' * 128}",),
        (f"{FILE}/" + "/".join(["d" * 200] * 6),),
        (f"{FILE}/a\nb",),
        (f"{FILE}/a\x1b[31m",),
        (f"{FILE}/a\u202eb",),
    ],
    ids=ascii,
)
def test_names_that_no_folder_takes_are_refused(
    tmp_path: Path, contents: dict[str, bytes], names: tuple[str, ...]
) -> None:
    file = packed(tmp_path / "a.zip", contents, **dict.fromkeys(names, b"x"))
    with pytest.raises(InputError, match="nothing was unpacked"):
        kvferry.unpack(file, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize("there", [False, True])
def test_what_cannot_be_written_whole_is_not_begun(
    tmp_path: Path, contents: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    file, out = packed(tmp_path / "a.zip", contents), tmp_path / "out"
    if there:
        out.mkdir()
    write, written = artefact.write_file, []

    def full(path: Path, content: bytes) -> Path:
        if len(written) == 2:
            raise KvferryError(f"cannot write {path}: the disk is full")
        written.append(path)
        return write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(artefact, "write_file", full)
        with pytest.raises(
            KvferryError, match=r"out: nothing was unpacked: cannot write .*out/\w+.*: the disk is full"
        ):
            kvferry.unpack(file, out)
    assert len(written) == 2 and out.exists() == there
    assert [path for path in tmp_path.rglob("*") if path not in (file, out)] == []
    # The next try has its folder.
    kvferry.unpack(file, out)
    assert {path.name for path in out.iterdir()} == {name.split("/")[0] for name in contents}


@pytest.mark.parametrize(
    "change",
    [
        *({"devices": one} for one in ({"x": 5}, 5, None)),
        *({key: {"a": 5}} for key in ("plugins", "versions", "computer", "traces")),
        *({key: [5]} for key in ("axes", "settings", "headlines", "backends")),
        {"axes": "ab"},
        {"settings": ["live.record_keys=/x"]},
        *({"intervals": one} for one in (1, 0.0, "yes")),
        *({"files": {"a": {"sha256": "x", "kept": True, "bytes": size}}} for size in (-1, 10**400, 1.5, True)),
        {"files": {"a": {"sha256": 5, "kept": True, "bytes": 1}}},
        {"files": {"a": {"sha256": "x", "kept": 1, "bytes": 1}}},
        {"files": {"a": 5}},
        {"code": None},
    ],
    ids=lambda change: str(change)[:60],
)
def test_each_value_of_a_provenance_is_checked(
    tmp_path: Path, contents: dict[str, bytes], change: dict[str, Any]
) -> None:
    pytest.importorskip("plotly")
    folder, _ = kvferry.unpack(packed(tmp_path / "a.zip", contents), tmp_path / "out")
    path = folder / "provenance.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    for read in (
        lambda: kvferry.check(folder, jobs=1),
        lambda: point_of(folder, "abcd"),
        lambda: kvferry.report([folder], tmp_path / "x.html"),
        lambda: kvferry.pack(folder, tmp_path / "x.zip"),
    ):
        with pytest.raises(InputError, match=r"provenance\.json: is damaged: "):
            read()


def test_a_provenance_that_is_too_deep(tmp_path: Path, contents: dict[str, bytes]) -> None:
    folder, _ = kvferry.unpack(packed(tmp_path / "a.zip", contents), tmp_path / "out")
    (folder / "provenance.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"provenance\.json: is damaged: "):
        point_of(folder, "abcd")


def test_names_that_unpack_would_refuse_are_not_packed(tmp_path: Path, contents: dict[str, bytes]) -> None:
    folder, _ = kvferry.unpack(packed(tmp_path / "a.zip", contents), tmp_path / "out")
    (folder / FILE).mkdir(parents=True)
    (folder / FILE / "a\nb").write_text("")
    with pytest.raises(InputError, match="is no name for a file of an artefact"):
        kvferry.pack(folder, tmp_path / "b.zip")

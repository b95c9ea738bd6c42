"""Sweeps that last: drawn again from their rows, packed, and rerun elsewhere to the same bytes."""

import io
import json
import re
import shutil
import stat
import zipfile
from pathlib import Path

import pandas as pd
import pytest

import kvferry
from kvferry.analysis import dataset
from kvferry.analysis.study_record import read_provenance, recorded_study
from kvferry.api import archive as artefact
from kvferry.api.sweep import point_of
from kvferry.pipelines.plugins import drop, used
from kvferry.scenarios.loader import scenario_hash
from kvferry.specs.errors import InputError
from kvferry.traces.format import StoredTrace, write_trace
from kvferry.traces.importers import import_trace

DEVICE = "extends: rtx-5080-laptop\nname: mine\nprocessors: {gpu: {flop_per_s: 120 Tflop/s}}\n"
TRACE = "time_s,bytes_per_s\n0,10000000\n1,5000000\n2,20000000\n3,20000000\n"
STUDY = """\
base:
  extends: small.yaml
  device: mine.yaml
axes:
  system: [ferry, stream-only]
  workload.context: [1Ki, 2Ki]
zip:
  - link.offset: [0 s, 1 s]
    device: [mine.yaml, rtx-5080-laptop]
seeds: [3]
where: [workload.context < 2Ki or system == ferry]
plots:
  - {kind: line, x: workload.context, y: ttft_s, by: system}
  - {kind: bar, x: system, y: ttft_s, pool: [workload.context], name: bars}
"""
SMALL = """\
name: small
system: ferry
device: rtx-5080-laptop
model: tiny
link: {trace: traces/walk.csv, rtt: 4 ms}
workload: {kind: context-reuse, context: 2Ki}
"""
PLUGIN = """\
from kvferry.policies.loading.ferry import Ferry


class Mine(Ferry):
    pass


KVFERRY = {"loader": {"mine": Mine}}
"""


def described(place: Path) -> Path:
    (place / "traces").mkdir(parents=True)
    for name, text in (("mine", DEVICE), ("study", STUDY), ("small", SMALL)):
        (place / f"{name}.yaml").write_text(text)
    (place / "traces" / "walk.csv").write_text(TRACE)
    return place


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = described(tmp_path / "there")
    monkeypatch.chdir(place)
    return place


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the study was swept and packed."""
    place = described(tmp_path_factory.mktemp("made") / "there")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        kvferry.sweep("study.yaml", jobs=1)
        kvferry.pack("runs/study")
    return place


@pytest.fixture
def packed(study: Path, made: Path) -> Path:
    shutil.copytree(made, study, dirs_exist_ok=True)
    return study / "study.kvferry.zip"


def test_a_rerun_elsewhere_gives_the_same_bytes(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    shutil.move(str(packed), here / "study.kvferry.zip")
    shutil.rmtree(tmp_path / "there")
    monkeypatch.chdir(here)
    folder, manifest = kvferry.unpack("study.kvferry.zip")
    assert (folder, manifest.rows) == (Path("study"), 6)
    assert sorted(path.name for path in (folder / "plots").iterdir()) == sorted(
        f"{name}.{ending}" for name in ("bars", "line-workload.context-ttft_s-system") for ending in ("png", "svg")
    )
    checked = kvferry.check(folder, jobs=1)
    assert (checked.rows, checked.same, checked.differences) == (6, True, ())
    assert (folder / "rerun/points.parquet").read_bytes() == (folder / "points.parquet").read_bytes()
    # A folder that was unpacked before is checked again.
    assert kvferry.unpack(folder)[1] == manifest


@pytest.mark.long
def test_the_tutorials_study_rerun_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its three files as the page has them, its log imported as it says."""
    page = (Path(__file__).parents[2] / "docs/tutorial.md").read_text()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    for name, text in re.findall(r'^```\w+ title="([\w.-]+)"\n(.*?)^```', page, re.DOTALL | re.MULTILINE):
        Path(name).write_text(text)
    write_trace(Path("walk-trace.csv"), StoredTrace("bandwidth", import_trace(Path("walk.csv"))))
    swept = kvferry.sweep("lengths.yaml", jobs=1)
    file, manifest = kvferry.pack(swept.folder)
    kept, rows = file.read_bytes(), (swept.folder / "points.parquet").read_bytes()
    shutil.rmtree(tmp_path / "there")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("lengths.kvferry.zip").write_bytes(kept)
    folder, _ = kvferry.unpack("lengths.kvferry.zip")
    assert manifest.rows == 36 and kvferry.check(folder, jobs=1).same
    assert (folder / "rerun/points.parquet").read_bytes() == rows


def test_equal_folders_give_equal_archives(packed: Path, made: Path) -> None:
    first = packed.read_bytes()
    kvferry.pack("runs/study", "again.zip")
    assert Path("again.zip").read_bytes() == first
    text = b"".join(zipfile.ZipFile(packed).read(name) for name in zipfile.ZipFile(packed).namelist())
    assert str(made).encode() not in text


def test_rows_of_other_studies_are_left_out(study: Path) -> None:
    kvferry.sweep("study.yaml", jobs=1, plots=False)
    (study / "study.yaml").write_text(STUDY.replace("[1Ki, 2Ki]", "[1Ki]"))
    swept = kvferry.sweep("study.yaml", jobs=1, plots=False)
    assert swept.summary["said"] == ["runs/study held another study, which is kept there as " + _kept(study)]
    _, manifest = kvferry.pack("runs/study")
    folder, _ = kvferry.unpack("study.kvferry.zip", "out")
    assert (manifest.rows, len(pd.read_parquet(folder / "points.parquet"))) == (4, 4)
    assert kvferry.check(folder, jobs=1).same


def test_pictures_that_a_study_does_not_draw_any_more_are_named(study: Path) -> None:
    assert kvferry.sweep("study.yaml", jobs=1).summary["said"] == []
    (study / "study.yaml").write_text(STUDY.replace(", name: bars", ", name: others"))
    said = kvferry.sweep("study.yaml", jobs=1).summary["said"]
    assert said[-1] == "runs/study/plots still holds pictures that this study does not draw: bars"


def _kept(study: Path) -> str:
    (kept,) = (study / "runs/study").glob("study-*.yaml")
    return kept.name


def test_the_folder_alone_makes_the_same_points(study: Path) -> None:
    settings = {"policies.codec": "kivi"}
    swept = kvferry.sweep("study.yaml", settings, jobs=1, plots=False)
    found = recorded_study(swept.folder)
    assert list(map(scenario_hash, found.points)) == list(map(scenario_hash, swept.study.points))
    assert {point.policies["codec"].name for point in found.points} == {"kivi"}
    provenance = read_provenance(swept.folder)
    (file,) = provenance.files
    assert file.endswith("/walk.csv") and (swept.folder / file).read_text() == TRACE
    assert set(provenance.devices) == {"mine", "rtx-5080-laptop"} and "python" in provenance.versions


def test_one_point_of_a_folder_runs_again(study: Path) -> None:

    swept = kvferry.sweep("study.yaml", jobs=1, plots=False)
    row = swept.points.iloc[2]
    key, point = point_of("runs/study", row["key"][:10])
    assert key == row["key"]
    assert kvferry.run(point).metrics["ttft_s"] == row["ttft_s"] == swept.run(key).metrics["ttft_s"]
    with pytest.raises(InputError, match="is too short"):
        point_of("runs/study", "ab")
    with pytest.raises(InputError, match="0 keys of runs/study begin so"):
        point_of("runs/study", "zzzz")


def test_pictures_are_drawn_again_without_a_run(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept = kvferry.sweep("study.yaml", jobs=1)
    first = {path.name: path.read_bytes() for path in swept.plots}
    shutil.rmtree("runs/study/plots")
    for name in ("mine.yaml", "study.yaml", "small.yaml", "traces/walk.csv"):
        (study / name).unlink()
    monkeypatch.setattr("kvferry.pipelines.run.run_scenario", None)
    drawn, said = kvferry.plot("runs/study")
    assert {path.name: path.read_bytes() for path in drawn.files} == first and said == []


def test_a_papers_column_and_its_tables(study: Path) -> None:
    kvferry.sweep("study.yaml", jobs=1, plots=False)
    drawn, _ = kvferry.plot("runs/study", formats=["pdf"], width="84mm", latex=True, output="paper")
    assert sorted(path.suffix for path in drawn.files) == [".pdf", ".pdf", ".tex", ".tex"]
    again, _ = kvferry.plot("runs/study", formats=["pdf"], width="84mm", output="again")
    pdf = next(path for path in again.files if path.stem == "bars")
    assert pdf.read_bytes() == Path("paper/bars.pdf").read_bytes()
    # 84 mm are 238 of its points, which a file says in its media box.
    assert b"/MediaBox [ 0 0 238." in pdf.read_bytes()
    text = Path("paper/line-workload.context-ttft_s-system.tex").read_text()
    rows = pd.read_parquet("runs/study/points.parquet")
    ferry = rows[(rows["system"] == "ferry") & (rows["workload.context"] == 1024) & (rows["device.name"] == "mine")]
    first = next(line for line in text.splitlines() if line.endswith(r"\\") and ", 1 &" in line)
    assert first.split(" & ")[1] == f"{ferry['ttft_s'].iloc[0]:.3g}"
    assert text.count("&") % 2 == 0 and r"device mine" in text


def test_a_width_or_format_that_is_none(study: Path) -> None:
    kvferry.sweep("study.yaml", jobs=1, plots=False)
    for how, said in (
        ({"width": "3"}, "write it like 3.3in"),
        ({"width": "400in"}, "between"),
        ({"formats": ["gif"]}, "none of"),
    ):
        with pytest.raises(InputError, match=said):
            kvferry.plot("runs/study", **how)


def test_rows_of_a_version_are_drawn_alone(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kvferry.sweep("study.yaml", jobs=1, plots=False)
    for module in ("sweep", "point", "study_record"):
        monkeypatch.setattr(f"kvferry.analysis.{module}.code_version", lambda: "9.9.9+00000000")
    (study / "study.yaml").write_text(STUDY.replace("[1Ki, 2Ki]", "[1Ki]"))
    kvferry.sweep("study.yaml", jobs=1, plots=False)
    (study / "study.yaml").write_text(STUDY)
    Path("runs/study/study.yaml").write_text(STUDY)
    _, said = kvferry.plot("runs/study")
    assert "4 rows of other versions lie in earlier.parquet" in said[-1]
    drawn, said = kvferry.plot("runs/study", rows="9.9.9")
    assert said == [] and len(drawn.files) == 4
    with pytest.raises(InputError, match=r"names 0 versions; known: .*, 9\.9\.9\+00000000"):
        kvferry.plot("runs/study", rows="1.0")


def test_a_file_too_large_is_named_by_its_digest(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.analysis.study_record.MOST_FILE_BYTES", 10)
    kvferry.sweep("study.yaml", jobs=1, plots=False)
    _, manifest = kvferry.pack("runs/study")
    (name,) = manifest.absent
    folder, _ = kvferry.unpack("study.kvferry.zip", "out")
    assert name.endswith("/walk.csv") and str(study) not in (folder / "study.yaml").read_text()
    with pytest.raises(InputError, match="is not in the artefact"):
        kvferry.check(folder)
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text(TRACE + "4,1\n")
    with pytest.raises(InputError, match="is another file"):
        kvferry.check(folder)
    (folder / name).write_text(TRACE)
    assert kvferry.check(folder, jobs=1).same


def test_code_that_comes_along_is_run_when_asked_for(study: Path) -> None:
    Path("mine.py").write_text(PLUGIN)
    kvferry.use("mine.py")
    (study / "study.yaml").write_text("base: small.yaml\naxes: {system: [mine, ferry]}\n")
    kvferry.sweep("study.yaml", jobs=1, plots=False)
    kvferry.pack("runs/study")
    drop(used()[0])
    folder, manifest = kvferry.unpack("study.kvferry.zip", "out")
    assert list(manifest.plugins) == ["mine"]
    with pytest.raises(InputError, match=r"brings code along.*mine\.py"):
        kvferry.check(folder)
    with pytest.raises(InputError, match=r"was made with the plugin mine; read .*mine\.py"):
        recorded_study(Path("runs/study"))
    assert used() == ()
    # A manifest that is silent on it changes nothing.
    text = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(text | {"plugins": {}}))
    with pytest.raises(InputError, match="brings code along"):
        kvferry.check(folder)
    assert used() == ()
    try:
        assert kvferry.check(folder, run_plugins=True, jobs=1).same
    finally:
        drop(used()[0])


def test_what_differs_is_said(packed: Path) -> None:
    folder, _ = kvferry.unpack(packed, "out")
    points = pd.read_parquet(folder / "points.parquet")
    key = points.loc[0, "key"]
    points.loc[0, "ttft_s"] += 0.5
    (folder / "points.parquet").write_bytes(dataset._bytes_of(dataset._arrow(points.astype(object))))
    checked = kvferry.check(folder, jobs=1)
    assert not checked.same and len(checked.differences) == 1
    assert checked.differences[0].startswith(f"{key[:12]}: ttft_s: ")


def _archive(packed: Path, name: str, content: bytes = b"x", mode: int = stat.S_IFREG | 0o644) -> Path:
    """The archive with one more file, which its manifest names, too."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(packed) as before, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as after:
        for entry in before.infolist():
            after.writestr(entry, before.read(entry))
        more = zipfile.ZipInfo(name)
        more.external_attr, more.compress_type = mode << 16, zipfile.ZIP_DEFLATED
        after.writestr(more, content)
    file = packed.with_name("bad.zip")
    file.write_bytes(buffer.getvalue())
    return file


@pytest.mark.parametrize(
    "name",
    ["../out.yaml", "/tmp/out.yaml", "files/0123456789ab/../../../x", "files/0123456789ab/./x", "plots/..", "C:\\x",
     "plugins/0123456789ab/../x.py", "other.txt", "files/0123456789ab/a\\..\\b", "study.yaml/", "STUDY.yaml"],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(packed: Path, name: str) -> None:
    with pytest.raises(InputError, match="is no file of an artefact"):
        kvferry.unpack(_archive(packed, name), "out")
    assert not Path("out").exists()


def test_links_copies_and_too_much_are_refused(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = _archive(packed, "files/0123456789ab/x", b"/etc/passwd", stat.S_IFLNK | 0o777)
    with pytest.raises(InputError, match="is no file of an artefact"):
        kvferry.unpack(link, "out")
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = _archive(packed, "study.yaml")
    with pytest.raises(InputError, match="stands twice"):
        kvferry.unpack(twice, "out")
    with pytest.raises(InputError, match="is not what its manifest says"):
        kvferry.unpack(_archive(packed, "files/0123456789ab/x"), "out")
    monkeypatch.setattr(artefact, "MOST_ENTRY_BYTES", 10_000_000)
    with pytest.raises(InputError, match="holds more than 10.0 MB"):
        kvferry.unpack(_archive(packed, "files/0123456789ab/x", bytes(20_000_000)), "out")
    monkeypatch.setattr(artefact, "MOST_ENTRIES", 3)
    with pytest.raises(InputError, match="an artefact has at most 3"):
        kvferry.unpack(packed, "out")
    assert not Path("out").exists()


def test_what_is_no_archive(packed: Path) -> None:
    Path("text.zip").write_text("no")
    with pytest.raises(InputError, match="is no archive of kvferry pack"):
        kvferry.unpack("text.zip", "out")
    with zipfile.ZipFile("empty.zip", "w") as archive:
        archive.writestr("manifest.json", json.dumps([]))
    with pytest.raises(InputError, match=r"manifest\.json: "):
        kvferry.unpack("empty.zip", "out")
    Path("full").mkdir()
    Path("full/x").write_text("")
    with pytest.raises(InputError, match="is there already"):
        kvferry.unpack(packed, "full")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("provenance.json", {"intervals": "yes"}),
        ("provenance.json", {"settings": [1]}),
        ("provenance.json", {"devices": []}),
        ("provenance.json", {"files": {"a": {"sha256": "x"}}}),
        ("provenance.json", {"more": 1}),
        ("manifest.json", {"absent": {"a": 1}}),
        ("manifest.json", {"absent": {"a": {"sha256": "x"}}}),
        ("manifest.json", {"files": []}),
        ("manifest.json", {"study": 7}),
    ],
)
def test_damaged_records_are_named(packed: Path, name: str, change: dict[str, object]) -> None:
    folder, _ = kvferry.unpack(packed, "out")
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | change))
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        kvferry.check(folder, jobs=1)


def test_a_comparison_is_drawn_again_with_its_table(study: Path) -> None:
    compared = kvferry.compare("small.yaml", ["ferry", "kivi"])
    compared.write("both", plots=True)
    first = Path("both/plots/bars.png").read_bytes()
    drawn, _ = kvferry.plot("both", latex=True)
    assert Path("both/plots/bars.png").read_bytes() == first and len(drawn.files) == 3
    text = Path("both/plots/comparison.tex").read_text()
    assert "\nkivi & " in text and r"\%" in text
    compared.results["ferry"].write("one", plots=False)
    with pytest.raises(InputError, match=r"kvferry run one/scenario\.yaml has them again"):
        kvferry.plot("one")

"""A study that came in an archive reaches its own folder alone: it is refused before anything of it is run."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvferry
from kvferry.analysis.study_record import keys_in_order
from kvferry.api.sweep import point_of
from kvferry.specs.errors import InputError

STUDY = """\
base: {name: small, system: stream-only, device: tiny, model: tiny, link: {rate: 80 Mbit/s},
  workload: {kind: context-reuse, context: 1Ki}}
axes: {seed: [1]}
"""
LIVE = """\
base: {extends: kvswap/live, backend: sim, workload: {context: 1500, output: 4}}
axes: {seed: [1]}
"""
RUN = "kvferry.api.artefact.sweep"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(RUN, lambda *_, **__: pytest.fail("it was run"))
    return tmp_path


def unpacked(place: Path, study: str, **changes: Any) -> Path:
    """The folder of a study's archive, whose packer changed what keys of its study say."""
    (place / "study.yaml").write_text(study)
    kvferry.sweep("study.yaml", jobs=1, plots=False, output="swept")
    kvferry.pack("swept", "study.zip")
    folder, _ = kvferry.unpack("study.zip", "out")
    text = yaml.safe_load((folder / "study.yaml").read_text())
    for name, value in changes.items():
        text = {**text, name: {**text[name], **value} if isinstance(text.get(name), dict) else value}
    (folder / "study.yaml").write_text(yaml.safe_dump(text))
    return folder


def refused(folder: Path, said: str) -> None:
    key = keys_in_order(folder)[0]
    for reached in (lambda: kvferry.check(folder, jobs=1), lambda: point_of(folder, key)):
        with pytest.raises(InputError, match=f"{said}.*; a study of others reaches its own folder alone"):
            reached()


@pytest.mark.parametrize("key", ["record_selections", "record_keys", "kv_file", "kv_folder"])
def test_no_point_writes_to_a_place_of_its_choice(place: Path, key: str) -> None:
    """Also below its folder: what lies there is the archive's."""
    (place / ".bashrc").write_text("mine")
    folder = unpacked(place, LIVE)
    text = yaml.safe_load((folder / "study.yaml").read_text())
    text["axes"][f"live.{key}"] = ["x"]
    (folder / "study.yaml").write_text(yaml.safe_dump(text))
    with pytest.raises(InputError, match=rf"study\.yaml: live\.{key}: 'x' is a place that a run writes to"):
        kvferry.check(folder, jobs=1)
    text["axes"][f"live.{key}"] = [str(place / ".bashrc")]
    (folder / "study.yaml").write_text(yaml.safe_dump(text))
    refused(folder, rf"study\.yaml: axes\.live\.{key}: .* leads out of its folder")
    assert (place / ".bashrc").read_text() == "mine"


def test_no_point_asks_an_address(place: Path) -> None:
    folder = unpacked(place, STUDY, axes={"live.cloud": ["http://127.0.0.1:9/"]})
    with pytest.raises(InputError, match=r"live\.cloud: .* is an address that a run asks"):
        kvferry.check(folder, jobs=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base": {"link": {"trace": "/etc/passwd"}}}, r"base\.link\.trace: '/etc/passwd' leads out"),
        ({"base": {"link": {"trace": "files/../../x.csv"}}}, r"base\.link\.trace: .* leads out"),
        ({"base": {"model": "~/model.yaml"}}, r"base\.model: '~/model\.yaml' leads out"),
        ({"base": {"extends": "quickstart"}}, r"base\.extends: 'quickstart' is another file"),
        ({"axes": {"link.trace": ["C:\\x.csv"]}}, r"axes\.link\.trace: .* leads out"),
    ],
)
def test_no_file_from_elsewhere_is_read(place: Path, changes: dict[str, Any], said: str) -> None:
    refused(unpacked(place, STUDY, **changes), said)


def test_no_study_builds_on_another_file(place: Path) -> None:
    folder = unpacked(place, STUDY)
    (folder / "study.yaml").write_text("base: ../study.yaml\naxes: {seed: [1]}\n")
    refused(folder, "base: is no scenario that stands there by itself")


def test_no_setting_names_a_file(place: Path) -> None:
    folder = unpacked(place, STUDY)
    found = json.loads((folder / "provenance.json").read_text())
    (folder / "provenance.json").write_text(json.dumps(found | {"settings": ["policies.tuned=./mine.json"]}))
    refused(folder, r"settings: policies\.tuned names a file")


def test_a_link_in_the_folder_leads_nowhere(place: Path) -> None:
    (place / "mine.csv").write_text("time_s,bytes_per_s\n0,1e6\n1,1e6\n")
    folder = unpacked(place, STUDY, base={"link": {"trace": "./there.csv"}})
    (folder / "there.csv").symlink_to(place / "mine.csv")
    with pytest.raises(InputError, match=r"link\.trace: .* lies elsewhere"):
        kvferry.check(folder, jobs=1)

"""A run under another system says that the file's policies, which are its own system's, are left out."""

from pathlib import Path

import pytest
import yaml
from tiny import LOADING
from typer.testing import CliRunner

import kvferry
from kvferry.api.search import search_of
from kvferry.api.sweep import study_of
from kvferry.cli.main import app
from kvferry.specs.errors import InputError

TOLD = "tiny says codec for ferry alone; others run with their own policies"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--system", "stream-only"], True),
        (["--set", "system=stream-only"], True),
        (["--system", "ferry"], False),
        (["--set", "seed=3"], False),
    ],
)
def test_policies_that_are_left_out_are_told(tmp_path: Path, options: list[str], told: bool) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**LOADING, "policies": {"codec": "cachegen"}}))
    found = CliRunner().invoke(app, ["run", str(file), *options, "--json"])
    assert found.exit_code == 0, found.output
    assert (TOLD in found.stderr) is told


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**LOADING, "policies": {"codec": "cachegen"}}))
    return file


def test_python_tells_it_in_the_remarks(own: Path) -> None:
    assert TOLD in kvferry.run(own, system="stream-only").remarks
    assert TOLD not in kvferry.run(own).remarks
    assert TOLD not in kvferry.run(own, {"policies.codec": "kivi"}, system="stream-only").remarks
    assert TOLD in kvferry.compare(own, ["ferry", "stream-only"]).remarks


def test_policies_of_a_file_that_another_system_extends_are_told(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    told = "tiny says codec for ferry alone; what extends it is of stream-only, and leaves them out"
    Path("other.yaml").write_text("{extends: ./mine.yaml, system: stream-only, name: other}")
    Path("third.yaml").write_text("{extends: ./other.yaml, name: third}")
    for file in ("other.yaml", "third.yaml"):
        assert told in kvferry.run(file).remarks
        assert told in kvferry.compare(file, ["stream-only", "local-prefill"]).remarks
        Path("study.yaml").write_text(yaml.safe_dump({"base": f"./{file}", "axes": {"seed": [1]}}))
        assert told in kvferry.sweep("study.yaml", output="out", jobs=1).remarks
    assert told not in kvferry.run("other.yaml", {"policies.codec": "kivi"}).remarks
    Path("same.yaml").write_text("{extends: ./mine.yaml, system: ferry, name: same}")
    assert not any("codec" in line for line in kvferry.run("same.yaml").remarks)


@pytest.mark.parametrize(
    ("axes", "options", "told"),
    [
        ({"system": ["ferry", "stream-only"]}, [], True),
        ({"seed": [1]}, [], False),
        ({"seed": [1]}, ["--set", "system=stream-only"], True),
        ({"system": ["ferry", "stream-only"], "policies.codec": ["kivi"]}, [], False),
        ({"system": ["ferry", "stream-only"]}, ["--set", "policies.codec=kivi"], False),
    ],
)
def test_sweeps_and_searches_tell_it(
    own: Path, axes: dict[str, list[object]], options: list[str], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own.parent)
    Path("study.yaml").write_text(yaml.safe_dump({"base": "./mine.yaml", "axes": axes}))
    found = CliRunner().invoke(app, ["sweep", "study.yaml", *options, "--json", "--jobs", "1", "-o", "out"])
    assert found.exit_code == 0, found.output
    assert (TOLD in found.stderr) is told
    assert (TOLD in kvferry.sweep("study.yaml", options[1:], output="out", jobs=1).remarks) is told
    described = {"base": "./mine.yaml", "space": axes, "objectives": ["ttft_s"], "points": 2, "sampler": "random"}
    Path("search.yaml").write_text(yaml.safe_dump(described))
    pytest.importorskip("optuna")
    assert (TOLD in search_of("search.yaml", options[1:]).remarks) is told


@pytest.mark.parametrize("command", ["run", "compare"])
def test_settings_of_a_system_that_does_not_run_are_refused(own: Path, command: str) -> None:
    setting = "system_policies.sparkv.adapt=false"
    options = ["--systems", "ferry,stream-only"] if command == "compare" else []
    found = CliRunner().invoke(app, [command, str(own), *options, "--set", setting, "--json"])
    assert isinstance(found.exception, InputError)
    assert "system_policies.sparkv.adapt: has no effect on ferry" in str(found.exception)
    assert "set policies.adapt" in str(found.exception)
    found = CliRunner().invoke(app, [command, str(own), "--systems", "sparkv", "--set", setting, "--json"])
    assert found.exit_code == 0, found.output


def test_so_are_those_of_studies(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    Path("study.yaml").write_text(yaml.safe_dump({"base": "./mine.yaml", "axes": {"system": ["ferry", "sparkv"]}}))
    assert study_of("study.yaml", ["system_policies.sparkv.adapt=false"]).points
    with pytest.raises(InputError, match="system_policies.cachegen.objective: has no effect on ferry, sparkv"):
        study_of("study.yaml", ["system_policies.cachegen.objective=1 s"])

"""What a release carries: one version everywhere, every package and data file, targets that exist."""

import re
import tomllib
from pathlib import Path

import yaml

from kvferry.specs.version import VERSION

ROOT = Path(__file__).parents[2]


def test_one_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]


def test_the_changelog_begins_with_this_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = yaml.safe_load((ROOT / "CITATION.cff").read_text())["date-released"]
    assert f"{VERSION} ({released})" in headings[:2]
    assert len(headings) == 1 or headings[0] in ("Unreleased", f"{VERSION} ({released})")


def test_the_workflow_calls_targets_that_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    runs = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert len(runs) >= 4
    for run in runs:
        found = re.findall(r"'([\w-]+)'", run)[1:] or run.split()[1:]
        assert run.startswith("make ")
        assert set(found) <= targets

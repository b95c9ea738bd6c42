"""The version of the code: every file that a run's figures can depend on counts."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvferry.analysis import code_version

# Prints the files of KVFerry's modules that carrying out a run and making a row of it brings along.
_IMPORTED = """
import sys

import kvferry.pipelines.run
import kvferry.analysis.metrics
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

for settings in ([], ["system=local-prefill"]):
    run_scenario(load_scenario("quickstart", ["workload.context=1Ki", *settings]))
names = [name for name in sys.modules if name.startswith("kvferry.")]
print("\\n".join(sys.modules[name].__file__ for name in names if sys.modules[name].__file__))
"""


def test_every_module_that_a_run_brings_along_counts() -> None:
    ran = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    # What metrics are called, what a run ran on and what a reader should know are words, and no figures.
    words = {"__init__.py", "figures.py", "remarks.py", "ran_on.py"}
    imported = {Path(line) for line in ran.stdout.splitlines()}
    counted = set(code_version._sources())
    missing = {path for path in imported - counted if not (path.parent.name == "analysis" and path.name in words)}
    assert missing == set()


@pytest.mark.parametrize(
    "name", ["codecs/sizes.py", "codecs/distortion.csv", "layouts/__init__.py", "disk/__init__.py", "cloud/__init__.py"]
)
def test_a_change_of_a_file_is_another_version(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_version.code_version()
    changed = code_version._HOUSE / name
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + (b"#" if self == changed else b""))
    code_version._of_the_house.cache_clear()
    after = code_version.code_version()
    monkeypatch.undo()
    code_version._of_the_house.cache_clear()
    assert after != before == code_version.code_version()

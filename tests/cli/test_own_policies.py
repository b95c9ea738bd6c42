"""A run under another system says that the file's policies, which are its own system's, are left out."""

from pathlib import Path

import pytest
import yaml
from tiny import LOADING
from typer.testing import CliRunner

from kvferry.cli.main import app

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

"""The notebook of the documentation: what it shows is what its cells come to; and the code of the page beside it."""

import copy
import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebook.ipynb"


@pytest.mark.long
def test_every_cell_shows_what_is_stored(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    fresh = copy.deepcopy(stored)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(fresh, timeout=300, kernel_name="python3", resources=resources).execute()
    shown = 0
    for was, now in zip(stored.cells, fresh.cells, strict=True):
        assert [one.output_type for one in was.get("outputs", [])] == [
            one.output_type for one in now.get("outputs", [])
        ]
        for old, new in zip(was.get("outputs", []), now.get("outputs", []), strict=True):
            assert old.get("text") == new.get("text")
            of_old, of_new = old.get("data", {}), new.get("data", {})
            assert of_old.keys() == of_new.keys()
            # A picture's bytes depend on the version of matplotlib.
            kinds = [kind for kind in of_old if kind.startswith("text/")]
            assert {kind: of_old[kind] for kind in kinds} == {kind: of_new[kind] for kind in kinds}
            shown += 1
    assert shown >= 8
    assert any("image/png" in one.get("data", {}) for cell in stored.cells for one in cell.get("outputs", []))


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    Path("shown.py").write_text(code)
    found = runpy.run_path("shown.py")
    assert found["result"].outcome == "done"
    assert Path("pictures/gantt.png").exists() and Path("runs/mine/metrics.json").exists()

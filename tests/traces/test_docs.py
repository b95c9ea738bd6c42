"""The page of bundled traces has what each of them was fitted to."""

import runpy
from pathlib import Path

import pytest

from kvferry.traces.resolve import bundled

HERE = Path(__file__).parents[2]


def test_the_page_has_each_models_figures() -> None:
    pytest.importorskip("mkdocs")
    page = runpy.run_path(str(HERE / "docs_site.py"))["traces_page"]()
    # SparKV III: 850 Mbit/s in the mean, a deviation of 264; the median is not published.
    assert "| `wifi-850` | 850 / 850 | 264 / 264 | - / 868 | - / 415 | - / 1259 |" in page
    assert "| `lte-driving` | 23 / 22.8 | 0.86 / 0.83 | 0.86 / 0.83 | 0.73 / 0.69 | 0.42 / 0.42 |" in page


@pytest.mark.parametrize("name", bundled())
def test_the_page_on_traces_names_each(name: str) -> None:
    assert f"`{name}`" in (HERE / "docs/traces.md").read_text()

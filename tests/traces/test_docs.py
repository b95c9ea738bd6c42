"""The tables of docs/traces.md say what the bundled models say."""

from pathlib import Path

import pytest

from kvferry.traces.generate import BandwidthModel
from kvferry.traces.resolve import bundled, bundled_model

PAGE = Path(__file__).parents[2] / "docs" / "traces.md"
MOMENTS = ("mean", "std", "median", "p5", "p95")
MEMORY = [f"autocorrelation_1s_lag_{lag}" for lag in (1, 2, 5, 10)]
FADES = ("fade_share", "fades_per_minute", "longest_fade_s")


def _number(value):
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def rows(model):
    """The model's row in the table of moments and in the one of memory and fades."""
    tables = ([f"{key}_mbit_per_s" for key in MOMENTS], ["std_1s_mbit_per_s", *MEMORY, *FADES])
    return [
        f"| `{model.name}` | " + " | ".join(" / ".join(map(_number, model.figures[key])) for key in keys) + " |"
        for keys in tables
    ]


@pytest.mark.parametrize("name", bundled())
def test_the_page_has_each_models_figures(name):
    model = bundled_model(name)
    page = PAGE.read_text()
    assert f"`{name}`" in page
    if isinstance(model, BandwidthModel):
        for row in rows(model):
            assert row in page, f"docs/traces.md should have: {row}"

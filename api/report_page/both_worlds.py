"""Both worlds beside each other: tables of figures and quality, as ``kvferry fidelity`` prints them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvferry.analysis.fidelity_quality import notes_on, quality_rows
from kvferry.analysis.figure_beside import percent, shown_beside
from kvferry.analysis.figures import FIGURES

if TYPE_CHECKING:
    import pandas as pd


def beside_each_other(found: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Returns tables by name: of figures, and of quality where it was measured."""
    import pandas as pd

    figures = [
        {"scenario": row["name"], "figure": FIGURES[key].label if key in FIGURES else key} | _cells(key, one)
        for row in found["rows"]
        for key, one in row["metrics"].items()
    ]
    quality = [
        {"scenario": name, "quality": FIGURES[key].label if key in FIGURES else key} | _cells(key, one)
        for name, key, one in quality_rows(found["rows"])
    ]
    tables = {"Figures": figures, "Quality": quality}
    return {name: pd.DataFrame(rows) for name, rows in tables.items() if rows}


def said_of(found: Mapping[str, Any]) -> list[str]:
    """Returns lines on the error, on what of the quality is not alike, and what its runs remarked."""
    summary = found["summary"]
    lines = []
    if "error_median" in summary and "headline" in summary:
        of = FIGURES[summary["headline"]].label if summary["headline"] in FIGURES else summary["headline"]
        lines.append(
            f"{of}: median error {percent(summary['error_median'])}, largest {percent(summary['error_largest'])};"
            f" {summary['beyond']} beyond 15 % and twice their spread."
        )
    return [*lines, *notes_on(found["rows"]), *map(str, found["remarks"])]


def _cells(key: str, one: Mapping[str, Any]) -> dict[str, str]:
    shown = {name: text or "" for name, text in shown_beside(key, one).items()}
    return {"modelled": shown.pop("simulated"), **shown}

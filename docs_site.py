"""A hook of MkDocs: adds to the documentation the pages that are made from the code, and the notebook as a page."""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from kvferry.analysis.figures import FIGURES, label_of
from kvferry.scenarios.schema_page import schema_page
from kvferry.traces.generate import BandwidthModel
from kvferry.traces.resolve import bundled, bundled_model
from kvferry.traces.statistics import LAGS_S, TRANSFERS_S

DATA = Path(__file__).parent / "docs" / "validation" / "data"
NOTEBOOK = Path(__file__).parent / "docs" / "notebook.ipynb"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "reference.md", content=schema_page()))
    files.append(File.generated(config, "figures.md", content=figures_page()))
    files.append(File.generated(config, "notebook.md", content=notebook_page(json.loads(NOTEBOOK.read_text()))))
    files.append(File.generated(config, "bundled-traces.md", content=traces_page()))
    files.append(File.generated(config, "validation/tables.md", content=tables_page(sorted(DATA.glob("*.csv")))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """In the repository pages link to the notebook itself, and on the site to the page made of it."""
    if page.file.src_uri == "notebook.md":
        return markdown
    return markdown.replace("[notebook.ipynb](notebook.ipynb)", "[The notebook](notebook.md)")


def figures_page() -> str:
    """Markdown: every figure with its key and its meaning."""
    sides = {"low": ". Lower is better", "high": ". Higher is better", None: ""}
    rows = [
        f"| {label} | `{key}` | {one.about}{sides[one.better]} |"
        for key, one in FIGURES.items()
        for label in dict.fromkeys([one.label, label_of(key, of_devices=True)])
    ]
    head = "# Every figure\n\nMade from what `kvferry run --help` prints; [how to read them](metrics.md).\n"
    return "\n".join([head, "| label | key | meaning |", "|---|---|---|", *rows, ""])


def traces_page() -> str:
    """Markdown: what each bundled model of a link was fitted to, and what it generates."""
    models = [model for model in map(bundled_model, bundled()) if isinstance(model, BandwidthModel)]
    parts = [
        "# Every bundled trace",
        "Wanted / generated with the bundled seed; -: not published. 2 s of data: what the mean rate moves in 2 s.",
    ]
    for heads, keys in _TRACE_FIGURES:
        rows = [[f"`{m.name}`", *(" / ".join(map(_shown_number, m.figures[key])) for key in keys)] for m in models]
        lines = [["trace", *heads], ["---"] * (len(heads) + 1), *rows]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in lines))
    return "\n\n".join([*parts, ""])


_FADES = ("share in fades", "fades per minute", "longest fade, s")
_TRACE_FIGURES = (
    (
        ("mean, Mbit/s", "std", "median", "5 %", "95 %"),
        [f"{key}_mbit_per_s" for key in ("mean", "std", "median", "p5", "p95")],
    ),
    (
        ("std of 1 s means", "lag of a step", *(f"lag {n} s" for n in LAGS_S), *_FADES),
        [
            "std_1s_mbit_per_s",
            "autocorrelation_step",
            *(f"autocorrelation_1s_lag_{n}" for n in LAGS_S),
            "fade_share",
            "fades_per_minute",
            "longest_fade_s",
        ],
    ),
    (
        [f"{n} s of data: {key}, s" for n in TRANSFERS_S for key in ("median", "95 %")],
        [f"transfer_{n}s_{key}_s" for n in TRANSFERS_S for key in ("median", "p95")],
    ),
)


def _shown_number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 1 else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def tables_page(tables: Sequence[Path]) -> str:
    """Markdown: the files of figures that pages of validation link to, as tables."""
    parts = ["# Every claim, cell and table of figures", "The files lie in docs/validation/data."]
    for table in tables:
        with table.open(encoding="utf-8", newline="") as file:
            head, *rows = csv.reader(file)
        lines = [head, ["---"] * len(head), *rows]
        parts += [
            f"## {table.stem}",
            "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in lines),
        ]
    return "\n\n".join([*parts, ""])


def notebook_page(notebook: dict[str, Any]) -> str:
    """Markdown of an executed notebook (nbformat 4): text, code, and what each cell showed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [shown for output in cell.get("outputs", []) for shown in _shown(output)]
    return "\n\n".join([*parts, "[This page as a notebook](notebook.ipynb)", ""])


def _shown(output: dict[str, Any]) -> Iterator[str]:
    """What is richest of an output: a picture, a table, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        yield f'<img alt="what the cell above shows" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    elif "text/html" in data:
        lines = "".join(data["text/html"]).splitlines()
        # An empty line would end the HTML for Markdown.
        yield '<div class="shown">\n' + "\n".join(line.rstrip() for line in lines if line.strip()) + "\n</div>"
    else:
        text = "".join(data.get("text/plain", output.get("text", ""))).rstrip()
        yield f'```text title="shown"\n{text}\n```'

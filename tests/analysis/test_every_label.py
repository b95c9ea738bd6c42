"""Every label that a table prints stands on a page that explains it."""

import json
import re
import runpy
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tiny import TINY

import kvferry
from kvferry.analysis.figures import FIGURES
from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.settings import settings_of
from kvferry.analysis.tables import compare_table, is_energy_part, run_table
from kvferry.cli.schedule import _COLUMNS
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

ROOT = Path(__file__).parents[2]
# Another system of each kind, for a comparison.
OTHER = {"context-reuse": "local-prefill", "decode": "vllm", "assist": "cloud-only", "session": "streamed"}


@cache
def ran(kind: str, system: str | None = None) -> tuple[Scenario, Run]:
    own = TINY[kind] if system in (None, TINY[kind]["system"]) else {**TINY[kind], "system": system, "policies": {}}
    scenario = load_scenario(own)
    return scenario, run_scenario(scenario)


@cache
def pages() -> tuple[set[str], str]:
    """The labels of the page of figures, and the page on metrics."""
    made = runpy.run_path(str(ROOT / "docs_site.py"))["figures_page"]()
    labels = {line.split(" | ")[0].removeprefix("| ") for line in made.splitlines() if line.startswith("| ")}
    return labels, (ROOT / "docs" / "metrics.md").read_text()


def explained(label: str) -> bool:
    labels, page = pages()
    return (
        label in labels or re.search(rf"(?<![\w ]){re.escape(label)}(?![\w ])|`{re.escape(label)}`", page) is not None
    )


@pytest.mark.parametrize("kind", TINY)
def test_every_label_is_explained(kind: str) -> None:
    scenario, run = ran(kind)
    found = metrics_for(scenario, run)
    assert run.outcome == "done"
    assert all(key in FIGURES or is_energy_part(key) for key in found)
    shown = run_table(found, ranges={}, memory=run.memory_at_peak)
    labels = list(shown.columns[0].cells)
    parts = {f"  {key.removeprefix('energy_').removesuffix('_j')}" for key in found if is_energy_part(key)}
    memory = {f"  {name}" for name in (*run.memory_at_peak, "others")} | set(run.memory_at_peak)
    assert [str(one) for one in labels if one not in parts | memory and not explained(str(one))] == []


@pytest.mark.parametrize("kind", TINY)
def test_every_heading_of_a_comparison_is_explained(kind: str) -> None:
    two = {system: metrics_for(*ran(kind, system)) for system in (TINY[kind]["system"], OTHER[kind])}
    ranked_by = "throughput_tokens_per_s" if kind == "decode" else "ttft_s"
    outcomes = dict.fromkeys(two, "done") | {OTHER[kind]: "out_of_memory"}
    table = compare_table(two, ranked_by=ranked_by, outcomes=outcomes, width=1000)
    headings = [str(one.header) for one in table.columns][1:]
    assert len(headings) > 5 and [one for one in headings if not explained(one)] == []


@pytest.mark.parametrize("kind", TINY)
def test_every_column_of_a_sweep_is_a_setting_a_figure_or_explained(kind: str, tmp_path: Path) -> None:
    two = [TINY[kind]["system"], OTHER[kind]]
    base = {**TINY[kind], "policies": {}}
    study = tmp_path / "tiny.yaml"
    study.write_text(json.dumps({"name": "tiny", "base": base, "axes": {"system": two}}))
    kvferry.sweep(str(study), output=tmp_path, plots=False)
    columns = {name for part in tmp_path.glob("*.parquet") for name in pq.read_schema(part).names}
    settings = {name for system in two for name in settings_of(ran(kind, system)[0])}
    page = (ROOT / "docs" / "sweeps.md").read_text()
    others = columns - settings - set(FIGURES)
    assert "key" in others
    assert [one for one in others if not is_energy_part(one) and f"`{one}`" not in page] == []


@pytest.mark.parametrize("kind", TINY)
def test_every_part_of_the_memory_is_explained(kind: str) -> None:
    _, page = pages()
    names = set(ran(kind)[1].memory_at_peak)
    rows = {
        name for row in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    }
    assert names and {name for name in names if name not in rows and not name.startswith("kv")} == set()


def test_every_heading_of_schedules_is_explained() -> None:
    _, page = pages()
    rows = "\n".join(re.findall(r"^\| .*$", page.split("## kvferry schedule")[1].split("\n## ")[0], re.MULTILINE))
    assert [one for one in (*_COLUMNS, *_COLUMNS.values()) if one != "schedule" and one not in rows] == []

"""The first table of a report: every result with its headline figures, one row for each system of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvferry.analysis.figures import label_of
from kvferry.analysis.quality import MARK, footnotes, lower_quality
from kvferry.analysis.study_plots import marked
from kvferry.analysis.variants import VARIANT
from kvferry.api.report_page.results import BothWorlds, Comparison, Points, Result, RunResult
from kvferry.specs import human

if TYPE_CHECKING:
    import pandas as pd

# Figures that results are known by; the ones that any of them has, and that say something.
HEADLINES = (
    *("ttft_s", "tpot_s", "throughput_tokens_per_s", "decode_tokens_per_s"),
    # Of devices with a cloud the whole stands before the part.
    *("total_energy_j", "energy_j", "memory_peak_bytes", "regret"),
)
# Of what quality these are: of what was loaded, and of decoding beside full attention.
_QUALITY = (
    *("kv_relative_error", "kv_kl_nats", "attended_share", "attention_mass"),
    *("agreement_share", "kl_nats", "perplexity_over_full", "recall_share", "right_share"),
)
# Rows of one sweep; more systems and variants are in its own table.
_MOST_GROUPS = 12


@dataclass(frozen=True)
class Row:
    """Of a result, the number of its part of the page and its cells."""

    part: int
    cells: Sequence[str]


@dataclass(frozen=True)
class Overview:
    heads: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str]


@dataclass(frozen=True)
class _Line:
    part: int
    name: str
    system: str
    outcome: str
    metrics: Mapping[str, float]


def overview_of(results: Sequence[Result], names: Sequence[str]) -> Overview | None:
    """One table over all results, `names` are theirs; None where none of them has figures of runs."""
    lines = [
        line
        for n, (result, name) in enumerate(zip(results, names, strict=True), start=1)
        for line in _lines(n, name, result)
    ]
    if not lines:
        return None
    shown = [key for key in (*HEADLINES, *_QUALITY) if any(key in line.metrics for line in lines)]
    # Of answers of one token, a rate is the time to it once more.
    shown = shown if "tpot_s" in shown else [key for key in shown if not key.endswith("tokens_per_s")]
    heads = ["result", "system", "outcome", *(label_of(key, "total_energy_j" in shown) for key in shown)]
    rows = [
        Row(
            line.part,
            [line.name, line.system, line.outcome]
            + [human.of_unit(key)(line.metrics[key]) if key in line.metrics else "" for key in shown],
        )
        for line in lines
    ]
    notes = [*_marks(results), *_not_measured(results)]
    return Overview(heads, rows, list(dict.fromkeys(notes)))


def _lines(part: int, name: str, result: Result) -> Iterator[_Line]:
    if isinstance(result, RunResult):
        yield from _of_runs(part, name, [result], {})
    elif isinstance(result, Comparison):
        yield from _of_runs(part, name, result.runs, result.failed)
    elif isinstance(result, Points):
        yield from _of_points(part, name, result.table)
    elif isinstance(result, BothWorlds):
        yield from _of_both_worlds(part, name, result.found)


def _of_runs(part: int, name: str, runs: Sequence[RunResult], failed: Mapping[str, str]) -> Iterator[_Line]:
    lesser = lower_quality({run.system: run.found["metrics"] for run in runs if run.found["outcome"] == "done"})
    for run in runs:
        outcome = run.found["outcome"].replace("_", " ")
        shown = f"{run.system} {MARK} ({lesser[run.system]})" if run.system in lesser else run.system
        # Figures of an unfinished run would look too good beside others.
        yield _Line(part, name, shown, outcome, run.found["metrics"] if outcome == "done" else {})
    yield from (_Line(part, name, system, "failed", {}) for system in failed)


def _of_points(part: int, name: str, table: pd.DataFrame) -> Iterator[_Line]:
    """Medians over the points that are done, by variant or system."""
    table, _ = marked(table)
    which = next((column for column in (VARIANT, "system") if column in table.columns), None)
    groups: Any = [("", table)] if which is None else list(table.groupby(which, sort=False))
    for label, rows in groups[:_MOST_GROUPS]:
        done = rows[rows["outcome"] == "done"]
        figures = [key for key in (*HEADLINES, *_QUALITY) if key in done.columns]
        medians = {key: float(value) for key, value in done[figures].median().items() if value == value}
        outcome = f"medians of {len(done):,} points"
        outcome += f", {len(rows) - len(done):,} not done" if len(done) < len(rows) else ""
        yield _Line(part, name, str(label), outcome, medians)


def _of_both_worlds(part: int, name: str, found: Mapping[str, Any]) -> Iterator[_Line]:
    """What was measured of each scenario: medians of its runs."""
    outcome = f"measured, {found['runs']:,} runs" if found["runs"] > 1 else "measured, 1 run"
    for row in found["rows"][:_MOST_GROUPS]:
        figures = {key: one["measured"] for key, one in {**row["metrics"], **row["quality"]}.items()}
        yield _Line(part, name, str(row.get("system", row["name"])), outcome, figures)


def _marks(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if isinstance(result, Points):
            _, meaning = marked(result.table)
            yield from [meaning] if meaning else []
        elif isinstance(result, RunResult | Comparison):
            runs = [result] if isinstance(result, RunResult) else result.runs
            yield from footnotes({run.system: run.found["metrics"] for run in runs if run.found["outcome"] == "done"})


def _not_measured(results: Sequence[Result]) -> Iterator[str]:
    names = sorted({name for result in results for name in not_measured(result)})
    if names:
        yield f"not measured: {', '.join(names)}; their figures are from data sheets and papers"


def not_measured(result: Result) -> list[str]:
    """Returns the devices of a result whose profile was not measured."""
    if isinstance(result, Points):
        return list(result.not_measured)
    if isinstance(result, BothWorlds):
        device = result.found["provenance"].get("device", {})
        return [] if device.get("measured", True) else [str(device.get("name", ""))]
    runs = [result] if isinstance(result, RunResult) else result.runs if isinstance(result, Comparison) else ()
    devices = [run.found["provenance"].get("device", {}) for run in runs]
    return sorted({str(one["name"]) for one in devices if "name" in one and not one.get("measured", True)})

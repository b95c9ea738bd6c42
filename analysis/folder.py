"""The folder of a run: its scenario, its results, and pictures of them."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvferry.analysis.envelope import Envelope, to_json
from kvferry.analysis.timeline import chrome_trace
from kvferry.backends.world import Inputs
from kvferry.machine.span import Span
from kvferry.pipelines.record import Run
from kvferry.pipelines.workload import Progress
from kvferry.system.whole_file import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Draw = Callable[[], Figure]


def write_run(folder: Path, scenario_yaml: str, run: Run, envelope: Envelope, *, plots: bool = True) -> list[Path]:
    """Write scenario.yaml, metrics.json, spans.parquet, trace.json and with `plots` also plots/; returns the files.

    If a real model answered, answers.json has its token ids by sequence.

    Equal runs give equal bytes. Files of the same names are replaced, others are left alone; each appears under
    its name only when complete. Raises KvferryError, naming the file, when it cannot be written.
    """
    title = _title(envelope)
    written = [
        write_file(folder / "scenario.yaml", scenario_yaml.encode()),
        write_file(folder / "metrics.json", to_json(envelope).encode()),
        write_file(folder / "spans.parquet", spans_parquet(run.spans)),
        write_file(folder / "trace.json", chrome_trace(run, title=title).encode()),
    ]
    if "answers" in run.measured:
        written.append(write_file(folder / "answers.json", to_json(run.measured["answers"]).encode()))
    if plots:
        written += write_drawn(run_pictures(folder, run, envelope))
    return written


def run_pictures(folder: Path, run: Run, envelope: Envelope) -> dict[Path, Draw]:
    """How each picture of a run is drawn, by its path without an ending."""
    from kvferry.analysis.gantt import gantt

    # What a picture does not show need not go to another process.
    shown = replace(run, inputs=Inputs(), measured={}, counted=None)
    return {folder / "plots" / "gantt": partial(gantt, shown, title=_title(envelope))} if run.spans else {}


def write_comparison(
    folder: Path,
    scenario_yaml: Mapping[str, str],
    runs: Mapping[str, Run],
    envelopes: Mapping[str, Envelope],
    ranked_by: str = "ttft_s",
    *,
    plots: bool = True,
    progress: Progress = lambda done, of: None,
) -> list[Path]:
    """Write a run's folder per system (all three mappings by system), comparison.json, and plots/ of all together, the
    best by `ranked_by` first. Calls `progress` with how many pictures are drawn."""
    from kvferry.analysis.compare import compare_bars, compare_gantt

    written = []
    draws: dict[Path, Draw] = {}
    for system, run in runs.items():
        own = folder / folder_name(system)
        written += write_run(own, scenario_yaml[system], run, envelopes[system], plots=False)
        draws |= run_pictures(own, run, envelopes[system])
    written.append(write_file(folder / "comparison.json", to_json({"systems": dict(envelopes)}).encode()))
    title = next((f"{envelope['scenario']}{_unmeasured(envelope)}" for envelope in envelopes.values()), "")
    metrics = {system: envelope["metrics"] for system, envelope in envelopes.items()}
    if any(run.spans for run in runs.values()):
        shown = {name: replace(run, inputs=Inputs(), measured={}, counted=None) for name, run in runs.items()}
        draws[folder / "plots" / "paths"] = partial(compare_gantt, shown, title=title)
    if any(ranked_by in figures for figures in metrics.values()):
        draws[folder / "plots" / "bars"] = partial(compare_bars, metrics, title=title, ranked_by=ranked_by)
    return written + (write_drawn(draws, progress) if plots else [])


def write_drawn(draws: Mapping[Path, Draw], progress: Progress = lambda done, of: None) -> list[Path]:
    """Draw pictures, on several cores where there are many, and write them."""
    from joblib import Parallel, cpu_count, delayed

    from kvferry.analysis.style import render

    written = []
    # Starting a process takes as long as drawing two or three.
    workers = max(1, min(cpu_count(), len(draws) // 3))
    pictures = Parallel(n_jobs=workers, return_as="generator")(delayed(render)(draw) for draw in draws.values())
    for n, (stem, drawn) in enumerate(zip(draws, pictures, strict=True)):
        written += write_pictures(stem, drawn)
        progress(n + 1, len(draws))
    return written


def _title(envelope: Envelope) -> str:
    return f"{envelope['scenario']}: {envelope['system']}{_unmeasured(envelope)}"


def _unmeasured(envelope: Envelope) -> str:
    """For a title: that the profile behind a picture was not measured."""
    device = envelope["provenance"].get("device", {"measured": True})
    return "" if device["measured"] else f" ({device['name']}: not measured)"


def write_pictures(stem: Path, pictures: Mapping[str, bytes]) -> list[Path]:
    """Write one file per format ("png", "svg"), named by the stem."""
    return [write_file(stem.with_name(f"{stem.name}.{format}"), content) for format, content in pictures.items()]


def folder_name(system: str) -> str:
    """A system's name as one folder: anything but letters, digits, dot, dash and underscore becomes a dash."""
    return re.sub(r"[^\w.-]+", "-", system, flags=re.ASCII).lstrip(".") or "system"


def spans_parquet(spans: tuple[Span, ...]) -> bytes:
    """The spans as a Parquet table: resource, label, start_s, end_s, n_bytes, request (null: none)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "resource": pa.array([span.resource for span in spans], pa.string()),
        "label": pa.array([span.label for span in spans], pa.string()),
        "start_s": pa.array([span.start_s for span in spans], pa.float64()),
        "end_s": pa.array([span.end_s for span in spans], pa.float64()),
        "n_bytes": pa.array([span.n_bytes for span in spans], pa.float64()),
        "request": pa.array([span.request for span in spans], pa.int64()),
    }
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    return buffer.getvalue()

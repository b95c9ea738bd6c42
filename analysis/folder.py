"""The folder of a run: its scenario, its results, and pictures of them."""

import io
import re
from collections.abc import Mapping
from pathlib import Path

from kvferry.analysis.envelope import Envelope, to_json
from kvferry.analysis.timeline import chrome_trace
from kvferry.machine.span import Span
from kvferry.pipelines.record import Run
from kvferry.system.whole_file import write_file


def write_run(folder: Path, scenario_yaml: str, run: Run, envelope: Envelope) -> list[Path]:
    """Write scenario.yaml, metrics.json, spans.parquet, trace.json and plots/; returns the files written.

    If a real model answered, answers.json has its token ids by sequence.

    Equal runs give equal bytes. Files of the same names are replaced, others are left alone; each appears under
    its name only when complete. Raises KvferryError, naming the file, when it cannot be written.
    """
    from kvferry.analysis.gantt import gantt
    from kvferry.analysis.style import render

    title = f"{envelope['scenario']}: {envelope['system']}{_unmeasured(envelope)}"
    written = [
        write_file(folder / "scenario.yaml", scenario_yaml.encode()),
        write_file(folder / "metrics.json", to_json(envelope).encode()),
        write_file(folder / "spans.parquet", spans_parquet(run.spans)),
        write_file(folder / "trace.json", chrome_trace(run, title=title).encode()),
    ]
    if "answers" in run.measured:
        written.append(write_file(folder / "answers.json", to_json(run.measured["answers"]).encode()))
    if run.spans:
        written += write_pictures(folder / "plots" / "gantt", render(lambda: gantt(run, title=title)))
    return written


def write_comparison(
    folder: Path,
    scenario_yaml: Mapping[str, str],
    runs: Mapping[str, Run],
    envelopes: Mapping[str, Envelope],
    ranked_by: str = "ttft_s",
) -> list[Path]:
    """Write a run's folder per system (all three mappings by system), comparison.json, and plots/ of all together, the
    best by `ranked_by` first."""
    from kvferry.analysis.compare import compare_bars, compare_gantt
    from kvferry.analysis.style import render

    written = []
    for system, run in runs.items():
        written += write_run(folder / folder_name(system), scenario_yaml[system], run, envelopes[system])
    written.append(write_file(folder / "comparison.json", to_json({"systems": dict(envelopes)}).encode()))
    title = next((f"{envelope['scenario']}{_unmeasured(envelope)}" for envelope in envelopes.values()), "")
    metrics = {system: envelope["metrics"] for system, envelope in envelopes.items()}
    if any(run.spans for run in runs.values()):
        written += write_pictures(folder / "plots" / "paths", render(lambda: compare_gantt(runs, title=title)))
    if any(ranked_by in figures for figures in metrics.values()):
        bars = render(lambda: compare_bars(metrics, title=title, ranked_by=ranked_by))
        written += write_pictures(folder / "plots" / "bars", bars)
    return written


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

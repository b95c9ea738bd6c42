"""The folder of a run: its scenario, its results, and pictures of them."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvferry.analysis.arrow_columns import real, text, whole
from kvferry.analysis.envelope import Envelope, to_json
from kvferry.analysis.metrics import token_times_s
from kvferry.analysis.quality import MARK, lower_quality
from kvferry.analysis.sessions import turns_columns
from kvferry.analysis.steps import steps_of
from kvferry.analysis.tables import INTERVAL
from kvferry.analysis.timeline import chrome_trace
from kvferry.analysis.variants import VARIANT
from kvferry.backends.world import Inputs
from kvferry.pipelines.plugins import used
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.pipelines.workload import Progress
from kvferry.system.whole_file import write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Draw = Callable[[], Figure]


# What a request is about, as its record has it.
_ASKED = ("context_tokens", "question_tokens", "source", "conversation", "turn")
_PATHS = {True: "streamed", False: "computed"}


def write_run(
    folder: Path, scenario_yaml: str, run: Run, envelope: Envelope, *, plots: bool = True, tokens: bool = False
) -> list[Path]:
    """Write scenario.yaml, spans.parquet, requests.parquet, trace.json, metrics.json and, with `plots`, plots/; returns
    the files. Of a loaded context, units.parquet says which unit came by which path; of conversations, turns.parquet
    has a row per turn; of plugins in use, plugins/ has the text; with
    `tokens`, tokens.parquet has a row per token.

    If a real model answered, answers.json has its token ids by sequence.

    Equal runs give equal bytes. Files of the same names are replaced, others are left alone; each appears under
    its name only when complete. Raises KvferryError, naming the file, when it cannot be written.
    """
    title = _title(envelope)
    written = [
        write_file(folder / "scenario.yaml", scenario_yaml.encode()),
        write_file(folder / "spans.parquet", parquet_bytes(spans_columns(run))),
        write_file(
            folder / "requests.parquet", parquet_bytes(requests_columns(run, bounded="bound_s" in envelope["metrics"]))
        ),
        *_units_file(folder, run),
        *_turns_file(folder, run),
        *write_plugins(folder),
        *([write_file(folder / "tokens.parquet", parquet_bytes(tokens_columns(run)))] if tokens else []),
        write_file(folder / "trace.json", chrome_trace(run, title=title).encode()),
    ]
    if "answers" in run.measured:
        written.append(write_file(folder / "answers.json", to_json(run.measured["answers"]).encode()))
    # Behind all other figures: where it lies, an interrupted command has left nothing out but pictures.
    written.append(write_file(folder / "metrics.json", to_json(envelope).encode()))
    if plots:
        written += write_drawn(run_pictures(folder, run, envelope))
    return written


def write_plugins(folder: Path) -> list[Path]:
    """Returns the text of the files in use, each below the beginning of its digest, as its name is a part of the
    version."""
    return [
        write_file(folder / "plugins" / plugin.sha256[:12] / f"{plugin.name}.py", plugin.text)
        for plugin in used()
        if plugin.text is not None
    ]


def run_pictures(folder: Path, run: Run, envelope: Envelope) -> dict[Path, Draw]:
    """How each picture of a run is drawn, by its path without an ending."""
    from kvferry.analysis.assist_picture import assist_picture
    from kvferry.analysis.decode_picture import decode_picture
    from kvferry.analysis.gantt import gantt
    from kvferry.analysis.session_picture import session_picture

    # What a picture does not show need not go to another process.
    shown = replace(run, inputs=Inputs(), measured={}, counted=None)
    if not run.spans:
        return {}
    draws: dict[Path, Draw] = {folder / "plots" / "gantt": partial(gantt, shown, title=_title(envelope))}
    if steps_of(run) is not None:
        draws[folder / "plots" / "decode"] = partial(decode_picture, shown, title=_title(envelope))
    if run.assisted is not None and run.requests:
        draws[folder / "plots" / "assist"] = partial(assist_picture, shown, title=_title(envelope))
    if run.sessions is not None and run.sessions.turns:
        draws[folder / "plots" / "day"] = partial(session_picture, shown, title=_title(envelope))
    return draws


def write_comparison(
    folder: Path,
    scenario_yaml: Mapping[str, str],
    runs: Mapping[str, Run],
    envelopes: Mapping[str, Envelope],
    ranked_by: str = "ttft_s",
    *,
    failed: Mapping[str, str] = {},
    unclear: Collection[str] = (),
    plots: bool = True,
    tokens: bool = False,
    progress: Progress = lambda done, of: None,
) -> list[Path]:
    """Write a run's folder per system (all three mappings by system), comparison.json, and plots/ of all together, the
    best by `ranked_by` first. `failed`: why other systems have no run. `unclear`: systems that cannot be told from a
    better one. Calls `progress` with how many pictures are drawn."""
    written = []
    draws: dict[Path, Draw] = {}
    for system, run in runs.items():
        own = folder / folder_name(system)
        written += write_run(own, scenario_yaml[system], run, envelopes[system], plots=False, tokens=tokens)
        draws |= run_pictures(own, run, envelopes[system])
    marks = lower_quality({system: envelope["metrics"] for system, envelope in envelopes.items()})
    found = {"systems": dict(envelopes), "failed": dict(failed), "marks": marks, "unclear": sorted(unclear)}
    written.append(write_file(folder / "comparison.json", to_json(found).encode()))
    draws |= comparison_pictures(folder, runs, envelopes, ranked_by, unclear)
    return written + (write_drawn(draws, progress) if plots else [])


def comparison_pictures(
    folder: Path,
    runs: Mapping[str, Run],
    envelopes: Mapping[str, Envelope],
    ranked_by: str,
    unclear: Collection[str] = (),
) -> dict[Path, Draw]:
    """How each picture of several systems is drawn, by its path without an ending."""
    from kvferry.analysis.compare import compare_gantt
    from kvferry.analysis.compare_bars import compare_bars

    draws: dict[Path, Draw] = {}
    title = _title_of_all(envelopes)
    metrics = {system: envelope["metrics"] for system, envelope in envelopes.items()}
    if any(run.spans for run in runs.values()):
        lesser = lower_quality(metrics)
        names = {name: f"{name} {MARK} ({lesser[name]})" if name in lesser else name for name in runs}
        shown = {names[name]: replace(run, inputs=Inputs(), measured={}, counted=None) for name, run in runs.items()}
        draws[folder / "plots" / "paths"] = partial(compare_gantt, shown, title=title)
    if any(ranked_by in figures for figures in metrics.values()):
        draws[folder / "plots" / "bars"] = partial(compare_bars, metrics, **bars_of(envelopes, ranked_by, unclear))
    return draws


def bars_of(envelopes: Mapping[str, Envelope], ranked_by: str, unclear: Collection[str] = ()) -> dict[str, Any]:
    """Returns what ``compare_bars`` takes beside the metrics."""
    return {
        "title": _title_of_all(envelopes),
        "ranked_by": ranked_by,
        "ranges": _ranges(envelopes),
        "line": "range" if any("ranges" in envelope for envelope in envelopes.values()) else INTERVAL,
        "outcomes": {name: envelope["outcome"] for name, envelope in envelopes.items()},
        "unclear": unclear,
    }


def _title_of_all(envelopes: Mapping[str, Envelope]) -> str:
    return next((f"{envelope['scenario']}{_unmeasured(envelope)}" for envelope in envelopes.values()), "")


def write_drawn(draws: Mapping[Path, Draw], progress: Progress = lambda done, of: None) -> list[Path]:
    """Draw pictures, on several cores where there are many, and write them."""
    written = []
    for n, (stem, drawn) in enumerate(zip(draws, _rendered([*draws.values()]), strict=True)):
        written += write_pictures(stem, drawn)
        progress(n + 1, len(draws))
    return written


def _rendered(draws: Sequence[Draw]) -> Iterable[dict[str, bytes]]:
    from kvferry.analysis.style import render

    workers = _workers(len(draws))
    if workers == 1:
        return map(render, draws)
    from joblib import Parallel, delayed

    found: Iterable[dict[str, bytes]] = Parallel(n_jobs=workers, return_as="generator")(
        delayed(render)(draw) for draw in draws
    )
    return found


def _workers(pictures: int) -> int:
    """Processes to draw with: none beside this one where other work keeps the cores busy, as they would take turns.
    Starting one takes as long as drawing two or three pictures."""
    worth = pictures // 3
    if worth <= 1:
        return 1
    from joblib import cpu_count

    idle = cpu_count() - int(os.getloadavg()[0])
    return max(1, min(idle, worth))


def _ranges(envelopes: Mapping[str, Envelope]) -> dict[str, dict[str, tuple[float, float]]]:
    """Ranges of several runs, or intervals, of the systems that have any."""
    found = {name: envelope.get("ranges") or envelope.get("intervals") for name, envelope in envelopes.items()}
    return {name: ends for name, ends in found.items() if ends}


def _title(envelope: Envelope) -> str:
    return f"{envelope['scenario']}: {envelope.get(VARIANT, envelope['system'])}{_unmeasured(envelope)}"


def _unmeasured(envelope: Envelope) -> str:
    """Returns what a title adds for a profile that was not measured, or only quickly; otherwise an empty text."""
    device = envelope["provenance"].get("device", {"measured": True})
    how = "quickly measured" if device.get("calibration", {}).get("quick") else ""
    how = how if device["measured"] else "not measured"
    return f" ({device['name']}: {how})" if how else ""


def write_pictures(stem: Path, pictures: Mapping[str, bytes]) -> list[Path]:
    """Write one file per format ("png", "svg"), named by the stem."""
    return [write_file(stem.with_name(f"{stem.name}.{format}"), content) for format, content in pictures.items()]


def folder_name(system: str) -> str:
    """A system's name as one folder: anything but letters, digits, dot, dash and underscore becomes a dash."""
    return re.sub(r"[^\w.-]+", "-", system, flags=re.ASCII).lstrip(".") or "system"


def spans_columns(run: Run) -> Mapping[str, Any]:
    """The spans as Arrow columns: resource, label, start_s, end_s, n_bytes, request (null: none), and of a batch that
    decodes in lock step the step that they began in and, of attention and feed-forward, the layer."""
    spans, steps = run.spans, steps_of(run)
    places = [(None, None) if steps is None else steps.of(span) for span in spans]
    return {
        "resource": text([span.resource for span in spans]),
        "label": text([span.label for span in spans]),
        "start_s": real([span.start_s for span in spans]),
        "end_s": real([span.end_s for span in spans]),
        "n_bytes": real([span.n_bytes for span in spans]),
        "request": whole([span.request for span in spans]),
        "step": whole([step for step, _ in places]),
        "layer": whole([layer for _, layer in places]),
    }


def requests_columns(run: Run, *, bounded: bool = True) -> Mapping[str, Any]:
    """A row per request: when it arrived, was loaded and answered, its tokens, and by which path its context came.
    Null: not reached, or not applicable, as are bounds that rest on a profile which was not measured."""
    rows: list[Mapping[str, Any]] = [
        _request_row(record if bounded else replace(record, bound_s=None)) for record in run.requests
    ]
    counts = ("request", *_ASKED, "tokens", "units_computed", "units_streamed")
    keys = list(_request_row(RequestRecord(request=0, arrival_s=0.0)))
    return {key: (whole if key in counts else real)([row[key] for row in rows]) for key in keys}


def _request_row(record: RequestRecord) -> dict[str, float | None]:
    times = token_times_s(record)
    first, last, loaded = record.first_token_s, times[-1] if times else None, record.loaded_s
    return {
        "request": record.request,
        **{key: getattr(record, key) for key in _ASKED},
        "arrival_s": record.arrival_s,
        "queued_s": None if record.began_s is None else record.began_s - record.arrival_s,
        "loaded_s": loaded,
        "first_token_s": first,
        "last_token_s": last,
        "tokens": len(times),
        "ttft_s": None if first is None else first - record.arrival_s,
        "tpot_s": (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None,
        "load_s": None if loaded is None else loaded - record.arrival_s,
        "bound_s": record.bound_s,
        "units_computed": record.units_computed,
        "units_streamed": record.units_streamed,
        "streamed_bytes": record.streamed_bytes,
        "wasted_bytes": record.wasted_bytes,
        "streamed_bits_per_value": record.streamed_bits_per_value,
    }


def units_columns(requests: Sequence[RequestRecord]) -> Mapping[str, Any]:
    """A row per unit of a context, in the order in which they came: request, token_chunk, layer, head (null: all), path
    ("streamed" or "computed"), asked_s, ready_s."""
    units = [(record.request, *unit) for record in requests for unit in record.units]
    request, chunk, layer, head, streamed, asked_s, ready_s = zip(*units, strict=True) if units else ((),) * 7
    return {
        "request": whole(request),
        "token_chunk": whole(chunk),
        "layer": whole(layer),
        "head": whole(head),
        "path": text([_PATHS[came] for came in streamed]),
        "asked_s": real(asked_s),
        "ready_s": real(ready_s),
    }


def tokens_columns(run: Run) -> Mapping[str, Any]:
    """Returns a row per token that was answered: request, token, from 0 in each, and at_s, when it was there on the
    run's clock."""
    rows = [(record.request, n, at_s) for record in run.requests for n, at_s in enumerate(token_times_s(record))]
    request, token, at_s = zip(*rows, strict=True) if rows else ((),) * 3
    return {"request": whole(request), "token": whole(token), "at_s": real(at_s)}


def _units_file(folder: Path, run: Run) -> list[Path]:
    """units.parquet of a run that loaded a context."""
    if not any(record.units for record in run.requests):
        return []
    return [write_file(folder / "units.parquet", parquet_bytes(units_columns(run.requests)))]


def _turns_file(folder: Path, run: Run) -> list[Path]:
    """turns.parquet of a run of conversations."""
    if run.sessions is None:
        return []
    return [write_file(folder / "turns.parquet", parquet_bytes(turns_columns(run.sessions.turns)))]


def parquet_bytes(columns: Mapping[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), buffer, compression="zstd")
    return buffer.getvalue()

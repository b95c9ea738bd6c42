"""A run as a Chrome trace: opens in Perfetto (ui.perfetto.dev) and in chrome://tracing.

Format: "Trace Event Format", JSON object form. Processes: the device, the network, the requests; a thread per
resource, and further ones where spans of a resource overlap (flows that share the link), as a viewer nests
events of one thread; counters of the link's rate, and of the device's temperature and clock. Times in
microseconds of the run's clock.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from kvferry.analysis.metrics import token_times_s
from kvferry.analysis.occupancy import delivered, rows
from kvferry.machine.span import Span
from kvferry.pipelines.record import RequestRecord, Run

Event = dict[str, Any]

DEVICE, NETWORK, REQUESTS, CONTEXT = 1, 2, 3, 4
_PROCESS_NAMES = {DEVICE: "device", NETWORK: "network", REQUESTS: "requests", CONTEXT: "context"}
# The order of resources from the top; processors, whose names are the device's, come between.
_FIRST = ("link", "decompress", "copy", "storage")


def chrome_trace(run: Run, *, title: str = "kvferry") -> str:
    """The run as one line per event of Chrome trace JSON; equal runs give equal text."""
    lines = ",\n".join(json.dumps(event, allow_nan=False, separators=(",", ":")) for event in trace_events(run))
    about = {
        "title": title,
        "outcome": run.outcome,
        "memory_capacity_bytes": run.memory_capacity_bytes,
        "memory_peak_bytes": run.memory_peak_bytes,
        "kv_memory_peak_bytes": run.kv_memory_peak_bytes,
    }
    return f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n{lines}\n]}}\n'


def trace_events(run: Run) -> Iterator[Event]:
    """Names of processes and threads first, then spans, requests, and as counters the link's rate and the warmth."""
    for pid, name in _PROCESS_NAMES.items():
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
    tid = 1  # 0 is the idle thread to Perfetto
    for resource in resources_of(run.spans):
        spans = [span for span in run.spans if span.resource == resource]
        row_of = rows(spans)
        pid = NETWORK if resource == "link" else DEVICE
        for row in range(max(row_of) + 1):
            yield from _thread(pid, tid + row, resource if row == 0 else f"{resource} ({row + 1})")
        for span, row in zip(spans, row_of, strict=True):
            yield _complete(pid, tid + row, span)
        tid += max(row_of) + 1
    for request in run.requests:
        yield from _thread(REQUESTS, request.request + 1, f"request {request.request}")
        yield from _phases(request)
    yield from _units(run.requests)
    yield from _rates("link rate", run.link_times_s, run.link_bytes_per_s)
    if run.link_times_s:
        edges, moved = delivered((s for s in run.spans if s.resource == "link"), run.link_times_s, run.link_bytes_per_s)
        yield from _rates("delivered rate", edges.tolist(), moved.tolist())
    if run.warmth is not None:
        for at_s, chip_c, clock in zip(run.warmth.times_s, run.warmth.temperatures_c, run.warmth.clocks, strict=True):
            yield _counter(DEVICE, "temperature", at_s, "C", chip_c)
            yield _counter(DEVICE, "clock", at_s, "%", 100 * clock)


def resources_of(spans: Sequence[Span]) -> list[str]:
    """The resources that worked, in the order of the data's path: link, decompress, copy, processors."""
    names = {span.resource for span in spans}
    return [name for name in _FIRST if name in names] + sorted(names.difference(_FIRST))


def _thread(pid: int, tid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": name}}
    yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _us(value_s: float) -> float:
    """Microseconds, rounded to the nanosecond as the viewers do."""
    return round(value_s * 1e6, 3)


def _complete(pid: int, tid: int, span: Span) -> Event:
    args: dict[str, Any] = {}
    if span.n_bytes:
        args["bytes"] = span.n_bytes
    if span.request is not None:
        args["request"] = span.request
    event = _slice(pid, tid, span.label or span.resource, span.start_s, span.end_s)
    return {**event, "cat": span.resource, "args": args}


def _slice(pid: int, tid: int, name: str, start_s: float, end_s: float) -> Event:
    # The end is rounded, not the duration: spans that touch must still touch, or a viewer nests them.
    start, end = _us(start_s), _us(end_s)
    return {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": start, "dur": round(end - start, 3)}


def _phases(request: RequestRecord) -> Iterator[Event]:
    """The phases of a request: the load, the first token, the rest of the answer."""
    times = token_times_s(request)
    ends = (
        ("load", request.loaded_s),
        ("first token", request.first_token_s),
        ("decode", times[-1] if len(times) > 1 else None),
    )
    start_s = request.arrival_s
    for name, end_s in ends:
        if end_s is not None and end_s > start_s:
            yield {**_slice(REQUESTS, request.request + 1, name, start_s, end_s), "cat": "request", "args": {}}
            start_s = end_s


def _units(requests: Sequence[RequestRecord]) -> Iterator[Event]:
    """A mark where each unit of a context was there, named by its path, in a thread per layer."""
    for layer in sorted({unit.layer for request in requests for unit in request.units}):
        yield from _thread(CONTEXT, layer + 1, f"layer {layer}")
    for request in requests:
        for unit in request.units:
            path = "streamed" if unit.streamed else "computed"
            head = "" if unit.head is None else f", head {unit.head}"
            yield {
                "ph": "i", "s": "t", "pid": CONTEXT, "tid": unit.layer + 1, "cat": path, "ts": _us(unit.ready_s),
                "name": f"{path}: chunk {unit.token_chunk}{head}",
                "args": {"request": request.request, "asked_ms": round(1e3 * unit.asked_s, 6)},
            }  # fmt: skip


def _rates(name: str, edges_s: Sequence[float], bytes_per_s: Sequence[float]) -> Iterator[Event]:
    """A counter in Mbit/s at each change of the rate, back to zero at the end."""
    steps = zip(edges_s, bytes_per_s, strict=False)
    for rate, same in groupby(steps, key=lambda step: step[1]):
        start_s, _ = next(same)
        yield _counter(NETWORK, name, start_s, "Mbit/s", rate * 8e-6)
    if len(edges_s) > len(bytes_per_s):
        yield _counter(NETWORK, name, edges_s[-1], "Mbit/s", 0.0)


def _counter(pid: int, name: str, at_s: float, unit: str, value: float) -> Event:
    return {"ph": "C", "pid": pid, "name": name, "ts": _us(at_s), "args": {unit: round(value, 6)}}

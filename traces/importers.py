"""From a measured log, of whichever source, to a trace that a link can replay."""

import re
from pathlib import Path

from kvferry.specs.errors import InputError, pick
from kvferry.traces.derived import trimmed
from kvferry.traces.logs import READERS, Log
from kvferry.traces.rate import RateTrace
from kvferry.traces.request_log import holds_requests

# TCP needs its first seconds to find the link's rate; they say little about the link.
SLOW_START_S = 3.0


def import_trace(
    path: Path,
    reader: str | None = None,
    *,
    drop_slow_start: bool = False,
    trim_s: tuple[float | None, float | None] = (None, None),
) -> RateTrace:
    """The bandwidth that a log recorded, in bytes/s, from its first sample on; it loops.

    `reader`: a name of ``traces.logs.READERS``; None tells it from the content. `trim_s`: what to keep, in seconds
    from the first sample (None: to its end), for logs whose download was not running at their ends.
    `drop_slow_start` then takes the first 3 s off. Raises InputError.
    """
    log = Log.of(path)
    trace = pick("trace reader", READERS, reader or reader_of(log))(log)
    start_s, end_s = trim_s[0] or 0.0, trace.duration_s if trim_s[1] is None else trim_s[1]
    if drop_slow_start:
        # Whole samples, though iperf's seconds are a millisecond off now and then.
        later = trace.edges_s[trace.edges_s >= start_s + 0.99 * SLOW_START_S]
        start_s = float(later[0]) if len(later) else trace.duration_s
    if not 0 <= start_s < end_s <= trace.duration_s * (1 + 1e-9):
        raise InputError(f"{path}: lasts {trace.duration_s:g} s; nothing is left from {start_s:g} s to {end_s:g} s")
    return trace if (start_s, end_s) == (0.0, trace.duration_s) else trimmed(trace, start_s, end_s)


def reader_of(log: Log) -> str:
    """The name of the reader that fits a log's content. Raises InputError when none does."""
    rows = [text for _, text in log.rows()][:50]
    first = rows[0] if rows else ""
    if holds_requests(first):
        raise InputError(f"{log.path}: is a log of requests, not of a link: --set workload.trace={log.path} replays it")
    if first.lstrip().startswith("{"):
        return "iperf3-json"
    if "DL_bitrate" in first and "State" in first:
        return "ucc-5g"
    if "_start" in first and "Throughput" in first:
        return "iperf3-csv"
    if "Tput(Mbps)" in first:
        return "stamped" if first.startswith("time") else "midband"
    if any("bits/sec" in text or "Bytes/sec" in text for text in rows):
        return "iperf3-text"
    if rows and all(text.strip().isdecimal() for text in rows):
        return "mahimahi"
    if rows and all(re.match(r"\s*[\d.]+\s+[\d.]+(\s|$)", text) for text in rows):
        return "stamped"
    if re.search(r"[A-Za-z]", first) and re.search(r"[,;\t]", first):
        return "headed"
    raise InputError(f"{log.path}: no reader knows this content; choose one of {', '.join(READERS)}")

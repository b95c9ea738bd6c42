"""Readers of measured bandwidth: one function per kind of log, each from its lines to a RateTrace in bytes/s.

They replay by time stamp, not by row: where a log has no row, the rate of the row that covers that time holds, so
a stall lasts as long as it did. Nothing read is trusted: numbers are finite, not negative and bounded, times ascend.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from kvferry.specs.errors import InputError
from kvferry.traces.format import MAX_DURATION_S, MOST, read_lines, read_number
from kvferry.traces.rate import RateTrace

BYTES_PER_MBIT = 1e6 / 8
MOST_MBIT_PER_S = MOST["bandwidth"] / BYTES_PER_MBIT
# Clocks of logs start anywhere: seconds since 1970 have ten digits.
_MOST_STAMP = 1e11
# mahimahi: each line is the chance to send one packet of this size, in that millisecond.
_PACKET_BYTES = 1500
_MIDBAND_INTERVAL_S = 0.1
_IPERF = re.compile(
    r"\[\s*(?P<stream>\d+|SUM)\]\s+(?P<start>\d+\.\d+)\s*-\s*(?P<end>\d+\.\d+)\s+sec\s+[\d.]+\s+[KMGT]?Bytes"
    r"\s+(?P<rate>[\d.]+)\s+(?P<unit>[KMGT]?)(?P<what>bits|Bytes)/sec(?P<rest>.*)"
)
_POWER = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True)
class Log:
    """A text file, line by line."""

    path: Path
    lines: list[str]

    @classmethod
    def of(cls, path: Path) -> "Log":
        return cls(path, read_lines(path))

    def rows(self) -> Iterator[tuple[int, str]]:
        """(Line number, line) of what is neither empty nor a comment."""
        return ((n, line) for n, line in enumerate(self.lines, 1) if line.strip() and not line.startswith("#"))

    def number(self, line: int, text: str, what: str, most: float) -> float:
        return read_number(self.path, line, text, what, most)

    def mbit(self, line: int, text: str) -> float:
        return self.number(line, text, "rate in Mbit/s", MOST_MBIT_PER_S)

    def table(self, *columns: str) -> Iterator[tuple[int, tuple[str, ...]]]:
        """(Line number, the named columns) of a CSV file with a header."""
        reader = csv.reader(self.lines)
        try:
            header = next(reader, [])
            missing = [name for name in columns if name not in header]
            if missing:
                raise InputError(f"{self.path}:1: no column {missing[0]!r}; there are {', '.join(header)[:200]}")
            places = [header.index(name) for name in columns]
            for row in reader:
                if row and len(row) <= max(places):
                    raise InputError(f"{self.path}:{reader.line_num}: {len(row)} columns, the header has {len(header)}")
                if row:
                    yield reader.line_num, tuple(row[place] for place in places)
        except csv.Error as error:
            raise InputError(f"{self.path}:{reader.line_num}: {error}") from None

    def trace(self, starts_s: list[float], end_s: float, mbit_per_s: list[float]) -> RateTrace:
        """Rates from their starts on, the first at 0; each holds until the next start."""
        if not starts_s:
            raise InputError(f"{self.path}: no samples in it")
        edges = np.array([*starts_s, end_s]) - starts_s[0]
        if not (np.diff(edges) > 0).all() or edges[-1] > MAX_DURATION_S:
            raise InputError(f"{self.path}: times must ascend, over at most {MAX_DURATION_S:g} s")
        return RateTrace(edges, np.array(mbit_per_s) * BYTES_PER_MBIT)


def stamped(log: Log) -> RateTrace:
    """`time_s Mbit/s` and any further columns: SparkTraces, Lumos5G, Solis, and section 6 of SIGCOMM 2024.

    Rows of the same time are averaged. A log whose first stamp is 0 stamps when a sample begins; any other stamps
    when it ended (Zhuge's begin one interval after 0 or at a clock time), and its rate reaches back to the stamp
    before.
    """
    rates: dict[float, list[float]] = {}
    last_s = 0.0
    for line, text in log.rows():
        if line == 1 and "Tput(Mbps)" in text:
            continue
        cells = text.split()
        if len(cells) < 2:
            raise InputError(f"{log.path}:{line}: {text[:40]!r} has no second column; a row is: seconds, Mbit/s")
        stamp_s = log.number(line, cells[0], "time stamp", _MOST_STAMP)
        if stamp_s < last_s:
            raise InputError(f"{log.path}:{line}: time stamp {cells[0]} comes before {last_s}")
        last_s = stamp_s
        rates.setdefault(stamp_s, []).append(log.mbit(line, cells[1]))
    stamps = list(rates)
    if len(stamps) < 2:
        raise InputError(f"{log.path}: {len(stamps)} samples; their spacing needs two")
    usual_s = float(np.median(np.diff(stamps)))
    means = [fmean(several) for several in rates.values()]
    if stamps[0] == 0:
        return log.trace(stamps, stamps[-1] + usual_s, means)
    return log.trace([stamps[0] - usual_s, *stamps[:-1]], stamps[-1], means)


def midband(log: Log) -> RateTrace:
    """A `Tput(Mbps)` column with one row per 100 ms: sections 5 and 7 of SIGCOMM 2024.

    Section 7 numbers its rows by those of the modem's log, which is no time.
    """
    rows = list(log.rows())
    header = rows[0][1].split("\t") if rows else []
    if "Tput(Mbps)" not in header:
        raise InputError(f"{log.path}:1: no column 'Tput(Mbps)'")
    place = header.index("Tput(Mbps)")
    rates = []
    for line, text in rows[1:]:
        cells = text.split("\t")
        if len(cells) <= place:
            raise InputError(f"{log.path}:{line}: {len(cells)} columns, the header has {len(header)}")
        rates.append(log.mbit(line, cells[place]))
    starts = [n * _MIDBAND_INTERVAL_S for n in range(len(rates))]
    return log.trace(starts, len(rates) * _MIDBAND_INTERVAL_S, rates)


def iperf3_text(log: Log) -> RateTrace:
    """What iperf3 prints per interval, with any prefix on the lines; several streams are summed."""
    spans: dict[tuple[float, float], dict[str, float]] = {}
    for line, text in log.rows():
        found = _IPERF.search(text)
        # The summary at the end covers the whole test again; omitted intervals are warm-up.
        if not found or re.search(r"sender|receiver|omitted", found["rest"]):
            continue
        start_s = log.number(line, found["start"], "time", MAX_DURATION_S)
        end_s = log.number(line, found["end"], "time", MAX_DURATION_S)
        # iperf3 counts bits in powers of 1000 and bytes in powers of 1024.
        base, bits = (1000, 1) if found["what"] == "bits" else (1024, 8)
        rate = log.number(line, found["rate"], "rate", 1e14) * bits * base ** _POWER[found["unit"]] / 1e6
        spans.setdefault((start_s, end_s), {})[found["stream"]] = log.mbit(line, repr(rate))
    if not spans:
        raise InputError(
            f"{log.path}: no interval lines of iperf3, like '[  5] 0.00-1.00 sec 95.9 MBytes 803 Mbits/sec'"
        )
    usual_s = float(np.median([end_s - start_s for start_s, end_s in spans]))
    parts = sorted(span for span in spans if span[1] - span[0] <= 1.5 * usual_s)
    rates = [spans[span].get("SUM", sum(spans[span].values())) for span in parts]
    return log.trace([start_s for start_s, _ in parts], parts[-1][1], rates)


def iperf3_json(log: Log) -> RateTrace:
    """iperf3 --json: the sum over streams of each interval."""
    try:
        intervals = json.loads("\n".join(log.lines))["intervals"]
        sums = [interval["sum"] for interval in intervals]
        sums = [one for one in sums if not one.get("omitted")]
        starts = [_plain(one["start"]) for one in sums]
        rates = [_plain(one["bits_per_second"]) / 1e6 for one in sums]
        end_s = _plain(sums[-1]["end"])
    except json.JSONDecodeError as error:
        raise InputError(f"{log.path}:{error.lineno}: not JSON: {error.msg}") from None
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"[:100]
        raise InputError(f"{log.path}: not a report of iperf3 --json with intervals ({what})") from None
    for number, (start_s, rate) in enumerate(zip(starts, rates, strict=True), 1):
        if not (0 <= start_s <= MAX_DURATION_S and 0 <= rate <= MOST_MBIT_PER_S):
            raise InputError(f"{log.path}: interval {number} begins at {start_s} s with {rate} Mbit/s")
    return log.trace(starts, end_s, rates)


def _plain(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.40} is not a number")
    return float(value)


def iperf3_csv(log: Log) -> RateTrace:
    """Intervals `_start`, `_end` in s and `Throughput` in Mbit/s: the walks of SIGCOMM 2021.

    Rows of the same second are averaged. A tenth of the seconds has no row, whatever the rate around them: the
    log lacks them, so the rate before holds on.
    """
    seconds: dict[float, list[float]] = {}
    end_s = 0.0
    for line, (start, end, rate) in log.table("_start", "_end", "Throughput"):
        start_s = log.number(line, start, "_start", MAX_DURATION_S)
        end_s = max(end_s, log.number(line, end, "_end", MAX_DURATION_S))
        seconds.setdefault(start_s, []).append(log.mbit(line, rate))
    starts = sorted(seconds)
    return log.trace(starts, end_s, [fmean(seconds[start_s]) for start_s in starts])


def headed(log: Log) -> RateTrace:
    """A table with a header, split by commas, semicolons or tabs, with a time and a rate whose names say what they
    are, as `time,mbps` or `timestamp_ms;throughput_kbps`. A rate holds from its time to the next; the last one for
    the usual step. Times may be dates."""
    number, header = next(log.rows(), (1, ""))
    split = max(",;\t", key=header.count)
    columns = [name.strip().strip('"') for name in header.split(split)]
    times = [
        (place, _TIME_UNITS.get(found[2] or "s"))
        for place, name in enumerate(columns)
        if (found := _TIME.match(name.lower()))
    ]
    rates = [(place, mbit) for place, name in enumerate(columns) if (mbit := _mbit_of(name)) is not None]
    if len(times) != 1 or len(rates) != 1:
        what = "a time" if len(times) != 1 else "a rate with its unit"
        raise InputError(
            f"{log.path}:{number}: {len(times if len(times) != 1 else rates)} columns are {what};"
            f" name them as in 'time_s,mbps'; there are {', '.join(columns)[:200]}"
        )
    (time_at, second), (rate_at, mbit) = times[0], rates[0]
    starts: list[float] = []
    found_rates: list[float] = []
    for line, text in list(log.rows())[1:]:
        cells = text.split(split)
        if len(cells) <= max(time_at, rate_at):
            raise InputError(f"{log.path}:{line}: {len(cells)} columns, the header has {len(columns)}")
        starts.append(_stamp_s(log, line, cells[time_at].strip().strip('"'), second or 1.0))
        rate = cells[rate_at].strip().strip('"')
        found_rates.append(log.number(line, rate, columns[rate_at], MOST_MBIT_PER_S / mbit) * mbit)
        if len(starts) > 1 and starts[-1] <= starts[-2]:
            raise InputError(f"{log.path}:{line}: time {cells[time_at][:40]} does not come after the one before")
    if len(starts) < 2:
        raise InputError(f"{log.path}: {len(starts)} samples; their spacing needs two")
    return log.trace(starts, starts[-1] + float(np.median(np.diff(starts))), found_rates)


# Names of times with their unit, and what a unit of a rate is in Mbit/s.
_TIME = re.compile(r"(time_?stamp|time|t|start|elapsed|seconds?|secs?)_?\s*[\[(]?(s|sec|seconds|ms|us)?[\])]?$")
_TIME_UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6}
_RATE = re.compile(
    r"(?:^|[^a-z])([kmg]?)(bps|bits?(?:_per_|/|p)s(?:ec(?:ond)?)?|bytes?(?:_per_|/|p)s(?:ec(?:ond)?)?)\W*$",
    re.IGNORECASE,
)
# A capital B is a byte: MBps, kB/s. "mb/s" may be either, and is not taken.
_BYTES = re.compile(r"(?:^|[^A-Za-z])([kKMG]?)(Bps|B/s)\W*$")
_PREFIX = {"": 1e-6, "k": 1e-3, "m": 1.0, "g": 1e3}


def _mbit_of(name: str) -> float | None:
    """How many Mbit/s a unit of a column is, by its name; None where it is no rate."""
    found = _BYTES.search(name) or _RATE.search(name)
    if found is None:
        return None
    return _PREFIX[found[1].lower()] * (8.0 if found[2].lower().startswith("byte") or found[2][0] == "B" else 1.0)


def _stamp_s(log: Log, line: int, text: str, second: float) -> float:
    """A time in seconds: a number in units of `second` (milliseconds where it can be no other), or a date."""
    if re.match(r"\d{4}-\d\d-\d\d", text):
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise InputError(f"{log.path}:{line}: {text[:40]!r} is not a time like 2026-01-31T12:10:03.5") from None
    stamp = log.number(line, text, "time", _MOST_STAMP * 1e3 / second)
    return stamp * (1e-3 if second == 1.0 and stamp > _MOST_STAMP else second)


def ucc_5g(log: Log) -> RateTrace:
    """G-NetTrack: `DL_bitrate` in kbit/s per second of `Timestamp`, where `State` is D (downloading).

    Rows of one second are averaged. Seconds without a row, or idle, keep the rate before them: the logger skips
    some at any rate, and idle says nothing of the link.
    """
    seconds: dict[float, list[float]] = {}
    for line, (stamp, kbit, state) in log.table("Timestamp", "DL_bitrate", "State"):
        if state != "D":
            continue
        try:
            # Naive times differ by what the clock showed; no zone is needed, nor known.
            time_s = (datetime.strptime(stamp, "%Y.%m.%d_%H.%M.%S") - datetime(1970, 1, 1)).total_seconds()
        except ValueError:
            raise InputError(f"{log.path}:{line}: {stamp[:40]!r} is not a time like 2020.01.16_12.10.03") from None
        rate = log.number(line, kbit, "DL_bitrate in kbit/s", MOST_MBIT_PER_S * 1e3) / 1e3
        seconds.setdefault(time_s, []).append(rate)
    starts = sorted(seconds)
    return log.trace(starts, starts[-1] + 1 if starts else 0, [fmean(seconds[at]) for at in starts])


def mahimahi(log: Log) -> RateTrace:
    """One chance to send 1,500 bytes per line, at that millisecond; the last line is the period of the loop.

    The chances of a millisecond are spread over it. Those of the last one fall into the one before, as the
    loop begins again there.
    """
    stamps = []
    for line, text in log.rows():
        if not text.strip().isdecimal():
            raise InputError(f"{log.path}:{line}: {text[:40]!r} is not a whole number of milliseconds")
        stamps.append(int(log.number(line, text.strip(), "millisecond", MAX_DURATION_S * 1e3)))
        if len(stamps) > 1 and stamps[-1] < stamps[-2]:
            raise InputError(f"{log.path}:{line}: {stamps[-1]} ms comes before {stamps[-2]} ms")
    if not stamps or stamps[-1] == 0:
        raise InputError(f"{log.path}: no period: the last line must be a millisecond above 0")
    period = stamps[-1]
    used, chances = np.unique(np.minimum(stamps, period - 1), return_counts=True)
    edges = np.unique(np.concatenate([[0, period], used, used + 1]))
    rates = np.zeros(len(edges) - 1)
    rates[np.searchsorted(edges, used)] = chances * _PACKET_BYTES * 1000.0
    return RateTrace(edges / 1000, rates)


READERS: dict[str, Callable[[Log], RateTrace]] = {
    "stamped": stamped,
    "midband": midband,
    "iperf3-text": iperf3_text,
    "iperf3-json": iperf3_json,
    "iperf3-csv": iperf3_csv,
    "ucc-5g": ucc_5g,
    "mahimahi": mahimahi,
    "headed": headed,
}

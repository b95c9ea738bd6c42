"""Recorded requests: when each one came, and how many tokens it read and answered."""

import csv
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from kvferry.specs.errors import InputError
from kvferry.traces.format import MAX_DURATION_S, first_line, note_of_cut, read_beginning, read_number
from kvferry.traces.json_lines import MOST_TOKENS, number_at, objects, tokens_at
from kvferry.traces.request import Request

MOST_RECORDED = 100_000
_MOST_STAMP_S = 1e11
# As programs write small and large numbers, too: 1e-05.
_NUMBER = re.compile(r"\d+\.?\d*(e[+-]?\d+)?|\.\d+", re.ASCII | re.IGNORECASE)
# Columns (arrival, context, question, output) of every format, found by its header: this project's own, the Azure LLM
# inference traces, and BurstGPT. A column that a format lacks is empty here.
_FORMATS = (
    ("arrival", "context", "question", "output"),
    ("arrival_s", "context", "question", "output"),
    ("arrival", "context", "", "output"),
    ("arrival_s", "context", "", "output"),
    ("TIMESTAMP", "ContextTokens", "", "GeneratedTokens"),
    ("Timestamp", "Request tokens", "", "Response tokens"),
)
# Keys of Mooncake's traces: arrival in ms, prompt, answer.
_MOONCAKE = ("timestamp", "input_length", "output_length")
# The header, places of its columns, and requests.
_Rows = tuple[list[str], list[int | None], list[Request]]


class RequestLog(NamedTuple):
    """Requests of a file, and for the user: what its columns were taken for, and what was left out."""

    requests: tuple[Request, ...]
    notes: tuple[str, ...] = ()


def read_requests(path: Path, *, first: int | None = None, most: int, question: int) -> tuple[Request, ...]:
    """Returns the requests of ``read_log``."""
    return read_log(path, first=first, most=most, question=question).requests


def read_log(path: Path, *, first: int | None = None, most: int, question: int) -> RequestLog:
    """The `first` requests of a CSV file with a header or of Mooncake's traces, or all, in order of arrival, the first
    of them at 0.

    Arrivals are seconds, or date and time. `question` stands in where the file has no such column. Rows without tokens
    are requests that failed, and are left out. Raises InputError with file and line, and for a file of more than `most`
    requests unless `first` says how many of them to take.
    """
    lines, cut = read_beginning(path)
    if cut and first is None:
        raise InputError(f"{path}: is a large log; say with workload.requests how many to take of its beginning")
    header, columns, found = (_mooncake if _is_mooncake(lines) else _table)(path, lines, question)
    answered = [one for one in found if one.context > 0 and one.output > 0]
    if not answered:
        raise InputError(f"{path}: holds no request with tokens to read and to answer")
    if first is None and len(answered) > most:
        raise InputError(
            f"{path}: {len(answered):,} requests; say with workload.requests how many to take, at most {most:,}"
        )
    n_answered = len(answered)
    answered = sorted(answered, key=lambda one: one.arrival_s)[:first]
    first_s, last_s = answered[0].arrival_s, answered[-1].arrival_s
    if last_s - first_s > MAX_DURATION_S:
        raise InputError(
            f"{path}: its requests come over {last_s - first_s:,.0f} s; at most {MAX_DURATION_S:,.0f} s will do"
        )
    requests = tuple(Request(one.arrival_s - first_s, one.context, one.output, one.question) for one in answered)
    notes = tuple(_notes(path, header, columns, question, (n_answered, len(found))))
    return RequestLog(requests, (*notes, note_of_cut(path)) if cut else notes)


def _table(path: Path, lines: Sequence[str], question: int) -> _Rows:
    _check_no_json(path, lines)
    reader = csv.reader(lines)
    try:
        header = [name.strip().lstrip("\ufeff") for name in next(reader, [])]
        columns = _columns(path, header)
        return header, columns, [_row(path, reader.line_num, row, columns, question) for row in reader if row]
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: {error}") from None


def _mooncake(path: Path, lines: Sequence[str], question: int) -> _Rows:
    """Each request by itself, whatever it shares with others."""
    found = []
    for line, row in objects(path, lines):
        stamp_ms = number_at(path, line, row, _MOONCAKE[0], MAX_DURATION_S * 1e3)
        prompt, output = (tokens_at(path, line, row, key, least=0) for key in _MOONCAKE[1:])
        found.append(Request(stamp_ms / 1e3, prompt, output, question))
    return [*_MOONCAKE], [0, 1, None, 2], found


def _is_mooncake(lines: Sequence[str]) -> bool:
    first = first_line(lines)
    return first.startswith("{") and f'"{_MOONCAKE[1]}"' in first


def _notes(
    path: Path, header: list[str], columns: list[int | None], question: int, kept_of: tuple[int, int]
) -> Iterator[str]:
    _, context, asked, _ = columns
    assert context is not None
    taken = "" if header[context] == "context" else f"{header[context]} became the context"
    added = f"{question:,} question tokens were added to each" if asked is None and question else ""
    if taken or added:
        yield f"{path.name}: {', and '.join(filter(None, (taken, added)))}"
    kept, rows = kept_of
    if header[context] == _MOONCAKE[1]:
        yield f"{path.name}: each request is by itself; a session (workload.kind) knows what they share (hash_ids)"
    if kept < rows:
        yield f"{path.name}: {rows - kept:,} of {rows:,} rows have no tokens to read or none to answer; left out"


def _check_no_json(path: Path, lines: Sequence[str]) -> None:
    """Raises InputError for logs of conversations, by name where that is known."""
    first = first_line(lines)
    if not first.startswith(("[", "{")):
        return
    what = "ShareGPT's conversations" if first.startswith("[") else "JSON lines"
    workload = f"workload={{kind: session, trace: {json.dumps(str(path))}, turns: 10}}"
    how = f"kvferry run session/day --set {shlex.quote(workload)}"
    single = f"single requests are read from Mooncake's traces, and from CSV with a header like {_known_headers()}"
    raise InputError(f"{path}:1: {what}, which a session reads: {how}; {single}")


def _known_headers() -> str:
    return "; ".join(",".join(filter(None, names)) for names in _FORMATS if "arrival_s" not in names)


def _columns(path: Path, header: list[str]) -> list[int | None]:
    """Places of arrival, context, question and output. Raises InputError for a header of none of the formats."""
    for names in _FORMATS:
        if all(not name or name in header for name in names):
            return [header.index(name) if name else None for name in names]
    what = f"{','.join(header)[:200]!r} is no header of recorded requests"
    raise InputError(f"{path}:1: {what}; known are {_known_headers()}")


def holds_requests(first_line: str) -> bool:
    """Returns whether a file that begins so is a log of requests, not of a link."""
    names = [name.strip().lstrip("\ufeff") for name in first_line.split(",")]
    return '"input_length"' in first_line or any(all(not one or one in names for one in known) for known in _FORMATS)


def _row(path: Path, line: int, row: list[str], columns: list[int | None], question: int) -> Request:
    if len(row) <= max(place for place in columns if place is not None):
        raise InputError(f"{path}:{line}: {len(row)} columns, the header has more")
    arrival, context, asked, output = (None if place is None else row[place].strip() for place in columns)
    assert arrival is not None

    def tokens(text: str | None, what: str) -> int:
        number = read_number(path, line, text or "", what, MOST_TOKENS)
        if number != int(number):
            raise InputError(f"{path}:{line}: {what} {number:g} is no whole number of tokens")
        return int(number)

    return Request(
        log_seconds(path, line, arrival),
        tokens(context, "context"),
        tokens(output, "output"),
        question if asked is None else tokens(asked, "question"),
    )


def log_seconds(path: Path, line: int, text: str) -> float:
    """From a number of seconds, or from date and time (to the microsecond; UTC where it names no zone)."""
    if _NUMBER.fullmatch(text):
        return read_number(path, line, text, "arrival", _MOST_STAMP_S)
    try:
        read = datetime.fromisoformat(text)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise InputError(f"{path}:{line}: arrival {text[:40]!r} is neither seconds nor date and time") from None

"""Bandwidth and load traces on disk: a CSV file whose head says what it holds.

    # kvferry-trace 1
    # kind: bandwidth
    # on_end: loop
    # source: where it came from, and any other tag
    start_s,bytes_per_s
    0.0,106250000.0
    0.1,98700000.0
    0.2,end

Each row is the start of a piece and the rate that holds from there; the last row is the end. Arrays (chunks,
selections, keys) are .npz files with the same tag in JSON, see ``traces.arrays``.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from kvferry.specs.errors import InputError, quoted
from kvferry.system.whole_file import write_file
from kvferry.traces.rate import OnEnd, RateTrace

Kind = Literal["bandwidth", "load"]
COLUMNS: dict[str, str] = {"bandwidth": "start_s,bytes_per_s", "load": "start_s,share"}
# The largest rate of each kind: 100 TB/s, and all of the processor.
MOST: dict[str, float] = {"bandwidth": 1e14, "load": 1.0}
FIRST_LINE = "# kvferry-trace 1"
MAX_BYTES = 64 * 2**20
MAX_TAGS = 40
MAX_DURATION_S = 1e7
# Where a spreadsheet would begin a cell of a tag's line with what it takes for a formula, within quotes too.
_FORMULA = re.compile(r"([,;][\s\"]*)(?=[=+@-])")
_TAG = re.compile(r"# ([a-z][a-z0-9_]{0,39}): (\S.{0,499})")


@dataclass(frozen=True)
class StoredTrace:
    """A trace with what its file says about it: source, licence, importer, description ..."""

    kind: Kind
    trace: RateTrace
    tags: Mapping[str, str] = field(default_factory=dict)


def write_trace(path: Path, stored: StoredTrace) -> None:
    """Write the file, whole or not at all. Reading it back gives the same trace to the last bit. In tags nothing is a
    spreadsheet's formula: an apostrophe stands before it; and what a terminal would take for a command is escaped."""
    trace = stored.trace
    tags: dict[str, str] = {"kind": stored.kind, "on_end": trace.on_end}
    if trace.loop_from_s:
        tags["loop_from_s"] = repr(trace.loop_from_s)
    lines = [FIRST_LINE]
    for key, value in {**tags, **stored.tags}.items():
        said = _FORMULA.sub(r"\1'", quoted(" ".join(str(value).split())))
        line = f"# {key}: {said[:500]}"
        if not _TAG.fullmatch(line):
            raise ValueError(f"{key!r}: {value!r} cannot be a tag")
        lines.append(line)
    lines.append(COLUMNS[stored.kind])
    edges, rates = trace.edges_s.tolist(), trace.rates.tolist()
    lines += [f"{start!r},{rate!r}" for start, rate in zip(edges, rates, strict=False)]
    lines.append(f"{edges[-1]!r},end")
    write_file(path, ("\n".join(lines) + "\n").encode())


def read_trace(path: Path) -> StoredTrace:
    """Read such a file. Raises InputError, with the line, for anything that is not one."""
    lines = read_lines(path)
    if not lines or lines[0].rstrip() != FIRST_LINE:
        raise InputError(f"{path}:1: not a trace: the first line must be {FIRST_LINE!r}; or: kvferry traces import")
    head = 1
    tags: dict[str, str] = {}
    while head < len(lines) and lines[head].startswith("#"):
        tag = _TAG.fullmatch(lines[head].rstrip())
        if not tag or tag[1] in tags or len(tags) == MAX_TAGS:
            raise InputError(
                f"{path}:{head + 1}: not a tag; write it like '# on_end: loop', each once, {MAX_TAGS} at most"
            )
        tags[tag[1]] = tag[2]
        head += 1
    kind = tags.pop("kind", None)
    if kind not in COLUMNS:
        raise InputError(f"{path}: kind is {kind!r}; 'bandwidth' or 'load' would do, as in '# kind: bandwidth'")
    if head == len(lines) or lines[head].strip() != COLUMNS[kind]:
        raise InputError(f"{path}:{head + 1}: the columns of a {kind} trace are {COLUMNS[kind]!r}")
    edges, rates = _rows(path, lines, head + 1, MOST[kind])
    on_end = tags.pop("on_end", "loop")
    if on_end not in get_args(OnEnd):
        raise InputError(f"{path}: on_end is {on_end!r}; it can be {', '.join(get_args(OnEnd))}")
    try:
        loop_from_s = float(tags.pop("loop_from_s", "0"))
        trace = RateTrace(np.array(edges), np.array(rates), on_end, loop_from_s)  # type: ignore[arg-type]
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return StoredTrace(kind, trace, tags)  # type: ignore[arg-type]


def _rows(path: Path, lines: list[str], first: int, most: float) -> tuple[list[float], list[float]]:
    edges: list[float] = []
    rates: list[float] = []
    for number, line in enumerate(lines[first:], first + 1):
        start, comma, rate = line.strip().partition(",")
        if not comma:
            raise InputError(f"{path}:{number}: {line[:40]!r} is not a row; write it like '0.1,98700000'")
        edges.append(read_number(path, number, start, "time", MAX_DURATION_S))
        if len(edges) > 1 and edges[-1] <= edges[-2]:
            raise InputError(f"{path}:{number}: time {start} does not come after {edges[-2]}")
        if rate == "end":
            if number != len(lines):
                raise InputError(f"{path}:{number + 1}: a row after the end")
            return edges, rates
        rates.append(read_number(path, number, rate, "rate", most))
    raise InputError(f"{path}:{len(lines)}: the last row must say where the trace ends, like '0.2,end'")


def read_lines(path: Path) -> list[str]:
    """The lines of a text file. Raises InputError when it is missing, no regular file, or too large."""
    lines, cut = read_beginning(path)
    if cut:
        raise InputError(f"{path}: {path.stat().st_size:,} bytes; a trace has at most {MAX_BYTES:,}")
    return lines


def read_beginning(path: Path) -> tuple[list[str], bool]:
    """The lines of a text file, and whether these are only the whole ones of its first ``MAX_BYTES``. Raises InputError
    when it is missing, or no regular file."""
    try:
        if not path.is_file():
            raise InputError(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
        with path.open("rb") as file:
            found = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    cut = len(found) > MAX_BYTES
    lines = found[:MAX_BYTES].decode("utf-8", "replace").splitlines()
    return (lines[:-1] if cut and len(lines) > 1 else lines), cut


def first_line(lines: Sequence[str]) -> str:
    """Returns the first line that is not blank, without a byte order mark; "": there is none."""
    return next((line.strip().lstrip("\ufeff") for line in lines if line.strip()), "")


def note_of_cut(path: Path) -> str:
    """Returns what a reader of a large log should know."""
    return f"{path.name}: of this large log the first {MAX_BYTES / 2**20:g} MiB are read"


def read_number(path: Path, line: int, text: str, what: str, most: float) -> float:
    """A finite number from 0 to `most`. Raises InputError with the line."""
    try:
        value = float(text) if len(text) <= 40 else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise InputError(f"{path}:{line}: {what} {text[:40].strip()!r} is not a number from 0 to {most:g}")
    return value

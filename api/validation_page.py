"""Tables of a reproduction in pages of the documentation: short ones between two markers, all rows as CSV beside them.

A page has what a reader decides by. The folder ``data`` beside it has every cell, the spread over seeds and what the
paper's tables and figures are compared by.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.analysis.reproduction.left_out import HEADINGS, held, left_out_rows
from kvferry.analysis.reproduction.sustained import sustained_rows
from kvferry.specs.errors import InputError
from kvferry.system.whole_file import write_file

Report = Mapping[str, Any]

_TABLE = re.compile(
    r"(?P<begin><!-- kvferry reproduce (?P<paper>\S+): (?P<table>\w+) -->\n)(?P<rows>.*?)(?P<end><!-- end -->)",
    re.DOTALL,
)
_OPEN = re.compile(r"<!-- kvferry reproduce \S+: \w+ -->")


def write_pages(folder: Path, reports: Mapping[str, Report]) -> list[Path]:
    """Rewrites the tables of these papers in the folder's pages (*.md), and their files in its folder ``data``; returns
    what was written.

    Tables: ``claims``, ``errors`` (of printed cells, fitted and not), ``sustained`` (rates over time), ``left_out``
    (devices). Files: PAPER-claims.csv, PAPER-cells.csv and PAPER-exhibits.csv, as far as a paper has any. Those of
    other papers stay as they are. Raises InputError, naming file and line, for a marker that is not closed or names no
    table.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder; give one with pages that have markers")
    written = []
    for page in sorted(folder.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        anew = with_tables(text, reports, str(page))
        if anew is not None:
            written.append(write_file(page, anew.encode()))
    if not written:
        return []
    (folder / "data").mkdir(exist_ok=True)
    for paper, report in reports.items():
        for name, rows_of in _FILES.items():
            rows = list(rows_of(report))
            if rows:
                written.append(write_file(folder / "data" / f"{paper}-{name}.csv", _csv(rows)))
    return written


def _csv(rows: Sequence[Mapping[str, str]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def with_tables(text: str, reports: Mapping[str, Report], name: str = "page") -> str | None:
    """The text with the tables of these reports in place of what stood between their markers; None without any.
    Raises InputError."""
    closed = {found.start() for found in _TABLE.finditer(text)}
    for found in _OPEN.finditer(text):
        if found.start() not in closed:
            line = text.count("\n", 0, found.start()) + 1
            raise InputError(f"{name}:{line}: {found[0]} has no <!-- end --> behind it")
    mine = [found for found in _TABLE.finditer(text) if found["paper"] in reports]
    for found in mine:
        if found["table"] not in _TABLES:
            line = text.count("\n", 0, found.start()) + 1
            raise InputError(f"{name}:{line}: there is no table {found['table']!r}; known: {', '.join(_TABLES)}")

    def table(found: re.Match[str]) -> str:
        if found["paper"] not in reports:
            return found[0]
        # On a page about a system it need not be named in each row.
        own = re.compile(rf" of {re.escape(found['paper'])}(?= over | \()")
        rows = (own.sub("", row) for row in _TABLES[found["table"]](reports[found["paper"]]))
        return "\n".join([found["begin"].rstrip("\n"), "", *rows, "", found["end"]])

    return _TABLE.sub(table, text) if mine else None


def _claims(report: Report) -> Iterable[str]:
    yield from _head("claim", "what", "paper", "ours", "verdict")
    for row in _claim_rows(report):
        some = row["seeds that hit"]
        hit, _, of = some.partition(" of ")
        expected = of if row["verdict"].startswith("hit") else "0"
        seeds = f" ({some} seeds)" if hit not in ("", expected) else ""
        chosen = f", chosen: {row['chosen']}" if row["chosen"] else ""
        yield _row(row["claim"], row["what"], row["paper"], row["ours"], row["verdict"] + seeds + chosen)


def _claim_rows(report: Report) -> Iterable[dict[str, str]]:
    for claim in report["claims"]:
        ours = claim["ours"] if claim["paper_low"] == claim["paper_high"] else (claim["ours_low"], claim["ours_high"])
        yield {
            "claim": claim["id"],
            "what": claim["what"],
            "paper": _span((claim["paper_low"], claim["paper_high"])),
            "ours": _span(ours),
            "least to most over seeds": _seeds(claim),
            "seeds that hit": ""
            if claim["seeds_hit"] is None or claim["seeds"] < 2
            else f"{claim['seeds_hit']} of {claim['seeds']}",
            "verdict": claim["verdict"] + (", fitted" if claim["fitted"] and claim["verdict"] == "hit" else ""),
            "chosen": claim.get("chosen") or "",
        }


def _seeds(claim: Mapping[str, Any]) -> str:
    if claim["seeds"] < 2:
        return ""
    ends = ["ours_range"] if claim["paper_low"] == claim["paper_high"] else ["ours_low_range", "ours_high_range"]
    return ", ".join(_span(claim[key]) for key in ends if claim[key])


def _errors(report: Report) -> Iterable[str]:
    """How far printed cells are off, the ones that something was fitted on apart from the others."""
    cells = [cell for cell in report["cells"] if cell["paper"] is not None and cell["relative_error"] is not None]
    yield from _head("cells", "how many", "median error", "90th percentile", "largest")
    fitted, others = ([cell for cell in cells if bool(cell.get("fitted")) is one] for one in (True, False))
    for name, some in {"all printed": cells, "fitted on (in-sample)": fitted, "not fitted on": others}.items():
        if some and (fitted or some is cells):
            errors = np.abs([cell["relative_error"] for cell in some])
            share = [f"{value:.1%}" for value in (np.median(errors), np.quantile(errors, 0.9), errors.max())]
            yield _row(name, str(len(some)), *share)


def _cell_rows(report: Report) -> Iterable[dict[str, str]]:
    for cell in report["cells"]:
        if cell["paper"] is None and not _is_out(cell):
            continue
        error = cell["relative_error"]
        yield {
            "where": cell["experiment"],
            "case": cell["case"],
            "figure": cell["metric"],
            "system": cell["system"],
            "paper": cell["paper_outcome"].replace("_", " ") if _is_out(cell) else f"{cell['paper']:g}",
            "ours": cell["outcome"].replace("_", " ") if cell["ours"] is None else f"{cell['ours']:.4g}",
            "error": "" if error is None else f"{error:+.1%}",
            "fitted": "fitted" if cell.get("fitted") else "",
        }


def _is_out(cell: Mapping[str, Any]) -> bool:
    return bool(cell.get("paper_outcome", "done") != "done")


def _exhibit_rows(report: Report) -> Iterable[dict[str, str]]:
    for table in report["tables"]:
        status = table["status"].replace("_", " ")
        yield {"table or figure": table["name"], "status": status, "why": table["why"]}


def _sustained(report: Report) -> Iterable[str]:
    for n, row in enumerate(sustained_rows(report)):
        if not n:
            yield from _head(*row)
        yield _row(*row.values())


def _left_out(report: Report) -> Iterable[str]:
    """What intervals hold of the rates of devices that were left out of the fits."""
    yield from _head("left out", *HEADINGS[1:])
    for row in left_out_rows(report["left_out"]):
        yield _row(*row)
    yield ""
    yield held(report["left_out"])


_TABLES: dict[str, Callable[[Report], Iterable[str]]] = {
    "claims": _claims,
    "errors": _errors,
    "sustained": _sustained,
    "left_out": _left_out,
}
_FILES: dict[str, Callable[[Report], Iterable[dict[str, str]]]] = {
    "claims": _claim_rows,
    "cells": _cell_rows,
    "exhibits": _exhibit_rows,
}


def _head(*names: str) -> Iterable[str]:
    yield _row(*names)
    yield "|" + "---|" * len(names)


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _span(values: float | Sequence[float | None] | None) -> str:
    """ "1.3", "2.7 to 5.25", or nothing."""
    ends = values if isinstance(values, list | tuple) else [values]
    known = [f"{end:.3g}" for end in ends if end is not None]
    return " to ".join(dict.fromkeys(known))

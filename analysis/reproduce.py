"""``kvferry reproduce``: every claim, cell, table and figure of a paper beside ours."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvferry.analysis.envelope import to_json
from kvferry.analysis.folder import write_file, write_pictures
from kvferry.analysis.reproduction.evidence import conditions_of, figure_of
from kvferry.analysis.reproduction.paper import ExhibitSpec, OrderSpec, Paper, load_paper
from kvferry.analysis.reproduction.results import Key, Progress, Results, carry_out
from kvferry.analysis.reproduction.verdict import verdict_of

Report = dict[str, Any]
# What a cell shows of a run.
_CELL_METRICS = ("ttft_s", "energy_j")


def reproduce_paper(
    name: str,
    output: Path | None = None,
    *,
    workers: int | None = None,
    progress: Progress = lambda done, of: None,
) -> Report:
    """Run a paper's experiments and judge its claims.

    {"paper", "claims": [{"id", "what", "paper_low", "paper_high", "ours", "ours_low", "ours_high", "verdict", "fitted",
    "why"}], "cells": [{"experiment", "case", "system", ..., "metric", "paper", "ours", "relative_error"}], "tables":
    [{"name", "status", "why"}]}. What does not exist is None.

    With an `output` folder the runs are kept there (the next call runs only what is missing), with report.json, a
    plain report.txt and pictures. Raises InputError for a paper that is not known, KvferryError for a folder that
    cannot be written.
    """
    paper = load_paper(name)
    if output is not None:
        results = carry_out(paper, output / "runs", workers, progress)
    else:
        with TemporaryDirectory(prefix="kvferry-") as folder:
            results = carry_out(paper, Path(folder), workers, progress)
    report = report_of(paper, results)
    if output is not None:
        write_report(output, paper, report, results)
    return report


def report_of(paper: Paper, results: Results) -> Report:
    claims = [_claim(paper, number, results) for number in range(len(paper.claims))]
    verdicts = {claim["id"]: claim["verdict"] for claim in claims}
    return {
        "paper": paper.name,
        "claims": claims,
        "cells": [cell for key in results.rows for cell in _cells(paper, key, results)],
        "tables": [_exhibit(exhibit, verdicts, results) for exhibit in paper.exhibits],
    }


def _claim(paper: Paper, number: int, results: Results) -> Report:
    claim = paper.claims[number]
    evidence = paper.evidence[claim.id]
    figure = figure_of(paper, evidence, results)
    return {
        "id": claim.id,
        "what": f"{claim.metric} of {claim.subject}{claim.reference and ' over ' + claim.reference} ({claim.where})",
        "paper_low": claim.low,
        "paper_high": claim.high,
        "ours": figure and figure.value,
        "ours_low": figure and figure.low,
        "ours_high": figure and figure.high,
        "verdict": verdict_of(claim, figure),
        "fitted": bool(evidence.fitted),
        "why": conditions_of(paper, evidence, results),
    }


def _cells(paper: Paper, key: Key, results: Results) -> Iterable[Report]:
    """A run's figures. The paper prints none of its cells, so nothing stands beside them."""
    scenario, row = results.scenarios[key], results.rows[key]
    simulated = paper.experiments[key.experiment].by == "simulation"
    metrics = _CELL_METRICS if simulated else [name for name in row if name != "outcome"]
    sparkv = results.rows.get(key._replace(system=paper.name), {}).get("ttft_s")
    for metric in metrics:
        ours = results.figure(key, metric)
        yield {
            **key._asdict(),
            "device": scenario.device.name,
            "model": scenario.model.name,
            "context": scenario.workload.context,
            "outcome": row["outcome"],
            "metric": metric,
            "paper": None,
            "ours": ours,
            "relative_error": None,
            **({f"over_{paper.name}": ours / sparkv} if metric == "ttft_s" and ours and sparkv else {}),
        }


def _exhibit(exhibit: ExhibitSpec, verdicts: dict[str, str], results: Results) -> Report:
    """reproduced: run, and all claims made of it hit; shape: run, but it prints nothing here or something missed."""
    told = [exhibit.why.strip().rstrip(".")]
    judged = [verdicts[id] for id in exhibit.claims]
    if exhibit.claims:
        told.append(", ".join(f"{id} {verdicts[id]}" for id in exhibit.claims))
    if exhibit.order:
        told.append(_order(exhibit.order, results))
    if not exhibit.experiments:
        status = "not_applicable"
    else:
        status = "reproduced" if judged and all(verdict == "hit" for verdict in judged) else "shape"
    return {"name": exhibit.name, "status": status, "why": ". ".join(told)}


def _order(order: OrderSpec, results: Results) -> str:
    cases = list(dict.fromkeys(key.case for key in results.rows if key.experiment == order.experiment))
    held = 0
    for case in cases:
        figures = [results.figure(Key(order.experiment, case, system), order.metric) for system in order.systems]
        known = [figure for figure in figures if figure is not None]
        held += len(known) == len(figures) and known == sorted(known)
    return f"{' < '.join(order.systems)} in {held} of {len(cases)} cases"


def write_report(folder: Path, paper: Paper, report: Report, results: Results) -> None:
    """Write report.json, report.txt and pictures/. Raises KvferryError when one cannot be written."""
    from kvferry.analysis.reproduction.pictures import pictures_of

    write_file(folder / "report.json", to_json(report).encode())
    write_file(folder / "report.txt", "\n".join(_lines(report)).encode())
    for name, pictures in pictures_of(paper, report, results).items():
        write_pictures(folder / "pictures" / name, pictures)


def _lines(report: Report) -> Iterable[str]:
    """The report as plain text."""
    for claim in report["claims"]:
        printed = f"paper {claim['paper_low']:g} to {claim['paper_high']:g}"
        ours = "ours {ours:.3g} ({ours_low:.3g} to {ours_high:.3g})".format(**claim) if claim["ours"] else "ours none"
        yield f"{claim['id']}  {claim['verdict']}  {printed}  {ours}"
        yield f"    {claim['what']}"
        yield f"    {claim['why']}"
    yield ""
    for table in report["tables"]:
        yield f"{table['name']}  {table['status']}"
        yield f"    {table['why']}"
    yield ""
    for cell in report["cells"]:
        if cell["ours"] is not None:
            where = "  ".join(str(cell[key]) for key in ("experiment", "case", "system"))
            over = "".join(f"  x{value:.2f}" for key, value in cell.items() if key.startswith("over_"))
            yield f"{where}  {cell['metric']}  {cell['ours']:.4g}{over}"
    yield ""

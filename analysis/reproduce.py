"""``kvferry reproduce``: every claim, cell, table and figure of a paper beside ours."""

from collections.abc import Collection, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kvferry.analysis.envelope import to_json
from kvferry.analysis.folder import write_pictures
from kvferry.analysis.reproduction.evidence import conditions_of, figures_of
from kvferry.analysis.reproduction.left_out import coverage, left_out
from kvferry.analysis.reproduction.paper import ExhibitSpec, Key, OrderSpec, Paper, load_paper
from kvferry.analysis.reproduction.rate_errors import errors_by_device
from kvferry.analysis.reproduction.results import Progress, Results, carry_out
from kvferry.analysis.reproduction.storage_errors import storage_coverage, storage_spread
from kvferry.analysis.reproduction.sustained import compared
from kvferry.analysis.reproduction.verdict import hits, median_of, verdict_of
from kvferry.system.whole_file import write_file

Report = dict[str, Any]


def reproduce_paper(
    name: str,
    output: Path | None = None,
    *,
    seeds: int | None = None,
    workers: int | None = None,
    progress: Progress = lambda done, of: None,
) -> Report:
    """Run a paper's experiments, with no more than the first `seeds` of their seeds (None: as many as
    ``Paper.seeds_of_run`` has), and judge its claims.

    {"paper", "agreement": as ``agreement_of`` has it,
    "claims": [{"id", "what", "statistic", "paper_low", "paper_high",
    "ours", "ours_low", "ours_high": medians over the seeds,
    "ours_range", "ours_low_range", "ours_high_range": each the least and the most of them, "seeds", "seeds_hit": how
    many would hit by themselves, "verdict", "fitted", "chosen", "why"}], "cells": [{"experiment", "case", "system",
    ..., "metric", "paper", "ours", "ours_range", "relative_error", "fitted": where it was}],
    "tables": [{"name", "status", "why"}], "not_measured": devices whose profile was not measured}; for measured rates
    also "by_device", errors, and "sustained", rates over time. What does not exist is None.

    With an `output` folder the runs are kept there (the next call runs only what is missing), with report.json, a
    plain report.txt and pictures. Raises InputError for a paper that is not known, KvferryError for a folder that
    cannot be written.
    """
    paper = load_paper(name)
    if seeds is not None:
        paper = paper.with_seeds(seeds)
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
    cells = [cell for key in results.rows for cell in _cells(paper, key, results)]
    agreement = agreement_of(cells, [name for name, system in paper.systems.items() if system.everywhere])
    return {
        "paper": paper.name,
        "claims": claims,
        "cells": cells,
        "tables": [_exhibit(exhibit, verdicts, results) for exhibit in paper.exhibits],
        "not_measured": sorted({one.device.name for one in results.scenarios.values() if not one.device.is_measured}),
        **({"agreement": agreement} if agreement else {}),
        **(_of_devices(cells) if any(spec.rates for spec in paper.experiments.values()) else {}),
    }


def _of_devices(cells: list[Report]) -> Report:
    """Errors by device, rates over time, and what intervals hold of rates of devices that were left out of the fits."""
    return {
        "by_device": errors_by_device(cells),
        "sustained": compared(),
        "left_out": [*coverage(left_out()), *storage_coverage(storage_spread().by_device)],
    }


def _claim(paper: Paper, number: int, results: Results) -> Report:
    claim = paper.claims[number]
    evidence = paper.evidence[claim.id]
    figures = figures_of(paper, evidence, results)
    figure = median_of(figures) if figures else None
    return {
        "id": claim.id,
        "what": f"{claim.metric} of {claim.subject}{claim.reference and ' over ' + claim.reference} ({claim.where})",
        "statistic": claim.statistic,
        "paper_low": claim.low,
        "paper_high": claim.high,
        "ours": figure and figure.value,
        "ours_low": figure and figure.low,
        "ours_high": figure and figure.high,
        "ours_range": _range(f.value for f in figures),
        "ours_low_range": _range(f.low for f in figures),
        "ours_high_range": _range(f.high for f in figures),
        "seeds": len(figures),
        "seeds_hit": None if claim.statistic == "measured" else sum(hits(claim, f) for f in figures),
        "verdict": verdict_of(claim, figures),
        "fitted": bool(evidence.fitted),
        "chosen": evidence.chosen,
        "why": conditions_of(paper, evidence, results),
    }


def _range(figures: Iterable[float | None]) -> list[float] | None:
    """The least and the most; None without any."""
    known = [figure for figure in figures if figure is not None]
    return [min(known), max(known)] if known else None


def _cells(paper: Paper, key: Key, results: Results) -> Iterable[Report]:
    """A run's figures beside the paper's printed ones, if it prints any."""
    scenario = results.scenarios[key]
    simulated = paper.experiments[key.experiment].by == "simulation"
    metrics = paper.cell_metrics if simulated else [name for name in results.rows[key][0] if name != "outcome"]
    printed = {cell.metric: cell for cell in paper.cells if (cell.experiment, cell.case, cell.system) == key}
    over_paper = _over_paper(paper, key, results)
    for metric in metrics:
        ours = results.figure(key, metric)
        cell = printed.get(metric)
        scale = 1.0 if cell is None else cell.scale
        ours = None if ours is None else ours * scale
        yield {
            **key._asdict(),
            "device": scenario.device.name,
            "model": scenario.model.name,
            **({"engine": scenario.device.engine.name} if scenario.device.engine else {}),
            "context": scenario.workload.context,
            "outcome": results.outcome(key),
            "metric": metric,
            "paper": None if cell is None else cell.value,
            **({} if cell is None else {"paper_outcome": "out_of_memory" if cell.out_of_memory else "done"}),
            "ours": ours,
            "ours_range": _range(f and f * scale for f in results.of_seeds(key, metric)),
            "relative_error": None if cell is None or cell.out_of_memory or ours is None else cell.error(ours),
            **({"fitted": True} if cell is not None and cell.fitted else {}),
            **({f"over_{paper.name}": over_paper} if metric == "ttft_s" and over_paper else {}),
        }


def _over_paper(paper: Paper, key: Key, results: Results) -> float | None:
    """Returns a run's TTFT over the paper's own system's, by the medians over the seeds that both were run with; None
    where one has none."""
    pairs = zip(results.of_seeds(key, "ttft_s"), results.of_seeds(key._replace(system=paper.name), "ttft_s"))
    known = [(ours_s, paper_s) for ours_s, paper_s in pairs if ours_s and paper_s]
    if not known:
        return None
    ours_s, paper_s = (float(np.median(figures)) for figures in zip(*known, strict=True))
    return ours_s / paper_s


def agreement_of(cells: list[Report], everywhere: Collection[str]) -> Report | None:
    """How near the cells are that the paper prints: the median and 90th percentile of their errors, and how many pairs
    in one place (everything but the system the same, or the experiment too where one of both is `everywhere`) come
    in the printed order, ties in print left out; "from_one_token_per_s": the errors of the throughputs among them that
    are printed as 1 or more, as smaller ones have one digit; "not_fitted": of those to which nothing was fitted, where
    some were; "outcomes": where some are printed as out of memory, all that are printed, and how many come out as
    printed. None: it prints none."""
    printed = [cell for cell in cells if cell["paper"] is not None]
    if not printed:
        return None
    right = pairs = 0
    for n, one in enumerate(printed):
        for other in printed[:n]:
            if _comparable(one, other, everywhere) and one["paper"] != other["paper"] and one["ours"] and other["ours"]:
                pairs += 1
                right += (one["paper"] > other["paper"]) == (one["ours"] > other["ours"])
    fast = [cell for cell in printed if cell["metric"] == "throughput_tokens_per_s" and cell["paper"] >= 1]
    predicted = [cell for cell in printed if not cell.get("fitted")]
    return {
        **_errors_of(printed),
        **({"not_fitted": _errors_of(predicted)} if 0 < len(predicted) < len(printed) else {}),
        **({"from_one_token_per_s": _errors_of(fast)} if fast else {}),
        **_outcomes_of(cells),
        "orderings": pairs,
        "orderings_right": right,
    }


def _outcomes_of(cells: list[Report]) -> Report:
    told = [cell for cell in cells if "paper_outcome" in cell]
    if all(cell["paper_outcome"] == "done" for cell in told):
        return {}
    return {"outcomes": len(told), "outcomes_right": sum(cell["outcome"] == cell["paper_outcome"] for cell in told)}


def _errors_of(cells: list[Report]) -> Report:
    errors = [abs(cell["relative_error"]) if cell["relative_error"] is not None else 1.0 for cell in cells]
    return {
        "cells": len(cells),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
    }


def _comparable(one: Report, other: Report, everywhere: Collection[str]) -> bool:
    same_place = (one["case"], one["metric"]) == (other["case"], other["metric"])
    systems = {one["system"], other["system"]}
    return (
        same_place and len(systems) == 2 and (one["experiment"] == other["experiment"] or bool(systems & {*everywhere}))
    )


def _exhibit(exhibit: ExhibitSpec, verdicts: dict[str, str], results: Results) -> Report:
    """reproduced: run, all that it states compared, and all claims made of it hit; shape: run, but something missed, or
    is not compared, or nothing is printed."""
    remarks = [exhibit.why.strip().rstrip(".")]
    judged = [verdicts[id] for id in exhibit.claims]
    if exhibit.claims:
        remarks.append(", ".join(f"{id} {verdicts[id]}" for id in exhibit.claims))
    if exhibit.order:
        remarks.append(_order(exhibit.order, results))
    if exhibit.not_compared:
        remarks.append(f"Not compared: {exhibit.not_compared.strip().rstrip('.')}")
    if not exhibit.experiments:
        status = "not_applicable"
    else:
        whole = bool(judged) and not exhibit.not_compared
        status = "reproduced" if whole and all(verdict == "hit" for verdict in judged) else "shape"
    return {"name": exhibit.name, "status": status, "why": ". ".join(remarks)}


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


def _spread(claim: Report) -> str:
    """How the seeds differ: "; over 5 seeds 1.1 to 1.3, 3 hit"; of a sweep, each of its ends."""
    if claim["seeds"] < 2:
        return ""
    sweep = claim["paper_low"] != claim["paper_high"] and claim["paper_low"]
    ranges = [claim["ours_low_range"], claim["ours_high_range"]] if sweep else [claim["ours_range"]]
    spread = " and ".join(f"{low:.3g} to {high:.3g}" for low, high in ranges)
    hit = "" if claim["seeds_hit"] is None else f", {claim['seeds_hit']} hit"
    return f"; over {claim['seeds']} seeds {spread}{hit}"


def _between(ends: list[float] | None) -> str:
    """ " [1.1 to 1.3]", over the seeds; nothing where they do not differ."""
    return f"  [{ends[0]:.4g} to {ends[1]:.4g}]" if ends and ends[0] != ends[1] else ""


def _lines(report: Report) -> Iterable[str]:
    """The report as plain text."""
    for claim in report["claims"]:
        printed = f"paper {claim['paper_low']:g} to {claim['paper_high']:g}"
        ours = "ours {ours:.3g} ({ours_low:.3g} to {ours_high:.3g})".format(**claim) if claim["ours"] else "ours none"
        yield f"{claim['id']}  {claim['verdict']}  {printed}  {ours}{_spread(claim)}"
        yield f"    {claim['what']}"
        yield f"    {claim['why']}"
    yield ""
    for table in report["tables"]:
        yield f"{table['name']}  {table['status']}"
        yield f"    {table['why']}"
    yield ""
    for cell in report["cells"]:
        if cell["ours"] is None and "paper_outcome" in cell:
            told = "runs out of memory" if cell["paper_outcome"] == "out_of_memory" else f"paper {cell['paper']:g}"
            yield f"{cell['experiment']}  {cell['case']}  {cell['system']}  {cell['outcome']}  paper: {told}"
        if cell["ours"] is not None:
            where = "  ".join(str(cell[key]) for key in ("experiment", "case", "system"))
            over = _between(cell["ours_range"])
            if cell["paper"] is not None:
                fitted = ", fitted" if cell.get("fitted") else ""
                over += f"  paper {cell['paper']:g} ({cell['relative_error']:+.1%}{fitted})"
            over += "".join(f"  x{value:.2f}" for key, value in cell.items() if key.startswith("over_"))
            yield f"{where}  {cell['metric']}  {cell['ours']:.4g}{over}"
    yield ""

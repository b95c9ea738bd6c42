"""``kvferry reproduce``: a paper's claims, tables and figures beside our results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kvferry.cli.options import JsonOption, OutputOption


def reproduce(
    paper: Annotated[
        str, typer.Argument(metavar="PAPER", help="sparkv, kvswap, dynakv, pd_device, specontext; devices; or all.")
    ],
    output: OutputOption = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Take the first N seeds of each run; default: all.")] = None,
    pages: Annotated[
        Path | None,
        typer.Option(
            "--pages",
            metavar="DIR",
            help="Rewrite the tables between markers in this folder's pages, and all rows in its data/*.csv.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run what a paper ran, and show every claim with our figure and a verdict: hit, miss, measured.

    Figures and verdicts are medians over several seeds; a bound must hold with every seed. The folder,
    runs/PAPER-reproduced unless --output names another, keeps the runs, the report and pictures; after Ctrl-C the same
    command resumes. With --json alone, none is written. Of all papers, each has a folder in it, and kvferry report
    makes one page of them.
    """
    from kvferry.analysis.envelope import to_json
    from kvferry.analysis.folder import folder_name
    from kvferry.api.reproduce import EVERY
    from kvferry.api.reproduce import reproduce as reproduced
    from kvferry.cli.output import results_folder
    from kvferry.cli.progress import in_turn, say

    if output is None and not json:
        output = results_folder(f"runs/{folder_name(paper)}-reproduced")

    def show(name: str, report: Mapping[str, Any]) -> None:
        if output is not None:
            say(f"written to {output / name if paper == EVERY else output}")
        if not json:
            _show(report)

    found = reproduced(paper, output=output, seeds=seeds, pages=pages, each=show, watch=in_turn(" runs"))
    if json:
        print(to_json(found.reports if paper == EVERY else found.reports[paper]), end="")
    for page in found.pages:
        say(f"{page} rewritten")


def _show(report: Mapping[str, Any]) -> None:
    from kvferry.analysis.reproduction.left_out import HEADINGS, held, left_out_rows
    from kvferry.analysis.reproduction.sustained import SUSTAINED, sustained_rows
    from kvferry.cli.table import print_table
    from kvferry.specs.errors import quoted

    claims, tables = report["claims"], report["tables"]
    rows = [(c["id"], _range(c, "paper"), _range(c, "ours"), *_seeds(c), c["verdict"], c["why"]) for c in claims]
    if claims:
        heading = ("claim", "paper", "ours", "over seeds", "seeds that hit", "verdict", "why")
        print_table(heading, rows, title=report["paper"])
    if tables:
        print_table(("table or figure", "status", "why"), [(t["name"], t["status"], t["why"]) for t in tables])
    if by_device := report.get("by_device"):
        of_device = ("device", "engine", "what", "rows", "fitted", "median error", "from", "to")
        print_table(of_device, [_errors(group) for group in by_device], title="ours against what people measured")
        of_series = ("series", "device", "measured on", "fitted", *SUSTAINED.values())
        series = [tuple(row.values()) for row in sustained_rows(report)]
        print_table(of_series, series, title="decoding without a break: measured, ours")
    if left_out := report.get("left_out"):
        print_table(HEADINGS, list(left_out_rows(left_out)), title="80 % intervals made without the device")
        print(held(left_out))
    if report.get("not_measured"):
        print(
            quoted(f"not measured: {', '.join(report['not_measured'])} (kvferry devices says where figures are from)")
        )
    hits = sum(claim["verdict"] == "hit" for claim in claims)
    misses = sum(claim["verdict"] == "miss" for claim in claims)
    if agreement := report.get("agreement"):
        orderings = f"; {agreement['orderings_right']} of {agreement['orderings']} orderings"
        print(
            f"{agreement['cells']} printed cells: error {agreement['median_error']:.1%} in the median,"
            f" {agreement['p90_error']:.1%} at the 90th percentile{orderings if agreement['orderings'] else ''}"
        )
        if "outcomes" in agreement:
            print(
                f"{agreement['outcomes_right']} of {agreement['outcomes']} cells run out of memory, or not, as printed"
            )
        if predicted := agreement.get("not_fitted"):
            print(
                f"{predicted['cells']} to which nothing was fitted: {predicted['median_error']:.1%} in the median,"
                f" {predicted['p90_error']:.1%} at the 90th percentile"
            )
        if fast := agreement.get("from_one_token_per_s"):
            print(
                f"{fast['cells']} of at least 1 token/s: {fast['median_error']:.1%} in the median,"
                f" {fast['p90_error']:.1%} at the 90th percentile"
            )
    if not claims:
        return
    fitted = sum(claim["verdict"] == "hit" and claim["fitted"] for claim in claims)
    of_them = f" ({fitted} of them fitted)" if fitted else ""
    print(f"{hits} hits{of_them}, {misses} misses, {len(claims) - hits - misses} without a verdict")


def _errors(group: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (str(group["rows"]), str(group["fitted"]))
    shares = (f"{group['median_error']:.1%}", f"{group['least']:+.1%}", f"{group['most']:+.1%}")
    return (group["device"], group["engine"], group["experiment"], *counts, *shares)


def _range(claim: dict[str, Any], whose: str) -> str | None:
    """ "1.3" or "1.3-1.6"; ours is one figure where the paper's is. None where there is no figure."""
    ends = [claim[f"{whose}_{end}"] for end in ("low", "high")]
    if whose == "ours" and claim["paper_low"] == claim["paper_high"]:
        ends = [claim["ours"]]
    figures = [f"{end:.3g}" for end in ends if end is not None]
    return "-".join(dict.fromkeys(figures)) or None


def _seeds(claim: dict[str, Any]) -> tuple[str | None, str | None]:
    """The least and the most that a seed gave, of a sweep at each end; and how many seeds would hit by themselves."""
    if claim["seeds"] < 2:
        return None, None
    keys = ["ours_range"] if claim["paper_low"] == claim["paper_high"] else ["ours_low_range", "ours_high_range"]
    spread = ", ".join(f"{claim[key][0]:.3g}-{claim[key][1]:.3g}" for key in keys)
    return spread, None if claim["seeds_hit"] is None else f"{claim['seeds_hit']} of {claim['seeds']}"

"""``kvferry reproduce``: a paper's claims, tables and figures beside ours."""

from typing import Annotated, Any

import typer

from kvferry.cli.options import JsonOption, OutputOption


def reproduce(
    paper: Annotated[str, typer.Argument(metavar="PAPER", help="As in sparkv.")],
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Run what a paper ran, and show every claim with our figure and a verdict: hit, miss, measured."""
    from kvferry.analysis.envelope import to_json
    from kvferry.analysis.reproduce import reproduce_paper
    from kvferry.cli.progress import counted, say
    from kvferry.cli.table import print_table

    with counted(paper) as progress:
        report = reproduce_paper(paper, output, progress=progress)
    if json:
        print(to_json(report), end="")
        return
    claims, tables = report["claims"], report["tables"]
    rows = [(c["id"], _range(c, "paper"), _range(c, "ours"), c["verdict"], c["why"]) for c in claims]
    print_table(("claim", "paper", "ours", "verdict", "why"), rows, title=paper)
    print_table(("table or figure", "status", "why"), [(t["name"], t["status"], t["why"]) for t in tables])
    hits = sum(claim["verdict"] == "hit" for claim in claims)
    misses = sum(claim["verdict"] == "miss" for claim in claims)
    print(f"{hits} hits, {misses} misses, {len(claims) - hits - misses} without a verdict")
    if output is not None:
        say(f"written to {output}")


def _range(claim: dict[str, Any], whose: str) -> str | None:
    """ "1.3" or "1.3-1.6"; None where there is no figure."""
    ends = [f"{value:.3g}" for end in ("low", "high") if (value := claim[f"{whose}_{end}"]) is not None]
    return "-".join(dict.fromkeys(ends)) or None

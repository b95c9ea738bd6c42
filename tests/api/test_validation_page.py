"""Tables between markers: rewritten, whole and nowhere else; the documentation's are of today's claims."""

import csv
from pathlib import Path
from typing import Any

import pytest

from kvferry.analysis.reproduction.paper import PAPERS, paper_names
from kvferry.api.validation_page import with_tables, write_pages
from kvferry.specs.errors import InputError

PAGES = Path(__file__).parents[2] / "docs/validation"


def _claim(**changes: Any) -> dict[str, Any]:
    claim = {"id": "A1", "what": "speed | of us", "paper_low": 2.0, "paper_high": 2.0, "ours": 2.204, "fitted": True}
    ends = {"ours_low": 1.0, "ours_high": 3.0, "ours_low_range": [0.9, 1.1], "ours_high_range": [3.0, 3.0]}
    return claim | ends | {"ours_range": [2.1, 2.3], "seeds": 3, "seeds_hit": 2, "verdict": "hit"} | changes


def _cell(**changes: Any) -> dict[str, Any]:
    cell = {"experiment": "table 1", "case": "4K", "system": "us", "metric": "tpot_s", "paper": 2.0, "ours": 2.2}
    return cell | {"relative_error": 0.1, "outcome": "done", **changes}


REPORT = {
    "claims": [_claim(), _claim(id="A2", paper_high=4.0, verdict="miss", seeds=1)],
    "cells": [
        _cell(fitted=True),
        _cell(case="8K", ours=1.0, relative_error=-0.5),
        _cell(system="them", paper=3.0, ours=3.0, relative_error=0.0),
        _cell(
            case="16K",
            paper=None,
            ours=None,
            relative_error=None,
            outcome="out_of_memory",
            paper_outcome="out_of_memory",
        ),
        _cell(case="32K", paper=None),
    ],
    "tables": [
        {"name": "Table 1", "status": "shape", "why": "few cells"},
        {"name": "Fig. 1", "status": "not_applicable", "why": "a drawing"},
        {"name": "Fig. 2", "status": "shape", "why": "few cells"},
        {"name": "Fig. 3", "status": "not_applicable", "why": "a drawing"},
    ],
}
TEXT = "before\n<!-- kvferry reproduce ours: {} -->\nold\n<!-- end -->\nbehind\n"


def _rows(table: str) -> list[str]:
    anew = with_tables(TEXT.format(table), {"ours": REPORT})
    assert anew is not None
    assert anew.startswith("before\n<!-- kvferry reproduce ours: ")
    assert anew.endswith("<!-- end -->\nbehind\n")
    assert "old" not in anew
    # Once more changes nothing.
    assert with_tables(anew, {"ours": REPORT}) == anew
    return [line for line in anew.splitlines() if line.startswith("|")][2:]


def _csv(folder: Path, name: str) -> list[str]:
    (folder / "page.md").write_text(TEXT.format("claims"))
    assert write_pages(folder, {"ours": REPORT})[0].name == "page.md"
    return (folder / f"data/ours-{name}.csv").read_text().splitlines()


def test_claims_by_hand() -> None:
    assert _rows("claims") == [
        "| A1 | speed \\| of us | 2 | 2.2 | hit, fitted (2 of 3 seeds) |",
        "| A2 | speed \\| of us | 2 to 4 | 1 to 3 | miss |",
    ]


def test_every_claim_with_its_seeds_by_hand(tmp_path: Path) -> None:
    assert _csv(tmp_path, "claims") == [
        "claim,what,paper,ours,least to most over seeds,seeds that hit,verdict,chosen",
        'A1,speed | of us,2,2.2,2.1 to 2.3,2 of 3,"hit, fitted",',
        "A2,speed | of us,2 to 4,1 to 3,,,miss,",
    ]


def test_every_cell_by_hand(tmp_path: Path) -> None:
    assert _csv(tmp_path, "cells") == [
        "where,case,figure,system,paper,ours,error,fitted",
        "table 1,4K,tpot_s,us,2,2.2,+10.0%,fitted",
        "table 1,8K,tpot_s,us,2,1,-50.0%,",
        "table 1,4K,tpot_s,them,3,3,+0.0%,",
        "table 1,16K,tpot_s,us,out of memory,out of memory,,",
    ]


def test_exhibits_by_hand(tmp_path: Path) -> None:
    assert _csv(tmp_path, "exhibits") == [
        "table or figure,status,why",
        "Table 1,shape,few cells",
        "Fig. 1,not applicable,a drawing",
        "Fig. 2,shape,few cells",
        "Fig. 3,not applicable,a drawing",
    ]


def test_a_folder_without_tables_of_the_paper_gets_no_file(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("no table")
    assert write_pages(tmp_path, {"ours": REPORT}) == []
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(("hits", "shown"), [(3, "hit"), (1, "hit (1 of 3 seeds)"), (0, "hit (0 of 3 seeds)")])
def test_seeds_that_disagree_stand_beside_a_verdict(hits: int, shown: str) -> None:
    anew = with_tables(TEXT.format("claims"), {"ours": {"claims": [_claim(fitted=False, seeds_hit=hits)]}})
    assert anew is not None
    assert f"| {shown} |" in anew


def test_errors_by_hand() -> None:
    assert _rows("errors") == [
        "| all printed | 3 | 10.0% | 42.0% | 50.0% |",
        "| fitted on (in-sample) | 1 | 10.0% | 10.0% | 10.0% |",
        "| not fitted on | 2 | 25.0% | 45.0% | 50.0% |",
    ]


def test_tables_of_other_papers_stay() -> None:
    assert with_tables(TEXT.format("claims"), {"theirs": REPORT}) is None
    both = TEXT.format("claims") + TEXT.format("claims").replace("ours", "theirs")
    anew = with_tables(both, {"ours": REPORT})
    assert anew is not None
    assert anew.count("old") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\n<!-- kvferry reproduce ours: claims -->\n", "page.md:2: .* has no <!-- end --> behind it"),
        (TEXT.format("verdicts"), "page.md:2: there is no table 'verdicts'; known: claims, errors"),
    ],
)
def test_bad_markers_are_named(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(InputError, match=told):
        write_pages(tmp_path, {"ours": REPORT})
    with pytest.raises(InputError, match="no such folder"):
        write_pages(tmp_path / "none", {})


@pytest.mark.parametrize("paper", paper_names())
def test_the_documentation_has_every_claim(paper: str) -> None:
    page = (PAGES / f"{paper}.md").read_text()
    with (PAPERS / paper / "claims.csv").open() as file:
        ids = [row["id"] for row in csv.DictReader(file)]
    if not ids:  # rates that people measured
        assert f"data/{paper}-cells.csv" in page
        return
    shown = [
        line.split(" | ")[0].removeprefix("| ")
        for line in page.split(": claims -->")[1].splitlines()
        if line.startswith("| ")
    ]
    assert shown[1:][: len(ids)] == ids
    with (PAGES / f"data/{paper}-claims.csv").open() as file:
        assert [row["claim"] for row in csv.DictReader(file)] == ids


@pytest.mark.parametrize("file", sorted((PAGES / "data").glob("*.csv")), ids=lambda file: file.name)
def test_each_file_of_figures_is_linked(file: Path) -> None:
    assert any(f"data/{file.name})" in page.read_text() for page in PAGES.parent.rglob("*.md"))


def test_the_system_that_a_page_is_about_is_not_named_in_each_row() -> None:
    claims = [
        _claim(what=what) for what in ("speed of ours over theirs (5)", "speed of ours with reuse", "gain of ours (6)")
    ]
    report = {**REPORT, "claims": claims}
    anew = with_tables(TEXT.format("claims"), {"ours": report})
    assert anew is not None
    said = [line.split(" | ")[1] for line in anew.splitlines() if line.startswith("| A1")]
    assert said == ["speed over theirs (5)", "speed of ours with reuse", "gain (6)"]


def test_what_was_chosen_stands_beside_the_verdict() -> None:
    report = {
        **REPORT,
        "claims": [_claim(chosen="load"), _claim(id="A2", verdict="miss", fitted=False, chosen="ratio")],
    }
    anew = with_tables(TEXT.format("claims"), {"ours": report})
    assert anew is not None
    assert "| hit, fitted (2 of 3 seeds), chosen: load |" in anew
    assert "| miss (2 of 3 seeds), chosen: ratio |" in anew

"""Cells that a paper prints: how far ours are from what rounding allows, and whether systems come in its order."""

import csv
from pathlib import Path
from typing import Any

import pytest

from kvferry.analysis.reproduce import agreement_of
from kvferry.analysis.reproduction.paper import PAPERS, Key, PrintedCell, load_paper
from kvferry.analysis.reproduction.results import Results, scenarios_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("printed", "ours", "error"),
    [
        # 0.1 may be anything from 0.05 to 0.15.
        ("0.1", 0.06, 0.0),
        ("0.1", 0.3, 1.0),
        ("0.1", 0.04, -0.2),
        ("35.6", 35.64, 0.0),
        ("100", 111.555, 0.11),
        ("2.00", 1.796, 1.796 / 1.995 - 1),
    ],
)
def test_error_is_the_distance_to_what_is_rounded_to_it(printed: str, ours: float, error: float) -> None:
    cell = PrintedCell(experiment="e", case="c", system="s", metric="m", printed=printed)
    assert cell.error(ours) == pytest.approx(error)


def cell(system: str, paper: float | None, ours: float | None, **more: Any) -> dict[str, Any]:
    error = None if paper is None or ours is None else ours / paper - 1
    given = {"experiment": "e", "case": "c", "metric": "m", **more}
    return {**given, "system": system, "paper": paper, "ours": ours, "relative_error": error}


def test_agreement_by_hand() -> None:
    cells = [
        cell("a", 1.0, 1.1),
        cell("b", 2.0, 1.0),  # wrong against a
        cell("c", 2.0, 2.0),  # tied with b in print; right against a
        cell("a", 1.0, 1.0, case="d"),  # alone in its case
        cell("vllm", 3.0, 3.0, experiment="f"),  # stands beside every experiment's
        cell("d", None, 5.0),  # not printed
        cell("e", 4.0, None),  # did not come about: an error of 100 %
    ]
    found = agreement_of(cells, ["vllm"])
    assert found is not None
    assert (found["cells"], found["orderings"], found["orderings_right"]) == (6, 5, 4)
    # Errors 0, 0, 0, 0.1, 0.5, 1.
    assert found["median_error"] == pytest.approx(0.05)
    assert found["p90_error"] == pytest.approx(0.75)
    assert agreement_of([cell("d", None, 5.0)], []) is None


def test_errors_of_cells_that_were_not_fitted_stand_by_themselves() -> None:
    found = agreement_of([cell("a", 1.0, 1.1), cell("b", 1.0, 1.0, fitted=True)], [])
    assert found is not None
    assert found["median_error"] == pytest.approx(0.05)
    assert found["not_fitted"]["median_error"] == pytest.approx(0.1)


def test_throughputs_with_one_digit_do_not_hide_the_others() -> None:
    throughput = {"metric": "throughput_tokens_per_s"}
    cells = [cell("a", 0.1, 0.1, **throughput), cell("b", 0.1, 0.1, **throughput), cell("c", 10.0, 12.0, **throughput)]
    found = agreement_of([*cells, cell("c", 0.77, 0.7, metric="reuse_rate")], ())
    assert found is not None
    assert found["median_error"] < 0.1
    assert found["from_one_token_per_s"] == {
        "cells": 1,
        "median_error": pytest.approx(0.2),
        "p90_error": pytest.approx(0.2),
    }


def test_claims_that_rest_on_fitted_cells_say_so() -> None:
    evidence = load_paper("kvswap").evidence
    assert [id for id, one in evidence.items() if one.fitted] == ["K3", "K4", "K12", "K13", "K17", "K18", "K21"]
    # Time in reads, beside computing or not.
    assert evidence["K22"].metric == "block_io_s"


def test_every_printed_cell_of_kvswap_is_run() -> None:
    paper = load_paper("kvswap")
    scenarios = scenarios_of(paper)
    assert len(paper.cells) == 91 + 12
    for printed in paper.cells:
        assert (printed.experiment, printed.case, printed.system) in scenarios
    with (PAPERS / "kvswap/throughput.csv").open() as file:
        table = sorted(row["tokens_per_s"] for row in csv.DictReader(file))
    assert sorted(c.printed for c in paper.cells if c.experiment.startswith("table 4")) == table
    storages = {key.experiment: s.device.storage and s.device.storage.name for key, s in scenarios.items()}
    assert storages["table 4 eMMC"] == "emmc"
    assert storages["table 4 NVMe"] == "nvme"


def test_what_kvswaps_claims_rest_on() -> None:
    paper = load_paper("kvswap")
    assert [claim.id for claim in paper.claims] == [f"K{n}" for n in range(1, 24)]
    # The bound on hot groups is asked at the length of the set that the paper takes; others are shown.
    contexts = [case.get("workload.context", "32Ki") for case in paper.experiments["locality"].cases.values()]
    assert contexts == ["32Ki", "16Ki", "12Ki", "8Ki", 14152]
    assert paper.evidence["K13"].cases == ("QMSum",)
    # Figures are drawn: of none is all compared that it states.
    assert all(e.not_compared for e in paper.exhibits if e.name.startswith("Fig.") and e.experiments)


def test_a_cell_that_is_printed_as_out_of_memory_counts_by_its_outcome() -> None:
    printed = PrintedCell(experiment="e", case="c", system="s", metric="m", printed="OOM")
    assert (printed.out_of_memory, printed.value) == (True, None)
    cells = [
        cell("a", 1.0, 1.1, paper_outcome="done", outcome="done"),
        cell("b", None, None, paper_outcome="out_of_memory", outcome="out_of_memory"),
        cell("c", None, 2.0, paper_outcome="out_of_memory", outcome="done"),
        cell("d", 2.0, None, paper_outcome="done", outcome="out_of_memory"),
    ]
    found = agreement_of(cells, [])
    assert found is not None
    assert (found["outcomes"], found["outcomes_right"], found["cells"]) == (4, 2, 2)
    assert "outcomes" not in (agreement_of(cells[:1], []) or {})


def test_a_system_may_have_settings_of_its_own_in_the_cases_that_it_is_run_in() -> None:
    paper = load_paper("specontext")
    scenarios = scenarios_of(paper)
    batches = {
        (key.case, key.system): scenario.decode.workload.batch
        for key, scenario in scenarios.items()
        if key.experiment == "table 3"
    }
    with (PAPERS / "specontext/throughput.csv").open() as file:
        rows = list(csv.DictReader(file))
    systems = {"flash_attention": "flash"}
    for row in rows:
        case = f"[{int(row['input']) // 1024}k, {int(row['output']) // 1024}k]"
        batch = batches[case, systems.get(row["method"], row["method"])]
        assert batch == (int(row["requests"]) if row["requests"] else 1)
    assert len(batches) == len(rows) == 20
    ablation = {(key.case, key.system) for key in scenarios if key.experiment == "ablation"}
    assert ("[16k, 2k]", "eager") not in ablation
    assert ("[16k, 2k]", "specontext") in ablation


def test_a_run_that_an_experiment_leaves_out_has_no_figure() -> None:
    results = Results({}, {})
    left_out = Key("ablation", "[16k, 2k]", "eager")
    assert (results.of_seeds(left_out, "tpot_s"), results.figure(left_out, "tpot_s")) == ([], None)

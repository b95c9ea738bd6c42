"""DynaKV's data and experiments: what is printed, what is run for it, and figures that need no run."""

import csv

import pytest

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.reproduction.measurements import clusters, update_reads
from kvferry.analysis.reproduction.paper import PAPERS, load_paper
from kvferry.analysis.reproduction.results import scenarios_of
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

SHORT = ("model=tiny", "workload.context=256", "workload.output=160", "workload.decoded=40")


def test_adaptive_clusters_stay_narrower_and_find_more_than_static_ones() -> None:
    adaptive, static = (
        clusters(load_scenario("dynakv/latency", [*SHORT, "workload.output=1Ki", f"system={system}"]))
        for system in ("dynakv", "pqcache")
    )
    assert adaptive["cluster_variance"] < static["cluster_variance"]
    assert adaptive["clusters"] > static["clusters"]
    assert adaptive["recall"] > static["recall"]
    # The more steps there are, the likelier an updated cluster is retrieved in one of them.
    shares = [adaptive[f"wanted_within_{steps}"] for steps in (1, 2, 4, 8, 16)]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] <= 1


def test_keys_that_are_clustered_by_themselves_join_no_cluster() -> None:
    found = clusters(load_scenario("dynakv/latency", [*SHORT, "workload.output=1Ki", "system=clusterkv"]))
    assert set(found) == {"cluster_variance", "recall", "clusters"}


def test_a_buffer_saves_reads_that_only_update_clusters() -> None:
    none, some = (
        update_reads(load_scenario("dynakv/latency", [*SHORT, f"policies.buffer_tokens={n}"]))["update_read_entries"]
        for n in (0, 16)
    )
    assert 0 <= some < none


@pytest.mark.parametrize("system", ["dynakv", "pqcache", "clusterkv", "no-cluster"])
def test_effective_bandwidth_is_of_what_attention_wanted(system: str) -> None:
    """Storage reads more than that: whole blocks, and what a virtual cache swaps in unasked."""
    scenario = load_scenario("dynakv/latency", [*SHORT, f"system={system}"])
    figures = metrics_for(scenario, run_scenario(scenario))
    reading_s = figures["block_io_s"] * (scenario.decode.workload.output - 1) * scenario.model.layers
    assert 0 < figures["effective_bytes_per_s"] * reading_s < figures["read_bytes"]


def test_every_printed_cell_is_run_and_every_claim_has_its_experiment() -> None:
    paper = load_paper("dynakv")
    scenarios = scenarios_of(paper)
    assert [claim.id for claim in paper.claims] == [f"D{n}" for n in range(1, 21)]
    with (PAPERS / "dynakv/latency.csv").open() as file:
        table = [(int(row["decode_length"]), row["latency_ms"]) for row in csv.DictReader(file)]
    runs = [scenarios[cell.experiment, cell.case, cell.system] for cell in paper.cells]  # type: ignore[index]
    assert [(run.decode.workload.output, cell.printed) for run, cell in zip(runs, paper.cells, strict=True)] == table
    assert all(cell.fitted for cell in paper.cells)
    names = [exhibit.name for exhibit in paper.exhibits]
    assert names == [f"Table {n}" for n in range(1, 7)] + ["Algorithm 1"] + [f"Fig. {n}" for n in range(1, 19)]
    # Everything decodes on a CPU, in FP8 unless precision is what is varied.
    assert {run.device.main for run in scenarios.values()} == {"cpu"}
    assert {run.model.weight_bits for key, run in scenarios.items() if key.experiment != "precision"} == {8.0}


def test_what_the_paper_leaves_open_is_the_same_for_all_systems() -> None:
    scenarios = scenarios_of(load_paper("dynakv"))
    alike = {(run.decode.workload.context, run.decode.workload.keys, run.decode.budget) for run in scenarios.values()}
    assert len(alike) == 1
    overall = [key for key in scenarios if key.experiment == "overall" and key.system != "dynakv-pairs"]
    assert not [key for key in overall if scenarios[key].policies]

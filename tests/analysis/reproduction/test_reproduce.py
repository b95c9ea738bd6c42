"""Papers beside ours: what counts as a hit, where our figures come from, whether a paper's data is all there."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from kvferry.analysis.reproduce import report_of, reproduce_paper, write_report
from kvferry.analysis.reproduction.evidence import figures_of
from kvferry.analysis.reproduction.measurements import path_shares, solver_times
from kvferry.analysis.reproduction.paper import Claim, EvidenceSpec, Key, Paper, Statistic, load_paper
from kvferry.analysis.reproduction.results import Results, carry_out, run_in_flight, scenarios_of
from kvferry.analysis.reproduction.verdict import Figure, Verdict, median_of, verdict_of
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.traces import chunks

TINY = {
    "name": "tiny",
    "system": "stream-only",
    "device": "tiny",
    "model": "tiny",
    "link": {"rate": "1 MB/s", "rtt": "2 ms"},
    "workload": {"kind": "context-reuse", "context": 2048, "requests": 2, "arrivals": {"every": "5 s"}},
}


def claim(statistic: Statistic, low: float, high: float) -> Claim:
    return Claim(
        id="X", metric="m", statistic=statistic, subject="s", reference="", low=low, high=high, conditions="", where="I"
    )


@pytest.mark.parametrize(
    ("statistic", "low", "high", "figure", "verdict"),
    [
        # 15 % of 2.0 is 0.3: 1.7 and 2.3 are the last that hit.
        ("value", 2.0, 2.0, Figure(value=1.701, low=0, high=9), "hit"),
        ("value", 2.0, 2.0, Figure(value=1.699, low=0, high=9), "miss"),
        ("value", 2.0, 2.0, Figure(value=2.299, low=0, high=9), "hit"),
        ("mean", 2.0, 2.0, Figure(value=2.301, low=2, high=2), "miss"),
        # A printed interval: 15 % below its low end, 15 % above its high end.
        ("mean", 2.0, 4.0, Figure(value=4.5, low=2, high=2), "hit"),
        ("mean", 2.0, 4.0, Figure(value=4.7, low=2, high=2), "miss"),
        # Both ends, each by its own 15 %, whatever the figure between them.
        ("sweep", 1.0, 3.0, Figure(value=9.0, low=0.86, high=3.4), "hit"),
        ("sweep", 1.0, 3.0, Figure(value=2.0, low=0.84, high=3.0), "miss"),
        ("sweep", 1.0, 3.0, Figure(value=2.0, low=1.0, high=2.5), "miss"),
        ("sweep", 1.0, 3.0, Figure(value=2.0, low=1.2, high=3.0), "miss"),
        # Inside, and something was measured at all.
        ("bound", 0.0, 173.0, Figure(value=173.0, low=1, high=1), "hit"),
        ("bound", 0.0, 173.0, Figure(value=173.1, low=1, high=1), "miss"),
        ("bound", 0.0, 173.0, Figure(value=0.0, low=0, high=0), "miss"),
        ("bound", 0.0, 173.0, Figure(value=10.0, low=1, high=1, complete=False), "miss"),
        ("value", 2.0, 2.0, Figure(value=2.0, low=2, high=2, complete=False), "miss"),
        ("measured", 11.4, 11.4, Figure(value=99.0, low=99, high=99), "measured"),
        ("value", 2.0, 2.0, None, "not_applicable"),
    ],
)
def test_verdicts(statistic: Statistic, low: float, high: float, figure: Figure | None, verdict: Verdict) -> None:
    figures = [] if figure is None else [figure]
    assert verdict_of(claim(statistic, low, high), figures) == verdict


def one(value: float, low: float = 0.0, high: float = 9.0) -> Figure:
    return Figure(value=value, low=low, high=high)


def test_a_verdict_is_of_the_median_over_the_seeds() -> None:
    value, sweep = claim("value", 2.0, 2.0), claim("sweep", 1.0, 3.0)
    # One seed that hits is luck, and so is one that misses.
    assert verdict_of(value, [one(2.0), one(3.0), one(4.0)]) == "miss"
    assert verdict_of(value, [one(2.0), one(2.1), one(4.0)]) == "hit"
    # Each end by itself: no seed here has both.
    ends = [one(2, low=1.0, high=9.0), one(2, low=0.1, high=3.0), one(2, low=1.1, high=3.1)]
    assert median_of(ends) == Figure(value=2, low=1.0, high=3.1)
    assert verdict_of(sweep, ends) == "hit"
    unfinished = Figure(value=2.0, low=2.0, high=2.0, complete=False)
    assert verdict_of(value, [one(2.0), one(2.0), unfinished]) == "miss"


def test_a_bound_must_hold_with_every_seed() -> None:
    bound = claim("bound", 0.0, 173.0)
    assert verdict_of(bound, [one(170.0), one(172.0), one(165.0)]) == "hit"
    assert verdict_of(bound, [one(170.0), one(174.0), one(165.0)]) == "miss"


PAPER_FILES = {
    "claims.csv": """\
id,metric,statistic,subject,reference,low,high,conditions,where
C1,ttft_speedup,sweep,stream,local,2.0,5.0,tiny,I
C2,energy,bound,stream,,0,100,tiny,II
""",
    "experiments.yaml": """\
systems:
  stream: {system: stream-only, about: all streamed}
  local: {system: local-prefill, about: all computed}
experiments:
  main:
    title: two lengths
    where: I
    base: %s
    cases:
      short: {workload.context: 1024}
      long: {workload.context: 2048}
    systems: [stream, local]
  shares:
    title: arithmetic
    where: II
    base: %s
    by: path_shares
    cases: {only: {}}
    systems: [stream]
evidence:
  C1: {experiment: main, metric: ttft_s, system: stream, against: [local], take: range, fitted: nothing really}
  C2: {experiment: main, metric: energy_j, system: stream, cases: [long], take: max, remark: as metered, chosen: load}
""",
    "exhibits.yaml": """\
exhibits:
  - {name: Fig. 1, why: a drawing}
  - {name: Fig. 2, experiments: [main], claims: [C2], why: one claim}
  - {name: Fig. 3, experiments: [main], claims: [C1, C2], why: two claims.}
  - {name: Fig. 4, experiments: [main], order: {experiment: main, systems: [local, stream]}, why: a shape}
  - {name: Fig. 5, experiments: [main], claims: [C2], why: one claim, not_compared: its other curve.}
pictures:
  - name: times
    panels:
      - {title: by case, experiment: main, systems: [stream, local]}
      - {title: by length, experiment: main, systems: [stream], x: workload.context}
""",
}


@pytest.fixture
def papers(tmp_path: Path) -> Path:
    """A folder with one small paper, "small", over the tiny device."""
    (tmp_path / "tiny.yaml").write_text(json.dumps(TINY))
    folder = tmp_path / "papers" / "small"
    folder.mkdir(parents=True)
    for name, text in PAPER_FILES.items():
        (folder / name).write_text(text.replace("%s", str(tmp_path / "tiny.yaml")))
    return folder.parent


@pytest.fixture
def paper(papers: Path) -> Paper:
    return load_paper("small", papers)


def results(paper: Paper, ttft_s: Mapping[tuple[str, str], float | None]) -> Results:
    """What the simulator might have said: TTFT by (case, system), 10 J each."""
    rows = {
        key: [{"outcome": "done", "energy_j": 10.0, "ttft_s": ttft_s.get(key[1:])}]
        for key in scenarios_of(paper)
        if key.experiment == "main"
    }
    return Results(scenarios_of(paper), rows)


FOUND = {("short", "stream"): 1.0, ("short", "local"): 2.0, ("long", "stream"): 2.0, ("long", "local"): 9.0}


def evidence(**more: Any) -> EvidenceSpec:
    return EvidenceSpec(**{"experiment": "main", "metric": "ttft_s", "system": "stream", "take": "range", **more})


def test_figures_by_hand(paper: Paper) -> None:
    found = results(paper, FOUND)
    # 2.0 / 1.0 and 9.0 / 2.0
    assert figures_of(paper, evidence(against=("local",)), found) == (Figure(value=3.25, low=2.0, high=4.5),)
    assert figures_of(paper, evidence(against=("local",), take="max"), found) == (Figure(value=4.5, low=2.0, high=4.5),)
    # the least of several others: stream itself
    assert figures_of(paper, evidence(against=("local", "stream")), found) == (Figure(value=1.0, low=1.0, high=1.0),)
    # their mean: (2 + 1) / 2 over 1, and (9 + 2) / 2 over 2
    both = evidence(against=("local", "stream"), of_several="mean", take="mean")
    assert figures_of(paper, both, found) == (Figure(value=2.125, low=1.5, high=2.75),)
    # 2.0 - 1.0
    increase = evidence(cases=("long",), less_case="short", take="mean")
    assert figures_of(paper, increase, found) == (Figure(value=1.0, low=1.0, high=1.0),)
    # 10 J over 1 s and over 2 s
    assert figures_of(paper, evidence(against=("local",), against_metric="energy_j"), found) == (
        Figure(value=7.5, low=5.0, high=10.0),
    )


def test_a_case_that_failed_spoils_the_answer(paper: Paper) -> None:
    found = results(paper, {**FOUND, ("long", "local"): None})
    assert figures_of(paper, evidence(against=("local",)), found) == (
        Figure(value=2.0, low=2.0, high=2.0, complete=False),
    )
    assert figures_of(paper, evidence(), results(paper, {})) == ()
    rows = {key: [{**row, "outcome": "out_of_memory"}] for key, (row,) in results(paper, FOUND).rows.items()}
    (ended,) = figures_of(paper, evidence(), Results(found.scenarios, rows))
    assert not ended.complete


def test_the_report_by_hand(paper: Paper) -> None:
    report = report_of(paper, results(paper, FOUND))
    first, second = report["claims"]
    # 4.5 is 10 % below 5.0.
    assert (first["verdict"], first["ours"], first["ours_low"], first["ours_high"]) == ("hit", 3.25, 2.0, 4.5)
    assert first["fitted"]
    assert "short 1,024, long 2,048 tokens" in first["why"]
    assert "tiny; link constant (8 Mbit/s)" in first["why"]
    assert first["why"].endswith("stream: all streamed; local: all computed. Fitted: nothing really")
    assert (second["verdict"], second["ours"], second["fitted"]) == ("hit", 10.0, False)
    assert second["why"].endswith("as metered. Chosen: load")
    assert (first["chosen"], second["chosen"]) == ("", "load")
    statuses = {table["name"]: (table["status"], table["why"]) for table in report["tables"]}
    assert statuses == {
        "Fig. 1": ("not_applicable", "a drawing"),
        "Fig. 2": ("reproduced", "one claim. C2 hit"),
        "Fig. 3": ("reproduced", "two claims. C1 hit, C2 hit"),
        "Fig. 4": ("shape", "a shape. local < stream in 0 of 2 cases"),
        # Its claim hits, but that is not all it states.
        "Fig. 5": ("shape", "one claim. C2 hit. Not compared: its other curve"),
    }
    missed = report_of(paper, results(paper, {**FOUND, ("long", "local"): 30.0}))
    assert missed["tables"][2]["status"] == "shape"
    cell = next(cell for cell in report["cells"] if cell["metric"] == "ttft_s" and cell["system"] == "local")
    assert (cell["experiment"], cell["case"], cell["ours"], cell["paper"]) == ("main", "short", 2.0, None)
    json.dumps(report, allow_nan=False)


def test_a_small_paper_from_end_to_end(paper: Paper, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    found = carry_out(paper, tmp_path / "runs", workers=1, progress=lambda done, of: steps.append((done, of)))
    report = report_of(paper, found)
    assert steps[-1] == (5, 5)
    assert all(cell["outcome"] == "done" for cell in report["cells"])
    streamed, computed = (found.figure(Key("main", "long", system), "ttft_s") for system in ("stream", "local"))
    assert streamed is not None
    assert computed is not None
    assert {claim["verdict"] for claim in report["claims"]} <= {"hit", "miss"}
    # 2,048 tokens x 256 values, at most 5 bit: below 0.4 MB, hence below 0.4 s at 1 MB/s.
    assert 0.002 < streamed < 0.4
    # A second time nothing is run.
    steps.clear()
    carry_out(paper, tmp_path / "runs", workers=1, progress=lambda done, of: steps.append((done, of)))
    assert steps[0] == (4, 5)


def with_seeds(papers: Path, *places: tuple[str, str]) -> Paper:
    path = papers / "small" / "experiments.yaml"
    text = "seeds: [1, 2, 3]\n" + path.read_text()
    for before, after in places:
        assert before in text
        text = text.replace(before, after, 1)
    path.write_text(text)
    return load_paper("small", papers)


def test_every_experiment_is_run_with_every_seed(papers: Path, tmp_path: Path) -> None:
    paper = with_seeds(papers, ("    by: path_shares", "    by: path_shares\n    seeds: [4]"))
    assert {key.experiment: s.seed for key, s in scenarios_of(paper).items()} == {"main": 1, "shares": 4}
    found = carry_out(paper, tmp_path / "runs", workers=1)
    runs = {key.experiment: len(rows) for key, rows in found.rows.items()}
    assert runs == {"main": 3, "shares": 1}
    # Contents of contexts are the seed's, and sizes with them.
    streamed = found.of_seeds(Key("main", "long", "stream"), "ttft_s")
    assert len(set(streamed)) == 3
    assert found.figure(Key("main", "long", "stream"), "ttft_s") == sorted(streamed, key=float)[1]  # type: ignore[arg-type]
    first = report_of(paper, found)["claims"][0]
    assert first["seeds"] == 3
    assert first["ours_range"][0] < first["ours"] < first["ours_range"][1]
    write_report(tmp_path / "out", paper, report_of(paper, found), found)
    assert "; over 3 seeds " in (tmp_path / "out" / "report.txt").read_text().splitlines()[0]
    # With fewer seeds nothing is run anew.
    left: list[int] = []
    carry_out(paper.with_seeds(2), tmp_path / "runs", workers=1, progress=lambda done, of: left.append(of - done))
    assert left[0] == 1


def test_systems_that_load_the_same_contexts_follow_one_another(
    papers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Contexts of one run are kept, two, and not more: 2 cases x 3 seeds x 2 requests are drawn once each.
    kept = lru_cache(maxsize=2)(chunks._generated)
    monkeypatch.setattr(chunks, "_kept", kept)
    carry_out(with_seeds(papers, ("    by: path_shares", "    by: path_shares\n    seeds: [4]")), tmp_path, workers=1)
    assert kept.cache_info().misses == 12 + 1


def test_measurements_are_taken_on_all_cores_and_each_finds_its_run(papers: Path, tmp_path: Path) -> None:
    paper = with_seeds(papers, ("    cases: {only: {}}", "    cases: {long: {}, short: {workload.context: 1024}}"))
    alone, pooled = (carry_out(paper, tmp_path / str(n), workers=n) for n in (1, 2))
    assert pooled.rows == alone.rows
    for key, scenario in scenarios_of(paper).items():
        if key.experiment == "shares":
            assert pooled.rows[key] == [{"outcome": "done", **path_shares(scenario)}]


def test_a_run_on_which_nothing_is_judged_takes_the_first_seed(papers: Path) -> None:
    # C1 compares both systems in both cases; without it C2 looks at one run. A printed cell is judged as well.
    (papers / "small" / "claims.csv").write_text("".join(PAPER_FILES["claims.csv"].splitlines(keepends=True)[::2]))
    whole = PAPER_FILES["exhibits.yaml"].replace("[C1, C2]", "[C2]")
    order = "order: {experiment: main, systems: [local, stream]}, "
    assert order in whole
    exhibits = whole.replace(order, "")
    (papers / "small" / "exhibits.yaml").write_text(exhibits)
    paper = with_seeds(papers, ("  C1:", "  # C1:"))
    (papers / "small" / "cells.csv").write_text("experiment,case,system,metric,printed\nmain,short,local,ttft_s,2.0\n")
    judged = {key[1:] for key in scenarios_of(paper) if len(paper.seeds_of_run(key)) == 3}
    assert judged == {("long", "stream")}
    paper = load_paper("small", papers)
    judged = {key[1:] for key in scenarios_of(paper) if len(paper.seeds_of_run(key)) == 3}
    assert judged == {("long", "stream"), ("short", "local")}
    # Systems are put in order by medians over the same seeds.
    (papers / "small" / "exhibits.yaml").write_text(whole)
    paper = load_paper("small", papers)
    judged = {key[1:] for key in scenarios_of(paper) if len(paper.seeds_of_run(key)) == 3}
    assert judged == {(case, system) for case in ("short", "long") for system in ("stream", "local")}


def test_an_experiment_that_sets_its_seed_keeps_it(papers: Path) -> None:
    paper = with_seeds(papers, ("{workload.context: 2048}", "{workload.context: 2048, seed: 9}"))
    assert paper.seeds_of("main") == (None,)
    assert {s.seed for key, s in scenarios_of(paper).items() if key.case == "long"} == {9}


def test_the_folder_that_is_left(paper: Paper, tmp_path: Path) -> None:
    found = results(paper, FOUND)
    report = report_of(paper, found)
    write_report(tmp_path / "out", paper, report, found)
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == report
    text = (tmp_path / "out" / "report.txt").read_text().splitlines()
    assert text[0] == "C1  hit  paper 2 to 5  ours 3.25 (2 to 4.5)"
    assert "main  long  local  ttft_s  9" in text
    assert {path.name for path in (tmp_path / "out" / "pictures").iterdir()} == {
        "times.png", "times.svg", "claims.png", "claims.svg",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("file", "before", "after", "complaint"),
    [
        ("experiments.yaml", "systems: [stream, local]", "systems: [stream, locl]", "Did you mean 'local'"),
        ("experiments.yaml", "cases: [long]", "cases: [lang]", "Did you mean 'long'"),
        ("experiments.yaml", "C2: {", "C3: {", "'C2'"),
        ("experiments.yaml", "take: max", "take: most", "experiments.yaml"),
        ("exhibits.yaml", "claims: [C1, C2]", "claims: [C9]", "'C9'"),
        ("claims.csv", ",bound,", ",bund,", "statistic"),
        ("experiments.yaml", "workload.context: 1024", "workload.contxt: 1024", "contxt"),
    ],
)
def test_faults_in_a_papers_files(papers: Path, file: str, before: str, after: str, complaint: str) -> None:
    path = papers / "small" / file
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after, 1))
    with pytest.raises(InputError) as error:
        scenarios_of(load_paper("small", papers))
    assert complaint in str(error.value)


def test_a_paper_that_is_not_there() -> None:
    with pytest.raises(InputError, match="Did you mean 'sparkv'"):
        reproduce_paper("sparkw")


def test_sparkv_is_complete() -> None:
    sparkv = load_paper("sparkv")
    assert [claim.id for claim in sparkv.claims] == [f"S{n}" for n in range(1, 26)]
    assert set(sparkv.evidence) == {claim.id for claim in sparkv.claims}
    names = [exhibit.name for exhibit in sparkv.exhibits]
    assert names == [f"Table {n}" for n in ("I", "II", "III")] + [f"Fig. {n}" for n in range(1, 17)]
    # A claim belongs to at most one table or figure.
    shown = [id for exhibit in sparkv.exhibits for id in exhibit.claims]
    assert len(shown) == len(set(shown))
    scenarios = scenarios_of(sparkv)
    assert {scenario.coupling for key, scenario in scenarios.items() if key.experiment != "sensitivity"} == {"per_head"}
    # What waits for an answer is on the same link at the same times under every system of a case.
    for key, scenario in scenarios.items():
        first = scenarios[key._replace(system=sparkv.experiments[key.experiment].systems[0])]
        assert (scenario.link, scenario.workload, scenario.seed) == (first.link, first.workload, first.seed)


def test_energy_counts_while_a_request_is_in_flight() -> None:
    scenario = load_scenario({**TINY, "workload": {**TINY["workload"], "requests": 2}})  # type: ignore[dict-item]
    whole, trimmed = run_scenario(scenario), run_in_flight(scenario)
    busy_s = sum((request.first_token_s or 0) - request.arrival_s for request in whole.requests)
    # Two requests, 5 s apart, each done long before the next: 1 W of base while they last, and nothing between.
    assert trimmed.energy_j["base"] == pytest.approx(1.0 * busy_s)
    assert whole.energy_j["base"] == pytest.approx(1.0 * whole.duration_s)
    # GPU idle 1 W, network interface 0.5 W, over the same idle time; the decompressor draws nothing when idle.
    idle_s = whole.duration_s - busy_s
    assert whole.energy_j["gpu"] - trimmed.energy_j["gpu"] == pytest.approx(1.0 * idle_s)
    assert whole.energy_j["network"] - trimmed.energy_j["network"] == pytest.approx(0.5 * idle_s)
    assert trimmed.energy_j["decompress"] == whole.energy_j["decompress"]


def test_shares_of_the_paths_by_hand() -> None:
    shares = path_shares(load_scenario({**TINY, "system": "sparkv", "coupling": "per_head"}))
    assert shares["transmission_percent"] + shares["decode_and_copy_percent"] == pytest.approx(100)
    # 2,048 tokens x 256 values at 2 x 100 M values/s; no copy on unified memory.
    assert shares["streaming_s"] * shares["decode_and_copy_percent"] / 100 == pytest.approx(2048 * 256 / 200e6)
    assert 0 < shares["attention_percent"] < 100


def test_solver_times_tell_how_much_longer_the_greedy_is() -> None:
    figures = solver_times(load_scenario({**TINY, "system": "sparkv", "coupling": "per_head"}))
    assert figures["milp_over_greedy"] == pytest.approx(figures["milp_s"] / figures["greedy_s"])
    assert figures["greedy_gap"] > -1e-3


@pytest.mark.long
def test_all_of_sparkv(tmp_path: Path) -> None:
    report = reproduce_paper("sparkv", tmp_path)
    assert len(report["claims"]) == 25
    assert all(claim["ours"] is not None for claim in report["claims"])
    assert all(cell["outcome"] == "done" for cell in report["cells"])
    # What was fitted on a claim hits it, or the fit is stale.
    assert all(claim["verdict"] == "hit" for claim in report["claims"] if claim["fitted"])
    # No verdict rests on one seed, save on figures that are the machine's.
    assert {claim["id"] for claim in report["claims"] if claim["seeds"] < 3} == {"S18", "S19"}
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(report))
    assert sorted(path.name for path in (tmp_path / "pictures").glob("*.png")) == [
        "claims.png", "robustness.png", "ttft.png",
    ]  # fmt: skip

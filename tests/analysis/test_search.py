"""Searches: which points they try, what they make of results, and that nothing but the seed decides."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from tiny import DECODING, LOADING, STREAMED, as_yaml

from kvferry.analysis import search_result
from kvferry.analysis.dataset import read_points
from kvferry.analysis.executors.choice import InProcess
from kvferry.analysis.executors.cores import Cores
from kvferry.analysis.search import Search, load_search, run_search
from kvferry.analysis.search_result import result_of, whole_name, write_result
from kvferry.analysis.search_spec import ObjectiveSpec, constraint_of
from kvferry.analysis.study_base import bundled_names
from kvferry.cli.search import _show
from kvferry.pipelines.checks import names_in_use
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.scenarios.loader import Check, load_scenario
from kvferry.specs.base import BadKey
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

Call = Callable[..., tuple[int, str, str]]

BASE = as_yaml({"base": STREAMED})
SEARCH = (
    BASE
    + """\
space:
  link.rtt: {from: 1 ms, to: 100 ms, log: true}
  workload.context: [1Ki, 2Ki, 4Ki, 8Ki]
objectives: [ttft_s, {metric: energy_j, better: low}]
constraints: [ttft_s <= 0.09 s]
points: 24
at_once: 6
"""
)


pytestmark = pytest.mark.usefixtures("here")


def written(text: str = SEARCH, check: Check | None = None) -> Search:
    Path("search.yaml").write_text(text)
    return load_search("search.yaml", check=check)


class StandIn:
    """Runs with as many seconds to the first token as the link's round trip, and 1 J per Ki tokens of what is left of
    8Ki. `lives`: after so many it is interrupted."""

    def __init__(self, lives: int = 10_000) -> None:
        self.asked: list[float] = []
        self.lives = lives

    def __call__(self, scenario: Scenario) -> Run:
        if len(self.asked) == self.lives:
            raise KeyboardInterrupt
        self.asked.append(scenario.link.rtt_s)
        if scenario.workload.context == 2048:
            return Run(outcome="out_of_memory", why="2Ki are one too many")
        request = RequestRecord(request=0, arrival_s=0.0, loaded_s=0.5, first_token_s=scenario.link.rtt_s)
        energy_j = 8 - scenario.workload.context / 1024
        return Run(outcome="done", requests=(request,), energy_j={"gpu": energy_j})


def found(search: Search, folder: str, run: StandIn) -> bytes:
    """The bytes of search.json and the data set."""
    tried, _ = run_search(search, Path(folder), InProcess(), run=run)
    file, _ = write_result(search, tried, Path(folder), plots=False)
    return file.read_bytes() + Path(folder, "points.parquet").read_bytes()


def test_the_front_and_why_others_are_no_solutions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry.analysis.metrics.why_no_energy", lambda *_: None)
    search = written()
    tried, n_new = run_search(search, Path("out"), InProcess(), run=StandIn())
    result = result_of(search, tried)
    assert (result["points"], len(read_points(Path("out")))) == (24, n_new)
    # With these stand-ins the longest context is the cheapest, whatever the link: the front is one point.
    solutions = [one for one in tried if one.why is None]
    assert result["solutions"] == len(solutions) > 5
    cheapest = min(solutions, key=lambda one: (one.figures["energy_j"], one.figures["ttft_s"]))
    assert result["front"][-1]["point"] == cheapest.number
    assert set(result["others"]) <= {"out of memory", "breaks ttft_s <= 0.09 s"}
    assert result["others"]["out of memory"] >= 1
    for one in tried:
        if one.why is None:
            assert one.figures["ttft_s"] <= 0.09
            assert one.settings["workload.context"] != "2Ki"
        assert 0.001 <= float(one.settings["link.rtt"].split()[0]) / 1000 <= 0.1


@pytest.mark.parametrize("objectives", ["[ttft_s, {metric: energy_j, better: low}]", "[ttft_s]"])
def test_pictures_say_on_which_device(monkeypatch: pytest.MonkeyPatch, objectives: str) -> None:
    monkeypatch.setattr("kvferry.analysis.metrics.why_no_energy", lambda *_: None)
    search = written(SEARCH.replace("[ttft_s, {metric: energy_j, better: low}]", objectives))
    tried, _ = run_search(search, Path("out"), InProcess(), run=StandIn())
    figure = search_result._picture(search, tried, result_of(search, tried))
    titles = [figure.get_suptitle(), *(panel.get_title(loc="left") or panel.get_title() for panel in figure.axes)]
    assert "search (rtx-5080-laptop: not measured)" in titles


def test_a_search_learns() -> None:
    search = written(SEARCH.replace("points: 24", "points: 60").replace("constraints: [ttft_s <= 0.09 s]\n", ""))
    run = StandIn()
    run_search(search, Path("out"), InProcess(), run=run)
    first, last = run.asked[:15], run.asked[-15:]
    assert sum(last) / 15 < sum(first) / 15


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_interrupted_it_goes_on_to_the_same_bytes(sampler: str) -> None:
    search = written(SEARCH + f"sampler: {sampler}\nseed: 3\nseeds: 2\n")
    whole_run = StandIn()
    whole = found(search, "whole", whole_run)
    total = 0
    for lives in (5, 0, 9):
        run = StandIn(lives)
        with pytest.raises(KeyboardInterrupt):
            run_search(written(SEARCH + f"sampler: {sampler}\nseed: 3\nseeds: 2\n"), Path("cut"), InProcess(), run=run)
        total += len(run.asked)
    last = StandIn()
    assert found(search, "cut", last) == whole
    # Nothing was run twice.
    assert total + len(last.asked) == len(whole_run.asked)


def test_interrupted_in_a_round_it_has_told_what_is_kept() -> None:
    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        run_search(written(), Path("cut"), InProcess(), lambda done, of: told.append(done), run=StandIn(3))
    assert told[-1] == 3


def test_the_same_points_from_one_process_and_from_two() -> None:
    search = written(SEARCH.replace("points: 24", "points: 10"))
    results = []
    for folder, executor in (("one", InProcess()), ("two", Cores(2))):
        tried, _ = run_search(search, Path(folder), executor)
        write_result(search, tried, Path(folder), plots=False)
        results.append([Path(folder, name).read_bytes() for name in ("search.json", "points.parquet")])
    assert results[0] == results[1]


def test_a_setting_is_an_objective_in_si_units() -> None:
    search = written(SEARCH.replace("{metric: energy_j, better: low}", "{metric: workload.context, better: high}"))
    tried, _ = run_search(search, Path("found"), InProcess(), run=StandIn())
    result = result_of(search, tried)
    assert {one["settings"]["workload.context"] for one in result["front"]} == {"8Ki"}
    assert {one["figures"]["workload.context"] for one in result["front"]} == {8192.0}
    assert write_result(search, tried, Path("found"))[1], "drawn too"
    with pytest.raises(InputError, match="neither is better as such"):
        written(SEARCH.replace("{metric: energy_j, better: low}", "workload.context"))
    with pytest.raises(InputError, match="write {metric: workload.context, better: low}, or high"):
        written(SEARCH.replace("{metric: energy_j, better: low}", "workload.context"))
    with pytest.raises(InputError, match="'system' is no metric"):
        written(SEARCH.replace("{metric: energy_j, better: low}", "system"))


@pytest.mark.parametrize("metric", ["machines.cloud.count", "budget.memory", "device.memory.capacity", "budget.kv"])
def test_less_of_what_is_paid_for_is_better(metric: str) -> None:
    assert ObjectiveSpec(metric=metric).lower
    assert not ObjectiveSpec(metric=metric, better="high").lower
    with pytest.raises(BadKey):
        _ = ObjectiveSpec(metric="device.memory.bytes_per_s").lower


def test_a_setting_that_is_an_objective_is_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    search = written(SEARCH.replace("{metric: energy_j, better: low}", "{metric: workload.context, better: high}"))
    tried, _ = run_search(search, Path("found"), InProcess(), run=StandIn())
    result = result_of(search, tried)
    shown = pd.DataFrame([one["settings"] | {"point": one["point"]} for one in result["front"]])
    _show(result, shown, len(tried), [])
    assert capsys.readouterr().out.count("workload.context") == 1


def test_points_that_are_not_valid_are_not_run() -> None:
    text = SEARCH.replace("[1Ki, 2Ki, 4Ki, 8Ki]", "[0, 4Ki]").replace("constraints: [ttft_s <= 0.09 s]\n", "")
    search = written(text + "where: [link.rtt < 50 ms]\n")
    run = StandIn()
    tried, n_new = run_search(search, Path("out"), InProcess(), run=run)
    result = result_of(search, tried)
    assert result["others"]["not a valid scenario"] + result["others"].get("left out by a condition", 0) + n_new == 24
    assert max(run.asked) < 0.05
    with pytest.raises(InputError, match=r"search.yaml:10: workload.context: 0"):
        run_search(written(SEARCH.replace("[1Ki, 2Ki, 4Ki, 8Ki]", "[0]")), Path("none"), InProcess(), run=run)


@pytest.mark.parametrize(
    ("text", "metric", "value", "excess"),
    [
        ("ttft_s <= 4 s", "ttft_s", 5.0, 0.25),
        ("ttft_s <= 4", "ttft_s", 3.0, -0.25),
        ("memory_peak_bytes <= 2 KiB", "memory_peak_bytes", 4096.0, 1.0),
        ("throughput_tokens_per_s >= 20", "throughput_tokens_per_s", 15.0, 0.25),
        ("effective_bytes_per_s >= 8 Mbit/s", "effective_bytes_per_s", 1e6, 0.0),
        ("wasted_bytes <= 0", "wasted_bytes", 7.0, 7.0),
    ],
)
def test_constraints(text: str, metric: str, value: float, excess: float) -> None:
    constraint = constraint_of(text)
    assert constraint.metric == metric
    assert constraint.excess(value) == pytest.approx(excess)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SEARCH.replace("ttft_s,", "ttft_x,"), "search.yaml:11: objectives.0: 'ttft_x' is no metric; did you"),
        (SEARCH.replace("ttft_s,", "link_bytes,"), "search.yaml:11: objectives.0.better: is missing"),
        (SEARCH.replace("0.09 s", "0.09 MiB"), "constraints.0: ttft_s is a time, and '0.09 MiB' a"),
        (SEARCH.replace("ttft_s <= ", "ttft_s = "), "constraints.0: 'ttft_s = 0.09 s' is no constraint"),
        (SEARCH.replace("0.09 s", "nan"), "constraints.0: 'ttft_s <= nan' is no constraint"),
        (SEARCH.replace("0.09 s", "inf"), "constraints.0: 'ttft_s <= inf' is no constraint"),
        (SEARCH.replace("0.09 s", "1_0"), "constraints.0: 'ttft_s <= 1_0' is no constraint"),
        (SEARCH.replace("0.09 s", "1e999"), "constraints.0: 'ttft_s <= 1e999' is no constraint"),
        (
            SEARCH.replace("space:\n", "space:\n  seed: [1, 2]\n") + "seeds: 2\n",
            "search.yaml:9: space.seed: sets what seeds sets; keep one of them",
        ),
        (
            SEARCH.replace("objectives:", "  link: [{rate: 1 Gbit/s}, {trace: file}]\nobjectives:"),
            "search.yaml:11: space.link: sets what link.rtt chooses; keep one of them",
        ),
        (SEARCH.replace("to: 100 ms", "to: 100"), "search.yaml:9: space.link.rtt.to: 100 is a whole number"),
        (SEARCH.replace("at_once: 6", "at_once: 0"), "search.yaml:14: at_once: 0: must be at least 1"),
        (SEARCH.replace("points: 24", "trials: 24"), "search.yaml:13: trials: unknown key"),
        (BASE + "objectives: [ttft_s]\n", "search.yaml:1: space: is missing"),
        (SEARCH + "where: [link.rtt <]\n", "search.yaml:15: where.0: 'link.rtt <'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_search(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        written(text)
    assert message in str(error.value)


@pytest.mark.parametrize("name", bundled_names("search"))
def test_the_bundled_searches_are_good(name: str) -> None:
    search = load_search(name)
    assert len(search.spec.objectives) == 3
    with pytest.raises(InputError, match="is an axis of this study"):
        load_search(name, [f"{next(iter(search.space))}=1"])


def test_the_command(call: Call) -> None:
    Path("search.yaml").write_text(SEARCH.replace("points: 24", "points: 6"))
    code, out, err = call("search", "search.yaml", "-j", "1")
    assert (code, err) == (0, "written to runs/search\n")
    assert out.startswith("search: 6 points, ")
    code, out, err = call("search", "search.yaml", "-j", "1", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(Path("runs/search/search.json").read_text())
    assert Path("runs/search/plots/pareto.png").exists()
    assert call("search", "serach.yaml")[0] == 2


SMALL = SEARCH.replace("{from: 1 ms, to: 100 ms, log: true}", "[4 ms]").replace("[1Ki, 2Ki, 4Ki, 8Ki]", "{contexts}")


@pytest.mark.parametrize(("contexts", "n"), [("[1Ki, 4Ki]", 2), ("{from: 1021, to: 1028, log: true}", 8)])
def test_a_small_space_is_tried_whole(call: Call, contexts: str, n: int) -> None:
    Path("search.yaml").write_text(SMALL.replace("{contexts}", contexts).replace("points: 24", f"points: {n}"))
    code, out, _ = call("search", "search.yaml", "-j", "1")
    assert code == 0
    assert out.startswith(f"search: {n} points (all that there are), ") and f"{n} scenarios run now" in out
    assert len(read_points(Path("runs/search"))) == n
    assert json.loads(Path("runs/search/search.json").read_text())["sampler"] == "every point"


def test_two_descriptions_of_one_name_are_two_points() -> None:
    """A device that extends another bears its name unless it says its own."""
    devices = ["rtx-4060", {"extends": "rtx-4060", "memory": {"runtime_bytes": "1 GB"}}]
    found = load_search({"base": LOADING, "space": {"device": devices}, "objectives": ["ttft_s"]})
    tried, _ = run_search(found, Path("out"), InProcess(), run=StandIn())
    assert [one.settings for one in tried] == 2 * [{"device": "rtx-4060"}]
    assert len({key for one in tried for key in one.scenarios}) == 2


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_no_point_comes_twice(sampler: str) -> None:
    """Nine of ten contexts are drawn; a sampler alone would repeat some of them."""
    text = SMALL.replace("{contexts}", "{from: 1021, to: 1030}").replace("points: 24", "points: 9")
    tried, n_new = run_search(written(text + f"sampler: {sampler}\n"), Path("out"), InProcess(), run=StandIn())
    assert [one.number for one in tried] == list(range(9))
    assert len({one.settings["workload.context"] for one in tried}) == n_new == 9


def test_a_search_without_solutions_tells_the_nearest_point(call: Call) -> None:
    Path("s.yaml").write_text(SEARCH.replace("ttft_s <= 0.09 s", "ttft_s <= 1 us").replace("points: 24", "points: 6"))
    code, out, _ = call("search", "s.yaml", "-o", "out")
    assert code == 1
    found = json.loads(Path("out/search.json").read_text())
    least_s = min(read_points(Path("out"))["ttft_s"])
    assert found["nearest"]["figures"] == {"ttft_s": least_s}
    assert f"nearest: point {found['nearest']['point']} (link.rtt " in out


def test_settings_without_effect_make_no_other_point() -> None:
    """Streaming alone has no schedule: 2 points of it, and 4 of the other system."""
    text = SEARCH.replace("link.rtt: {from: 1 ms, to: 100 ms, log: true}", "system: [stream-only, sparkv]")
    text = text.replace("[1Ki, 2Ki, 4Ki, 8Ki]", "[1Ki, 4Ki]\n  policies.schedule: [greedy, milp]")
    tried, _ = run_search(written(text, names_in_use), Path("out"), InProcess(), run=StandIn())
    assert [one.system for one in tried] == ["stream-only"] * 2 + ["sparkv"] * 4
    few = text.replace("points: 24", "points: 7")
    tried, _ = run_search(written(few, names_in_use), Path("few"), InProcess(), run=StandIn())
    assert sorted(one.system for one in tried) == ["sparkv"] * 4 + ["stream-only"] * 2


def test_whole_numbers_are_printed_as_such(call: Call) -> None:
    """The best of three: the longest context costs least, and is an objective itself."""
    objectives = "[{metric: workload.context, better: high}]"
    text = SMALL.replace("{contexts}", "{from: 1021, to: 1023}")
    Path("search.yaml").write_text(text.replace("[ttft_s, {metric: energy_j, better: low}]", objectives))
    code, out, _ = call("search", "search.yaml", "-j", "1")
    assert code == 0
    (row,) = [line.split() for line in out.splitlines() if line.strip().startswith("2 ")]
    assert row[:4] == ["2", "4", "ms", "1023"]
    (best,) = json.loads(Path("runs/search/search.json").read_text())["front"]
    assert repr(best["figures"]["workload.context"]) == "1023"


def test_the_search_in_the_docs_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "search.md").read_text()
    search = written(text.split("```yaml\n")[1].split("```")[0])
    assert (search.name, len(search.space), len(search.seeds)) == ("offloading", 3, 3)


@pytest.mark.parametrize(
    ("measures", "name"),
    [
        (["decode"], "decode_tokens_per_s"),
        (["end_to_end"], "end_to_end_tokens_per_s"),
        (["decode", "end_to_end"], "throughput_tokens_per_s"),
        ([], "throughput_tokens_per_s"),
    ],
)
def test_a_rate_has_its_whole_name(measures: list[str], name: str) -> None:
    scenarios = [load_scenario({**DECODING, "measure": measure}) for measure in measures]
    assert whole_name("throughput_tokens_per_s", scenarios) == name
    assert whole_name("energy_j", scenarios) == "energy_j"
    assert whole_name("throughput_tokens_per_s", [load_scenario(LOADING)]) == "throughput_tokens_per_s"

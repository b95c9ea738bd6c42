"""Tuning a scenario, the file that keeps what was found, and runs that take it: what the user meets."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.tuned import MOST_FILE_BYTES
from kvferry.pipelines.decoding.tuning import _reuse_rates, limits_of, reuse_table, tune_scenario
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.solutions import Solutions
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError

MIB = 2**20
SMALL = ("workload.batch=2", "workload.context=8Ki", "workload.decoded=8")


@pytest.fixture(scope="module")
def text() -> str:
    """Of a tuning for 2 sequences of 8K tokens with 100 MiB each."""
    scenario = load_scenario("kvswap/throughput", SMALL)
    return tune_scenario(scenario, limits_of(scenario, budget_bytes=200.0 * MIB)).to_json()


@pytest.fixture
def file(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("tuned.json").write_text(text)
    return Path("tuned.json")


def plan(*settings: str) -> Any:
    scenario = load_scenario("kvswap/throughput", [*SMALL, *settings])
    return plan_for(scenario, DECODE_SYSTEMS[scenario.system].with_policies(scenario.policy_values))


def test_every_solution_is_within_its_part_of_the_budget(text: str) -> None:
    found = Solutions.from_json(text, "x")
    assert sorted(found.solved) == [(b, s) for b in (1, 2) for s in (4096, 6144, 8192)]
    assert all(solution.memory_bytes <= solution.batch * 100 * MIB for solution in found.solved.values())


@pytest.mark.parametrize("context", ["1Ki", "4Ki", "5000", "8Ki"])
def test_a_tuned_run_has_the_memory_that_was_tuned_for(file: Path, context: str) -> None:
    # A share of 1/13 of 1,024 tokens would be 10 MiB.
    planned = plan("policies.tuned=tuned.json", f"workload.context={context}")
    assert planned.memory.sequence_bytes <= 100 * MIB
    found = Solutions.from_json(file.read_text(), "x").nearest(2, planned.context, 1000).grouping
    assert (planned.choice.group_tokens, planned.staying.slots) == (found.group_tokens, found.slots)


def test_a_tuned_run(file: Path) -> None:
    run = run_scenario(load_scenario("kvswap/throughput", [*SMALL, "policies.tuned=tuned.json"]))
    assert run.outcome == "done"
    assert run.kv_memory_peak_bytes <= 200 * MIB


def test_the_table_says_which_systems_are_tuned(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DECODE_SYSTEMS, "variant", replace(DECODE_SYSTEMS["kvswap"], about="the same by another name"))
    assert plan("system=variant", "policies.tuned=tuned.json") == plan("policies.tuned=tuned.json")
    limits = limits_of(load_scenario("kvswap/throughput", [*SMALL, "system=variant"]))
    assert limits == limits_of(load_scenario("kvswap/throughput", SMALL))


def test_a_budget_in_bytes_still_holds_in_a_tuned_run(file: Path) -> None:
    with pytest.raises(InputError, match="budget.kv: 5.2 MB per sequence"):
        plan("policies.tuned=tuned.json", "budget.kv_share=null", "budget.kv=10 MiB")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["workload.batch=3"], "a batch of 3 with 8,192 tokens and 1,000 decoded each is more than was tuned for"),
        (["workload.context=9Ki"], "at most 2 with 8,192 and 1,000; tune again"),
        (["workload.output=1001"], "with 8,192 tokens and 1,001 decoded"),
        (["policies.group_tokens=16"], "policies.group_tokens: policies.tuned holds it already"),
        (["policies.slots=500"], "policies.slots: policies.tuned holds it already"),
        (["policies.tuned=not-there.json"], "policies.tuned: 'not-there.json' is not there"),
        (["policies.tuned=/dev/zero"], "policies.tuned: '/dev/zero' is a pipe or a device, not a regular file"),
        (["policies.tuned=large.json"], f"large.json has more than {MOST_FILE_BYTES:,} bytes, which no tuning needs"),
        (["system=flexgen"], "policies.tuned: holds parameters of kvswap, and this system has others"),
    ],
)
def test_what_a_tuned_run_refuses(file: Path, settings: list[str], message: str) -> None:
    with open("large.json", "wb") as large:
        large.truncate(MOST_FILE_BYTES + 1)
    with pytest.raises(InputError, match=message):
        plan("policies.tuned=tuned.json", *settings)


def edited(text: str, *path: Any, to: Any) -> str:
    document = json.loads(text)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "to", "message"),
    [
        (("limits", "most_group_tokens"), 0, "limits.most_group_tokens: .* greater than or equal to 1"),
        (("limits", "budget_bytes"), float("nan"), "limits.budget_bytes"),
        (("limits", "beta"), 1, "limits.beta: Extra inputs"),
        (("solutions", 0, "context"), "x", "solutions.0.context: .* valid integer"),
        (("solutions", 0, "batch"), 4.5, "solutions.0.batch: .* valid integer"),
        (("solutions", 0, "grouping", "group_tokens"), 4.5, "grouping.group_tokens: .* valid integer"),
        (("solutions", 0, "grouping", "slots"), -1, "1 slot or more, or 0 for no reuse, not -1"),
        (("solutions", 0, "grouping"), None, "solutions.0.grouping"),
        (("solutions",), [], "solutions: "),
        (("version",), 1, "version: .*; tune again"),
        (("format",), "other", "format: "),
    ],
)
def test_an_edited_file_is_the_users_to_mend(text: str, path: tuple[Any, ...], to: Any, message: str) -> None:
    with pytest.raises(InputError, match=rf"x\.json: not what kvferry tune writes: .*{message}"):
        Solutions.from_json(edited(text, *path, to=to), "x.json")


@pytest.mark.parametrize(("faults", "more"), [(3, ""), (4, "; and 1 more")])
def test_of_many_faults_the_first_are_told(text: str, faults: int, more: str) -> None:
    for n in range(faults):
        text = edited(text, "limits", f"key{n}", to=1)
    said = "; ".join(f"limits.key{n}: Extra inputs are not permitted" for n in range(3))
    with pytest.raises(InputError, match=f"{said}{more}; tune again"):
        Solutions.from_json(text, "x.json")


@pytest.mark.parametrize("other", ["", "[]", "{}", "null", "[" * 100_000, '{"format": 1}'])
def test_other_files_are_refused(other: str) -> None:
    with pytest.raises(InputError, match=r"x\.json: not what kvferry tune writes"):
        Solutions.from_json(other, "x.json")


def test_a_file_without_a_solution_for_long_contexts(file: Path, text: str) -> None:
    document = json.loads(text)
    document["solutions"] = [row for row in document["solutions"] if row["context"] < 8192]
    file.write_text(json.dumps(document))
    with pytest.raises(InputError, match="at most 2 with 6,144 and 1,000; tune again"):
        plan("policies.tuned=tuned.json")


def test_limits_are_the_scenarios_unless_given() -> None:
    scenario = load_scenario("kvswap/throughput", [*SMALL, "policies.selected_tokens=200"])
    limits = limits_of(scenario)
    assert (limits.most_batch, limits.most_context, limits.output) == (2, 8192, 1000)
    # 0.0769 of 8,192 tokens of 128 KiB, for both.
    assert limits.budget_bytes == pytest.approx(2 * 0.0769 * 8192 * 131072)
    assert limits.selected_tokens == 200
    whole = load_scenario("kvswap/throughput", [*SMALL, "budget={kv: 300 MiB}"])
    assert limits_of(whole, most_batch=3).budget_bytes == 300 * MIB
    assert limits_of(scenario, relaxation=0.3).relaxation == 0.3
    # Steps grow with what there is to solve for.
    many = limits_of(scenario, most_batch=64, most_context=131072)
    assert len(many.batches()) * len(many.contexts()) <= 18 * 17


def test_selected_tokens_are_those_of_the_scenario(text: str) -> None:
    scenario = load_scenario("kvswap/throughput", [*SMALL, "policies.selected_tokens=200", "workload.batch=1"])
    found = tune_scenario(scenario, limits_of(scenario, least_context=8192))
    assert [s.grouping.groups for s in found.solved.values()] == [
        -(-200 // found.solved[1, 8192].grouping.group_tokens)
    ]


def test_reading_ahead_or_not_is_the_scenarios() -> None:
    settings = [*SMALL, "workload.batch=1", "policies.ahead=false"]
    scenario = load_scenario("kvswap/throughput", settings)
    found = tune_scenario(scenario, limits_of(scenario, least_context=8192)).solved[1, 8192]
    assert (found.overlap, found.hidden) == (0.0, False)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("system=vllm", "system: vllm has not the parameters that kvferry tune finds; give --set system=kvswap"),
        ("policies.group_tokens=16", "policies.group_tokens: is what kvferry tune finds"),
        ("policies.reuse=false", "policies.reuse: is what kvferry tune finds"),
        ("policies.tuned=tuned.json", "policies.tuned: is what kvferry tune finds"),
        ("policies.selector=landmarks", "policies.selector: kvferry tune knows kvswap's own way alone"),
        ("workload.selections=x.npz", "workload.selections: recorded for one group size"),
    ],
)
def test_nothing_is_ignored_in_silence(
    setting: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.npz").touch()
    Path("tuned.json").touch()
    scenario = load_scenario("kvswap/throughput", [*SMALL, setting])
    with pytest.raises(InputError, match=message):
        limits_of(scenario)


def test_planners_believe_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Stopped(Exception):
        pass

    def delays(device: Any, model: Any, costs: str) -> None:
        asked.append(costs)
        raise Stopped

    monkeypatch.setattr("kvferry.pipelines.decoding.tuning.Delays", delays)
    scenario = load_scenario("kvswap/throughput", SMALL)
    two = scenario.model_copy(update={"costs": scenario.costs.model_copy(update={"truth": "table"})})
    with pytest.raises(Stopped):
        tune_scenario(two, limits_of(two))
    assert asked == ["roofline"]


def test_the_reuse_table_knows_context_and_group_size() -> None:
    scenario = load_scenario("kvswap/throughput")
    limits = limits_of(scenario, most_context=16384)
    table = reuse_table(scenario, limits)
    assert (table.contexts, table.group_tokens) == ((4096, 8192, 16384), (1, 2, 4, 8))
    assert (np.diff(table.rates, axis=2) >= 0).all()
    # Of a short context a larger share is selected, so neighbouring steps share more, and a buffer holds more of it.
    assert table(4096, 4, 400) > table(16384, 4, 400) + 0.05
    assert table(4096, 4, 1600) > table(16384, 4, 1600) + 0.05
    # In between, at what a stream of its own gives.
    own = _reuse_rates(scenario, limits, 12288, 6)
    assert [table(12288, 6, tokens) for tokens in table.capacity_tokens] == pytest.approx(own, abs=0.01)


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """In a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return call


TUNE = (
    "tune",
    "kvswap/throughput",
    "--most-batch",
    "1",
    "--most-context",
    "8Ki",
    "--least-context",
    "8Ki",
    "--most-group",
    "2",
)


def test_options_reach_the_search(call: Call) -> None:
    options = ("--relaxation", "0.3", "--tolerance", "0.1", "--most-group", "12", "--most-compression", "24")
    more = ("--buffer-step", "100", "--selected-tokens", "480", "--kv-memory", "90 MiB", "--context-step", "1Ki")
    code, out, err = call(*TUNE, *options, *more, "--batch-step", "2", "--json", "-o", "tuned.json")
    assert code == 0, err
    assert Path("tuned.json").read_text() == out
    assert json.loads(out)["limits"] == {
        "budget_bytes": 90.0 * MIB,
        "most_context": 8192,
        "most_batch": 1,
        "output": 1000,
        "least_context": 8192,
        "context_step": 1024,
        "batch_step": 2,
        "selected_tokens": 480,
        "most_group_tokens": 12,
        "most_compression": 24.0,
        "relaxation": 0.3,
        "tolerance": 0.1,
        "slots_step_tokens": 100,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--kv-memory", "-5 MiB"), "--kv-memory: -5242880.0: must be above 0"),
        (("--kv-memory", "5"), "--kv-memory: '5' has no unit"),
        (("--most-context", "many"), "--most-context: 'many' is not a count"),
        (("--most-group", "0"), "--most-group: 0: must be at least 1"),
        (("--relaxation", "2"), "--relaxation: 2.0: must be at most 1"),
        (("--most-batch", "65"), "--most-batch: 65: must be at most 64"),
        (("--context-step", "1", "--most-context", "1M"), "--context-step: makes 1,983,620 pairs"),
        (("--set", "policies.selected_tokens=9", "--selected-tokens", "8"), "policies.selected_tokens: 9, and 8 asked"),
        # 9,192 keys of 32 numbers, and 2 x 400 + 32 entries of 4 KiB: 18,384 + 3,328 KiB.
        (("--kv-memory", "1 MiB"), "hold no selection in a context of 8,192 tokens; 21,712 KiB would"),
    ],
)
def test_what_tune_refuses(call: Call, options: tuple[str, ...], message: str) -> None:
    code, out, err = call(*TUNE, *options)
    assert (code, out) == (2, "")
    assert message in err


def test_the_smallest_budget_that_is_named_works(call: Call) -> None:
    _, _, err = call(*TUNE, "--kv-memory", "1 MiB", "--least-context", "4Ki")
    kib = err.split(" KiB would")[0].split(" ")[-1].replace(",", "")
    assert call(*TUNE, "--kv-memory", f"{kib} KiB", "--least-context", "4Ki")[0] == 0
    assert call(*TUNE, "--kv-memory", f"{int(kib) - 1} KiB", "--least-context", "4Ki")[0] == 2


def test_tuned_for_kv_in_another_tier(file: Path, call: Call) -> None:
    there = ("--set", "policies.placement=host")
    code, out, err = call(*TUNE, "--kv-memory", "90 MiB", *there, "--json", "-o", "host.json")
    assert code == 0, err
    on_storage, in_host = json.loads(file.read_text()), json.loads(out)
    assert (on_storage["tier"], in_host["tier"]) == ("storage", "host")
    # Copies on unified memory take no time, so no buffer is needed.
    (found,) = in_host["solutions"]
    assert (found["io_s"], found["grouping"]["slots"]) == (0.0, 0)
    assert call(*TUNE, "--kv-memory", "90 MiB", *there)[1].startswith("tuned for KV that lies in host")
    with pytest.raises(InputError, match="host.json was tuned for KV in host, policies.placement has it in storage"):
        plan("policies.tuned=host.json", "workload.batch=1")
    with pytest.raises(InputError, match="tuned.json was tuned for KV in storage, policies.placement has it in host"):
        plan("policies.tuned=tuned.json", "policies.placement=host")
    tuned = plan("policies.tuned=host.json", "workload.batch=1", "policies.placement=host")
    assert tuned.choice.group_tokens == found["grouping"]["group_tokens"]


@pytest.mark.parametrize("placement", ["device", "all-or-nothing"])
def test_placements_that_leave_nothing_to_tune_are_refused(call: Call, placement: str) -> None:
    code, _, err = call(*TUNE, "--set", f"policies.placement={placement}")
    assert code == 2
    assert "policies.placement: " in err
    assert "storage, host or progressive would do" in err


def test_rates_of_a_solution_are_those_of_a_tuned_run(file: Path) -> None:
    found = Solutions.from_json(file.read_text(), "x").solved[2, 8192]
    settings = [*SMALL, "policies.tuned=tuned.json", "workload.decoded=40"]
    run = run_scenario(load_scenario("kvswap/throughput", settings))
    assert run.decoded is not None
    times_s = run.decoded.token_times_s
    assert found.prefill_s == pytest.approx(times_s[0], rel=1e-3)
    # The buffer fills during the first steps.
    simulated = 2 * 20 / (times_s[-1] - times_s[-21])
    assert found.tokens_per_s == pytest.approx(simulated, rel=0.1)

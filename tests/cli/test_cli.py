"""The command: exit codes, what goes to which stream, and what becomes of errors. Runs are stood in for here."""

import errno
import gc
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import SMALL, Call, result

from kvferry.api.scenario import load
from kvferry.pipelines.checks import check_names
from kvferry.pipelines.record import RequestRecord, Run
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_device, load_scenario
from kvferry.specs import human
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario
from kvferry.traces.chunks import generate_chunks

pytestmark = pytest.mark.usefixtures("small_here")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What stands in for a run: by system, a Run or something to raise."""
    outcomes: dict[str, Any] = {"stream-only": result(2.0), "local-prefill": result(3.0)}

    def run_scenario(scenario: Scenario, progress: Callable[[int, int], None], **_: Any) -> Run:
        progress(1, 1)
        outcome = outcomes[scenario.system]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setitem(sys.modules, "kvferry.pipelines.run", SimpleNamespace(run_scenario=run_scenario))
    return outcomes


def test_run_prints_a_table_and_leaves_a_folder(call: Call, runs: dict[str, Any]) -> None:
    code, out, err = call("run", "small.yaml")
    assert code == 0
    assert "small: stream-only" in out
    assert "2.00 s" in out
    assert err == "written to runs/small-stream-only\n"
    kept = Path("runs/small-stream-only")
    assert load_scenario(kept / "scenario.yaml") == load_scenario("small.yaml")
    assert json.loads((kept / "metrics.json").read_text())["metrics"]["ttft_s"] == 2.0


def test_json_is_one_object_and_nothing_else(call: Call, runs: dict[str, Any]) -> None:
    code, out, err = call("run", "small.yaml", "--json", "--seed", "5")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["outcome"], found["scenario"], found["system"], found["seed"]) == ("done", "small", "stream-only", 5)
    assert found["metrics"]["ttft_s"] == 2.0
    assert found["versions"]["kvferry"]
    assert found["provenance"]["link"] == "106250000 B/s"
    assert not Path("runs").exists()


def test_json_with_a_folder(call: Call, runs: dict[str, Any]) -> None:
    code, out, _ = call("run", "small.yaml", "--json", "--output", "here")
    assert code == 0
    assert json.loads(out) == json.loads(Path("here/metrics.json").read_text())


def test_the_system_is_the_last_word(call: Call, runs: dict[str, Any]) -> None:
    _, out, _ = call("run", "small.yaml", "--json", "--set", "system=stream-only", "--system", "local-prefill")
    assert json.loads(out)["system"] == "local-prefill"


def test_another_system_runs_with_its_own_policies() -> None:
    assert load("kvswap/live", system="kvswap") == load_scenario("kvswap/live")
    other = load("kvswap/live", ["policies.selected_tokens=64"], system="shadowkv")
    assert (other.system, other.policy_values) == ("shadowkv", {"selected_tokens": 64})


@pytest.mark.parametrize(
    "arguments",
    [("run", "quickstart", "--system", "shadowkv"), ("compare", "quickstart", "--systems", "ferry,shadowkv"),
     ("run", "quickstart", "--set", "system=shadowkv")],
)  # fmt: skip
def test_a_system_for_another_workload_leads_to_a_scenario_that_has_it(call: Call, arguments: tuple[str, ...]) -> None:
    code, _, err = call(*arguments)
    assert code == 2
    assert "'shadowkv' is a system for workload kind decode, and this workload is context-reuse" in err
    assert "kvferry run decode --system shadowkv" in err
    assert load_scenario("kvswap/throughput", ["policies={}", "system=shadowkv"])


def test_a_result_says_that_the_device_was_not_measured(call: Call, runs: dict[str, Any]) -> None:
    for command in (("run", "small.yaml"), ("compare", "small.yaml", "--systems", "stream-only")):
        assert "rtx-5080-laptop is not a measured device" in call(*command)[1]
    found = json.loads(call("run", "small.yaml", "--json")[1])
    assert found["provenance"]["device"]["measured"] is False


def test_devices_show_each_figure_beside_its_source(call: Call) -> None:
    _, out, _ = call("devices", "jetson-agx-orin-sparkv")
    line = next(line for line in out.splitlines() if "gpu.layer_s" in line)
    layer_s = load_device("jetson-agx-orin-sparkv").processors["gpu"].layer_s
    assert human.seconds(layer_s) in line
    assert "fitted on the TensorRT-Edge-LLM rows" in line
    assert "page_read_s" in out, "storage has sources of its own"


def test_runtimes_show_what_software_takes_and_where_that_was_fitted(call: Call) -> None:
    _, out, _ = call("runtimes")
    line = next(line for line in out.splitlines() if "kvswap-prototype" in line)
    assert "at least 3.80 ms" in line
    assert "jetson-agx-orin-kvswap" in line
    assert "fitted on KVSwap Tab. 4" in call("runtimes", "kvswap-prototype")[1]
    assert json.loads(call("runtimes", "ideal", "--json")[1])["runtimes"][0]["layer_s"] == "0 s"


def test_out_of_memory_is_a_result(call: Call, runs: dict[str, Any]) -> None:
    runs["stream-only"] = Run(outcome="out_of_memory", why="weights need 9 GiB")
    code, out, _ = call("run", "small.yaml", "--json")
    assert code == 0
    assert (json.loads(out)["outcome"], json.loads(out)["why"]) == ("out_of_memory", "weights need 9 GiB")
    code, out, _ = call("run", "small.yaml")
    assert code == 0
    assert "out of memory: weights need 9 GiB" in out


def test_compare_shows_the_best_first(call: Call, runs: dict[str, Any]) -> None:
    code, out, err = call("compare", "small.yaml", "--systems", "local-prefill, stream-only", "--output", "both")
    assert code == 0
    assert out.index("stream-only") < out.index("local-prefill")
    assert "1.50x" in out
    # A busy machine that takes ten seconds for pictures says before how many are drawn.
    assert err.endswith("written to both; pictures in both/plots\n")
    assert json.loads(Path("both/comparison.json").read_text())["systems"].keys() == {"stream-only", "local-prefill"}
    assert load_scenario("both/local-prefill/scenario.yaml").system == "local-prefill"


def test_results_do_not_overwrite_others(call: Call, runs: dict[str, Any]) -> None:
    def folders(*arguments: str) -> set[str]:
        assert call(*arguments, "--no-plots")[0] == 0
        return {path.name for path in Path("runs").iterdir()}

    assert folders("run", "small.yaml") == {"small-stream-only"}
    assert folders("run", "small.yaml") == {"small-stream-only"}, "the same run gives the same results"
    changed = folders("run", "small.yaml", "--set", "link.rtt=20 ms", "--seed", "3")
    assert changed == {"small-stream-only", "small-stream-only-rtt-20-ms-seed-3"}
    Path("small.yaml").write_text(SMALL.replace("4Ki", "8Ki"))
    assert folders("run", "small.yaml") - changed == {"small-stream-only-2"}
    assert load_scenario("runs/small-stream-only/scenario.yaml").workload.context == 4096
    assert load_scenario("runs/small-stream-only-2/scenario.yaml").workload.context == 8192


def test_a_compare_without_a_folder_keeps_its_results(call: Call, runs: dict[str, Any]) -> None:
    code, _, err = call("compare", "small.yaml", "--systems", "stream-only,local-prefill")
    assert (code, err) == (0, "written to runs/small-compared\n")
    assert Path("runs/small-compared/comparison.json").exists()
    assert not Path("runs/small-compared/plots").exists()
    _, _, err = call("compare", "small.yaml", "--systems", "stream-only", "--plots")
    assert err.endswith("written to runs/small-compared-2; pictures in runs/small-compared-2/plots\n")
    assert Path("runs/small-compared-2/plots/bars.png").exists()


def test_real_runs_of_one_scenario_are_kept_apart(call: Call, runs: dict[str, Any]) -> None:
    for _ in range(2):
        assert call("run", "small.yaml", "--no-plots", "--set", "backend=torch")[0] == 0
    assert {path.name for path in Path("runs").iterdir()} == {
        "small-stream-only-backend-torch", "small-stream-only-backend-torch-2"
    }  # fmt: skip


def test_a_folder_that_takes_no_files_is_refused_before_the_run(call: Call, runs: dict[str, Any]) -> None:
    # /proc has the permissions, and takes no files.
    runs["stream-only"] = AssertionError("it ran")
    if not Path("/proc/self").exists():
        pytest.skip("no /proc here")
    code, _, err = call("run", "small.yaml", "--output", "/proc/kvferry")
    assert code == 2
    assert err.startswith("kvferry: --output /proc/kvferry: cannot write in /proc: ")


def test_compare_as_json(call: Call, runs: dict[str, Any]) -> None:
    code, out, err = call("compare", "small.yaml", "--systems", "local-prefill,stream-only", "--json")
    assert (code, err) == (0, "")
    assert {name: one["metrics"]["ttft_s"] for name, one in json.loads(out)["systems"].items()} == {
        "local-prefill": 3.0,
        "stream-only": 2.0,
    }


def test_an_interrupted_compare_keeps_what_is_done(call: Call, runs: dict[str, Any]) -> None:
    runs["local-prefill"] = KeyboardInterrupt()
    code, out, err = call("compare", "small.yaml", "--systems", "stream-only,local-prefill", "--output", "both")
    assert code == 130
    assert "stream-only" in out
    assert "interrupted; kept 1 of 2 systems" in err
    assert Path("both/stream-only/metrics.json").exists()


def test_an_interrupted_run(call: Call, runs: dict[str, Any]) -> None:
    runs["stream-only"] = KeyboardInterrupt()
    assert call("run", "small.yaml") == (130, "", "")


def test_an_interrupted_run_keeps_what_is_done(call: Call, runs: dict[str, Any]) -> None:
    runs["stream-only"] = result(2.0, outcome="interrupted", why="1 of 3 requests")
    code, out, err = call("run", "small.yaml", "--set", "workload.requests=3", "--output", "kept")
    assert code == 130
    assert "2.00 s" in out
    assert err.endswith("interrupted; kept 1 of 3 requests\n")
    assert Path("kept/metrics.json").exists()
    code, out, _ = call("run", "small.yaml", "--set", "workload.requests=3", "--json")
    assert (code, json.loads(out)["metrics"]["requests"]) == (130, 1)
    runs["stream-only"] = Run(outcome="interrupted", why="0 of 1 requests")
    code, out, err = call("run", "small.yaml", "--output", "none")
    assert (code, out, err) == (130, "", "interrupted; kept 0 of 1 requests\n")
    assert not Path("none").exists()
    # A batch that had tokens to go.
    runs["stream-only"] = result(2.0, outcome="interrupted", why="3 of 9 tokens of 2 sequences")
    code, out, err = call("run", "small.yaml", "--output", "kept")
    assert (code, err.splitlines()[-1]) == (130, "interrupted; kept 3 of 9 tokens of 2 sequences")
    code, out, _ = call("run", "small.yaml", "--json")
    assert json.loads(out)["outcome"] == "interrupted"
    code, _, err = call("compare", "small.yaml", "--systems", "local-prefill,stream-only")
    assert (code, "kept 1 of 2 systems" in err) == (130, True)


def test_a_part_of_a_run_is_not_compared(call: Call, runs: dict[str, Any]) -> None:
    runs["local-prefill"] = result(1.0, outcome="interrupted", why="1 of 2 requests")
    both = ("compare", "small.yaml", "--systems", "stream-only,local-prefill")
    code, out, err = call(*both, "--set", "workload.requests=2")
    assert (code, "local-prefill" in out) == (130, False)
    assert "interrupted; kept 1 of 2 systems" in err


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("small.yaml", "--output small.yaml: small.yaml is a file, not a folder\n"),
        ("small.yaml/below", "is a file, not a folder\n"),
        ("", "--output '': names no folder"),
        ("/proc/nothing", "/proc"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_folder_that_cannot_be_is_reported_first(
    call: Call, runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch, command: str, output: str, message: str
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != Path("/proc"))  # for root too
    runs.clear()  # nothing is run: it would be a KeyError
    code, out, err = call(command, "small.yaml", "-o", output)
    assert (code, out) == (2, "")
    assert message in err


def test_the_folder_that_is_not_named_is_looked_at_too(call: Call, runs: dict[str, Any]) -> None:
    Path("runs").write_text("a file")
    runs.clear()
    assert call("run", "small.yaml")[0] == 2


def test_a_scenario_without_a_name(call: Call, runs: dict[str, Any]) -> None:
    code, _, err = call("run", "")
    assert code == 2
    assert err.startswith("kvferry: unknown scenario ''; known: ")


def test_what_a_regret_is_against(call: Call, runs: dict[str, Any]) -> None:
    request = RequestRecord(request=0, arrival_s=0.0, loaded_s=4.0, first_token_s=4.0, bound_s=1.0)
    runs["cachegen"] = result(4.0, requests=(request,))
    note = "regret of cachegen: against the bound at the smallest encoding"
    assert note in call("compare", "small.yaml", "--systems", "stream-only,cachegen")[1]
    assert note not in call("compare", "small.yaml", "--systems", "stream-only,local-prefill")[1]


def test_a_cost_model_that_the_device_lacks(call: Call, runs: dict[str, Any]) -> None:
    code, _, err = call("run", "small.yaml", "--set", "device=jetson-orin-nx-sparkv", "--set", "costs.truth=table")
    assert code == 2
    assert err == (
        "kvferry: --set costs.truth=table: costs.truth: table cannot price processor gpu of jetson-orin-nx-sparkv: "
        "its profile has no `measured` folder\n"
    )


def test_recorded_chunks_must_fit(call: Call, runs: dict[str, Any]) -> None:
    generate_chunks("text", 4096, 4, 2, seed=1).save(Path("ok.npz"))
    generate_chunks("text", 4096, 3, 2, seed=1).save(Path("thin.npz"))
    generate_chunks("text", 4096, 4, 2, seed=1, chunk_tokens=512).save(Path("fine.npz"))
    Path("own.yaml").write_text(SMALL.replace("4Ki tokens}", "4Ki tokens, chunks: ok.npz}"))
    assert call("run", "own.yaml")[0] == 0
    for change, message in {
        "workload.context=10Ki": "own.yaml:6: workload.chunks: holds 4,096 tokens, workload.context says 10,240",
        "workload.chunks=thin.npz": "workload.chunks: recorded with 3 layers and 2 KV heads, tiny has 4 and 2",
        "workload.chunks=fine.npz": "token chunks hold up to 512 tokens, workload.chunk_tokens says 1,024",
    }.items():
        code, _, err = call("run", "own.yaml", "--set", change)
        assert code == 2
        assert message in err
    scenario = load_scenario("own.yaml", ["workload.context=10Ki"])
    with pytest.raises(InputError, match="^workload.chunks: holds 4,096 tokens"):
        check_names(scenario)


def test_a_picture_names_itself(call: Call) -> None:
    assert call("traces", "plot", "wifi-850") == (0, "", "wifi-850.png\n")
    assert Path("wifi-850.png").exists()


def test_a_run_that_failed(call: Call, runs: dict[str, Any]) -> None:
    runs["stream-only"] = KvferryError("the link is down for ever")
    assert call("run", "small.yaml") == (1, "", "kvferry: the link is down for ever\n")


def test_a_fault_of_its_own_is_written_down(call: Call, runs: dict[str, Any]) -> None:
    runs["stream-only"] = ZeroDivisionError("float division by zero")
    code, out, err = call("run", "small.yaml")
    assert (code, out) == (1, "")
    assert err.startswith("kvferry: a fault of its own, ZeroDivisionError: float division by zero\nthe details are in ")
    assert "Traceback" not in err
    log = Path(err.partition("the details are in ")[2].partition(",")[0])
    assert "ZeroDivisionError" in log.read_text()
    log.unlink()


def test_too_little_memory_is_no_fault_of_its_own(call: Call, runs: dict[str, Any]) -> None:
    runs["stream-only"] = MemoryError("Unable to allocate 9.31 GiB")
    said = "kvferry: this machine has too little memory for it: Unable to allocate 9.31 GiB\n"
    assert call("run", "small.yaml") == (1, "", said)


def test_debug_shows_the_trace(call: Call, runs: dict[str, Any]) -> None:
    runs["stream-only"] = ZeroDivisionError("float division by zero")
    code, _, err = call("--debug", "run", "small.yaml")
    assert code == 1
    assert "Traceback" in err
    assert "the details are in" not in err


def test_a_reader_that_left_is_no_fault(call: Call, runs: dict[str, Any]) -> None:
    runs["stream-only"] = BrokenPipeError(errno.EPIPE, "Broken pipe")
    assert call("run", "small.yaml") == (1, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--set", "system=stream-onl"),
            "kvferry: --set system=stream-onl: system: unknown system 'stream-onl'; known: ",
        ),
        (("--set", "link.rtt=4"), "kvferry: --set link.rtt=4: link.rtt: 4 has no unit; write it like '4 ms'\n"),
        (
            ("--set", "policies.cdec=kivi"),
            "kvferry: --set policies.cdec=kivi: policies.cdec: unknown key; known here: codec, serving;",
        ),
        (
            ("--set", "costs.truth=rooflin"),
            "kvferry: --set costs.truth=rooflin: costs.truth: unknown cost model 'rooflin'; ",
        ),
        (
            ("--set", "load.trace=wifi-campos"),
            "kvferry: --set load.trace=wifi-campos: load.trace: no trace is called 'wifi-c",
        ),
        (("--set", "a=1", "--set", "b=1"), "kvferry: --set a=1: a: unknown key; known here: "),
    ],
)
def test_wrong_input_is_two(call: Call, runs: dict[str, Any], arguments: tuple[str, ...], message: str) -> None:
    code, out, err = call("run", "small.yaml", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)


def test_systems_that_are_none(call: Call, runs: dict[str, Any]) -> None:
    code, _, err = call("compare", "small.yaml", "--systems", "stream-only,streem")
    assert code == 2
    assert err.startswith("kvferry: --systems: unknown system 'streem'; known: ")
    assert call("compare", "small.yaml", "--systems", ",")[2].startswith("kvferry: --systems: none is named; known: ")


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("run",), ("run", "small.yaml", "--nonsense"), ("run", "x", "--seed", "-1")]
)
def test_wrong_usage_is_two(call: Call, arguments: tuple[str, ...]) -> None:
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert "Usage: kvferry" in err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--equal-tokens", "0", "must be at least 1, not 0"),
        ("--seeds", "1", "must be at least 2, not 1"),
        ("--equal-tokens", "x", "must be a whole number, not x"),
    ],
)
def test_an_options_number_out_of_its_bounds(
    option: str, value: str, said: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, _, err = call("compare", "small.yaml", option, value)
    assert code == 2
    # A typer that leaves it to click says it in click's words.
    assert f"'{option}': {said}" in err or f"{value!r} is not a valid" in err or f"{value} is not in the range" in err


def test_schedule_shows_its_rows(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = {"solve_s": 0.02, "makespan_s": 1.5, "completion_s": 1.5, "bound_s": 1.4, "bound_gap": 0.01}
    rows = [{"schedule": "chain", **planned, "load_s": 1.2, "regret": 0.5}]
    monkeypatch.setattr("kvferry.api.schedule.compare_schedules", lambda scenario, solver: rows)
    code, out, _ = call("schedule", "small.yaml")
    assert code == 0
    heading, figures = out.splitlines()[2], out.splitlines()[4]
    assert heading.split()[-4:] == ["load", "load's", "bound", "regret"]
    assert "plan's bound" in heading
    # Two bounds: the plan's, and the one that the load's regret is against: 1.2 s / 1.5.
    assert figures.split()[-8:] == ["1.00", "%", "1.20", "s", "800", "ms", "50.0", "%"]
    assert json.loads(call("schedule", "small.yaml", "--json")[1])["schedules"] == rows


def test_reproduce_shows_claims_and_counts_them(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = {
        "id": "S1",
        "paper_low": 1.3,
        "paper_high": 1.6,
        "ours": 1.4,
        "ours_low": 1.4,
        "ours_high": 1.4,
        "seeds": 1,
        "fitted": False,
    }
    several = {"seeds": 5, "seeds_hit": 2, "ours_range": [1.1, 1.5]}
    report = {
        "paper": "sparkv",
        "claims": [
            claim | {"verdict": "hit", "why": ""},
            claim | several | {"id": "S2", "verdict": "miss", "why": "too slow", "paper_high": 1.3},
            claim | {"id": "S3", "verdict": "not_applicable", "why": "no GPU", "ours_low": None, "ours_high": None},
        ],
        "cells": [],
        "tables": [{"name": "Table I", "status": "shape", "why": "not printed"}],
        "not_measured": ["tiny"],
    }
    module = SimpleNamespace(reproduce_paper=lambda paper, output, seeds, progress: report)
    monkeypatch.setitem(sys.modules, "kvferry.analysis.reproduce", module)
    code, out, err = call("reproduce", "sparkv")
    assert code == 0, err
    assert "not measured: tiny (kvferry devices says where figures are from)" in out
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert ["S1", "1.3-1.6", "1.4", "-", "-", "hit"] in lines
    assert ["S2", "1.3", "1.4", "1.1-1.5", "2", "of", "5", "miss", "too", "slow"] in lines
    assert ["S3", "1.3-1.6", "-", "-", "-", "not_applicable", "no", "GPU"] in lines
    assert lines[-1] == ["1", "hits,", "1", "misses,", "1", "without", "a", "verdict"]
    assert json.loads(call("reproduce", "sparkv", "--json")[1]) == report


@pytest.mark.parametrize("kind", ["device", "model", "scenario", "system"])
def test_lists(call: Call, kind: str) -> None:
    code, out, err = call(f"{kind}s", "--json")
    assert (code, err) == (0, "")
    listed = [entry["name"] for entry in json.loads(out)[f"{kind}s"]]
    assert listed if kind == "system" else listed == names(kind)
    code, out, _ = call(f"{kind}s")
    assert code == 0
    assert all(name in out for name in listed)


def test_one_device_shows_its_sources(call: Call) -> None:
    _, out, _ = call("devices", "rtx-5080-laptop")
    assert "processors.gpu.flop_per_s" in out
    assert "NVIDIA data sheet" in out
    assert call("devices", "rtx-5080-lapto")[0] == 2


def test_one_model_shows_its_source(call: Call) -> None:
    assert "source: Hugging Face" in call("models", "llama-3.1-8b")[1]


def test_schema_is_json(call: Call) -> None:
    assert json.loads(call("schema")[1])["title"] == "KVFerry scenario"


# --- as a process of its own -----------------------------------------------------------------------------


def process(*arguments: str) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-c", "from kvferry.cli.main import main; main()", *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=60)


def test_help_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'pandas', 'pint', 'pydantic', 'yaml', 'simpy', 'matplotlib', 'pulp'}"
    program = (
        "import sys; sys.argv = ['kvferry', '--help']\n"
        "from kvferry.cli.main import main\n"
        "try: main()\n"
        f"except SystemExit: print(sorted({heavy} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stderr == "[]\n"
    assert all(name in done.stdout for name in ("run", "compare", "schedule", "sweep", "reproduce", "traces", "schema"))


def test_exit_codes_of_the_process() -> None:
    assert process("--version").returncode == 0
    missing = process("run", "nowhere.yaml")
    assert (missing.returncode, missing.stdout, missing.stderr) == (2, "", "kvferry: 'nowhere.yaml' is not there\n")
    Path("bad.yaml").write_text("a: [1, 2\nb: 3\n")
    bad = process("run", "bad.yaml")
    assert bad.returncode == 2
    assert bad.stderr == "kvferry: bad.yaml:1: not valid YAML: '[' opens here and is not closed before line 2\n"
    assert "Traceback" not in bad.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has such a device")
@pytest.mark.parametrize("argument", ["schema", "models"])
def test_output_that_is_full_or_closed_is_said_once(argument: str) -> None:
    program = [sys.executable, "-c", "from kvferry.cli.main import main; main()", argument]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (1, "kvferry: cannot write to standard output: No space left on device\n")
    closed = [sys.executable, "-c", "import os, sys; os.close(1); os.execv(sys.argv[1], sys.argv[1:])", *program]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "kvferry: standard output is closed; results need somewhere to go\n"


@pytest.mark.parametrize("argument", ["schema", "--version"])  # more than a buffer holds, and less
def test_a_closed_pipe_is_quiet(argument: str) -> None:
    program = [sys.executable, "-c", "from kvferry.cli.main import main; main()", argument]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 1


def test_a_system_that_fails_loses_no_other_result(call: Call, runs: dict[str, Any]) -> None:
    runs["stream-only"] = KvferryError("the disk went away")
    code, out, err = call("compare", "small.yaml", "--systems", "stream-only,local-prefill", "--output", "both")
    assert (code, "local-prefill" in out) == (1, True)
    assert "stream-only: failed: the disk went away" in out and "failed" not in err
    assert [line.split()[-1] for line in out.splitlines() if line.startswith(" stream-only")] == ["failed"]
    assert Path("both/local-prefill/metrics.json").exists()


def test_what_has_no_room_is_left_out_unless_asked_for(call: Call) -> None:
    small = ("compare", "kvswap/throughput", "--set", "workload.context=6Ki", "--set", "workload.decoded=2")
    small += ("--set", "workload.batch=1", "--json")
    code, out, err = call(*small)
    assert code == 0
    assert "quest" not in json.loads(out)["systems"]
    assert "quest is left out: budget.kv_share: " in err
    code, out, err = call(*small, "--systems", "kvswap,quest")
    assert (code, list(json.loads(out)["systems"])) == (1, ["kvswap"])
    assert "quest: failed: budget.kv_share: " in err
    code, out, err = call(*small, "--systems", "quest")
    assert (code, out) == (2, "")
    assert "quest: budget.kv_share: " in err


IN_A_FINALISER = """
    import signal, sys, time
    from kvferry.cli import main as command

    waits, late_s = signal.setitimer, [0.1]

    def late(*asked):
        # The signal comes again before the hook is over that asks for it, as on a busy machine.
        waits(*asked)
        if late_s:
            time.sleep(late_s.pop())

    signal.setitimer = late

    class Dropped:
        def __del__(self):
            signal.raise_signal(signal.{name})
            time.sleep(0.01)

    def work(prog_name):
        Dropped()
        time.sleep(20)

    command.app = work
    sys.argv = ["kvferry"]
    command.main()
"""


IN_THE_MAKING_OF_A_CLASS = """
    import signal, sys, time
    from kvferry.cli import main as command

    class Named:
        def __set_name__(self, owner, name):
            signal.raise_signal(signal.{name})
            time.sleep(0.01)

    def work(prog_name):
        type("Owner", (), {{"attribute": Named()}})

    command.app = work
    sys.argv = ["kvferry"]
    command.main()
"""


# Python loses a signal in a finaliser, and before 3.12 makes a RuntimeError of one in the making of a class.
@pytest.mark.parametrize("program", [IN_A_FINALISER, IN_THE_MAKING_OF_A_CLASS], ids=["finaliser", "class"])
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_ends_the_command_wherever_it_comes(name: str, code: int, program: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(program.format(name=name))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (code, "")


SWALLOWED = """
    import signal, sys, time
    from kvferry.cli import main as command

    def work(prog_name):
        try:
            signal.raise_signal(signal.{name})
            time.sleep(0.01)
        except BaseException:
            pass
        raise ValueError("Invalid affine transformation matrix")

    command.app = work
    sys.argv = ["kvferry"]
    command.main()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_error_that_compiled_code_makes_of_a_signal_is_the_signal(name: str, code: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(SWALLOWED.format(name=name))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (code, "")


@pytest.mark.parametrize("command", [("models",), ("report",), ("serve",), ("calibrate", "--model")])
def test_a_name_that_is_too_long_for_a_file(call: Call, command: tuple[str, ...]) -> None:
    code, out, err = call(*command, "x" * 256)
    assert (code, out) == (2, "")
    assert "xxx...: this name is too long for a file" in err


AN_OP_UNDER_WAY = """
    import atexit, sys, threading, torch
    from kvferry.backends.live.engine.environment import WallClockEnvironment
    from kvferry.backends.live.engine.worker import Worker
    from kvferry.cli.main import main

    began = threading.Event()

    def op(inputs):
        numbers = torch.rand(1000, 1000)
        began.set()
        while True:
            numbers @ numbers

    Worker(WallClockEnvironment(), "cpu", print).do(op)
    began.wait()
    atexit.register(print, "cleaned up")
    sys.argv = ["kvferry", "run", "nothing-of-this-name"]
    main()
"""


@pytest.mark.torch
def test_an_op_that_is_still_under_way_leaves_the_exit_code_as_it_is() -> None:
    pytest.importorskip("torch")
    program = [sys.executable, "-c", textwrap.dedent(AN_OP_UNDER_WAY)]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "cleaned up\n")
    assert ended.stderr.startswith("kvferry: unknown scenario") and ended.stderr.count("\n") == 1


def test_system_and_systems_are_the_same_option(call: Call, runs: dict[str, Any]) -> None:
    for option in ("--system", "--systems"):
        _, out, _ = call("run", "small.yaml", "--json", option, "local-prefill")
        assert json.loads(out)["system"] == "local-prefill"
        _, out, _ = call("compare", "small.yaml", "--json", option, "stream-only,local-prefill")
        assert set(json.loads(out)["systems"]) == {"stream-only", "local-prefill"}
    code, _, err = call("run", "small.yaml", "--systems", "stream-only,local-prefill")
    assert code == 2
    assert "this takes one system; several: kvferry compare SCENARIO --systems stream-only,local-prefill" in err


def test_what_has_no_effect_on_a_system_is_said(call: Call, runs: dict[str, Any]) -> None:
    asked = ("compare", "small.yaml", "--systems", "stream-only,local-prefill")
    runs["cachegen"] = result(4.0)
    _, out, err = call(*asked[:-1], "stream-only,cachegen", "--set", "policies.objective=quality")
    assert "policies.objective has no effect on stream-only" in out
    _, _, err = call(*asked[:-1], "stream-only,cachegen", "--set", "policies.objective=quality", "--json")
    assert "policies.objective has no effect on stream-only" in err
    code, _, err = call(*asked, "--set", "policies.objective=quality")
    assert code == 2
    assert "--set policies.objective=quality: policies.objective: unknown key" in err


def test_fidelity_says_first_whose_errors_these_will_be(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KvferryError("nothing is run here")

    monkeypatch.setattr("kvferry.api.fidelity.fidelity", stopped)
    _, _, err = call("fidelity", "small.yaml")
    first, *_, last = err.splitlines()
    assert first.startswith("rtx-5080-laptop was not measured: errors will be the profile's, not the simulator's; ")
    assert "kvferry calibrate measures one in minutes" in first
    assert "nothing is run here" in last


def test_the_end_of_the_process_looks_through_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a real run that takes a second of processor time, which a cloud that is told to end does not have."""
    from kvferry.cli import main

    at_exit: list[Any] = []
    monkeypatch.setattr(main.atexit, "register", at_exit.append)
    # A test before this one may have left a thread of a live run, which would end this process as it would a command.
    monkeypatch.setattr(main.threading, "enumerate", list)
    with pytest.raises(SystemExit) as left:
        main._leave(1)
    assert left.value.code == 1
    assert at_exit == [gc.freeze]


@pytest.mark.parametrize("code", [130, 143])
def test_behind_a_signal_python_is_not_torn_down(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Compiled code that a signal left in its middle aborts there. What ends a sweep's processes still runs."""
    from kvferry.cli import main

    done: list[Any] = []
    monkeypatch.setattr(main.threading, "enumerate", list)
    monkeypatch.setattr(main.threading, "_shutdown", lambda: done.append("threads"))
    monkeypatch.setattr(main.atexit, "_run_exitfuncs", lambda: done.append("registered"))
    monkeypatch.setattr(main.os, "_exit", done.append)
    main._leave(code)
    assert done == ["threads", "registered", code]


def test_paths_of_written_files_are_printed_without_what_a_terminal_obeys(call: Call) -> None:
    code, out, err = call("new", "policy", "mine", "--role", "loader", "--output", "\x1b[31mred")
    assert code == 0
    assert out.splitlines() == ["\\x1b[31mred/mine.py", "\\x1b[31mred/test_mine.py"]
    assert "\x1b" not in err

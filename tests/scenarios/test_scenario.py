"""Scenarios: names, paths, extension and overrides; the dump, the hash and the schema."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kvferry.pipelines.checks import names_in_use
from kvferry.pipelines.decoding.systems import ROLES
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import (
    dump_scenario,
    dump_yaml,
    load_device,
    load_model,
    load_scenario,
    load_storage,
    scenario_hash,
)
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

SMALL = """\
name: small
system: ferry
device: board.yaml
model: tiny
link: {rate: 850 Mbit/s, rtt: 4 ms}
workload: {kind: context-reuse, context: 4Ki tokens}
"""
BOARD = """\
name: board
main: gpu
processors:
  gpu: {kind: gpu, flop_per_s: 30 Tflop/s, bytes_per_s: 200 GB/s}
  cpu: {kind: cpu, flop_per_s: 1 Tflop/s, bytes_per_s: 100 GB/s}
memory: {unified: true, capacity_bytes: 64 GiB, bytes_per_s: 200 GB/s}
decompressor: {values_per_s: 50 Mvalue/s}
sources: {}
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "board.yaml").write_text(BOARD)
    (tmp_path / "small.yaml").write_text(SMALL)
    return tmp_path / "small.yaml"


def test_units_become_si_and_defaults_are_there(small: Path) -> None:
    scenario = load_scenario(small)
    assert scenario.link.rate_bytes_per_s == 850e6 / 8
    assert scenario.link.rtt_s == 0.004
    assert scenario.workload.context == 4096
    assert scenario.workload.token_chunks == 4
    assert (scenario.workload.question, scenario.workload.output, scenario.workload.requests) == (64, 1, None)
    assert scenario.workload.arrivals is None
    assert scenario.load is None
    assert scenario.budget.memory_bytes is None
    assert (scenario.coupling, scenario.measure, scenario.backend, scenario.seed) == (
        "all_heads",
        "end_to_end",
        "sim",
        0,
    )
    assert (scenario.costs.truth, scenario.costs.estimate) == ("roofline", "roofline")
    assert scenario.device.processors["gpu"].flop_per_s == 30e12
    assert scenario.model.name == "tiny"


@pytest.mark.parametrize("name", names("scenario"))
def test_bundled_scenarios_load(name: str) -> None:
    assert load_scenario(name).name


@pytest.mark.parametrize("name", names("device"))
def test_bundled_devices_load(name: str) -> None:
    assert load_device(name).name == name


@pytest.mark.parametrize("name", names("model"))
def test_bundled_models_load(name: str) -> None:
    assert load_model(name).name == name


def test_a_device_may_stand_inline_and_extend_another(small: Path) -> None:
    small.write_text(SMALL.replace("board.yaml", "{extends: board.yaml, name: hot, processors: {gpu: {idle_w: 9 W}}}"))
    device = load_scenario(small).device
    assert device.name == "hot"
    assert device.processors["gpu"].idle_w == 9.0
    assert device.processors["gpu"].flop_per_s == 30e12
    assert list(device.processors) == ["gpu", "cpu"]


def test_paths_are_relative_to_the_file_that_names_them(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small.parent / "studies"
    folder.mkdir()
    (folder / "far.yaml").write_text("extends: ../small.yaml\nname: far\nlink: {rtt: 40 ms}\n")
    monkeypatch.chdir("/")
    scenario = load_scenario(folder / "far.yaml")
    assert scenario.name == "far"
    assert scenario.link.rtt_s == 0.04
    assert scenario.link.rate_bytes_per_s == 850e6 / 8
    assert scenario.device.name == "board"


def test_overrides_apply_in_order_to_the_resolved_scenario(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.parent)
    changes = [
        "link.rtt=9 ms",
        "link.rtt=5 ms",
        "device.memory.capacity_bytes=8 GiB",
        "model=qwen3-0.6b",
        "model.layers=4",
        "load.share=0.5",
        "policies.schedule={name: greedy, stage: 5 ms}",
        "policies.codec=kivi",
        "costs=measured",
        "link.outages=[{start: 1 s, duration: 2 s}, {start: 5 s, duration: 1 s}]",
        "link.outages.1.start=6 s",
    ]
    scenario = load_scenario("small.yaml", changes)
    assert scenario.link.rtt_s == 0.005
    assert scenario.device.memory.capacity_bytes == 8 * 2**30
    assert (scenario.model.name, scenario.model.layers) == ("qwen3-0.6b", 4)
    assert scenario.load is not None
    assert (scenario.load.share, scenario.load.processor) == (0.5, None)
    assert scenario.policies["schedule"].name == "greedy"
    assert scenario.policies["schedule"].parameters == {"stage": "5 ms"}
    assert scenario.policy_values == {"schedule": {"name": "greedy", "stage": "5 ms"}, "codec": "kivi"}
    assert (scenario.costs.truth, scenario.costs.estimate) == ("measured", "measured")
    assert [outage.start_s for outage in scenario.link.outages] == [1.0, 6.0]


def test_an_override_replaces_a_name_that_is_not_known(small: Path) -> None:
    small.write_text(SMALL.replace("tiny", "tinny"))
    assert load_scenario(small, ["model=tiny"]).model.name == "tiny"


def test_null_takes_a_value_away(small: Path) -> None:
    scenario = load_scenario(small, ["link.rate=null", "link.trace=wifi-campus"])
    assert (scenario.link.rate_bytes_per_s, scenario.link.trace) == (None, "wifi-campus")


def test_null_leaves_a_policy_to_the_system() -> None:
    given = load_scenario("kvswap/live").policies
    assert load_scenario("kvswap/live", ["policies.slots=null"]).policies == {
        k: v for k, v in given.items() if k != "slots"
    }


def test_a_trace_path_becomes_absolute_and_a_name_stays(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (small.parent / "walk.csv").write_text("time_s,rate\n")
    monkeypatch.chdir("/")
    small.write_text(SMALL.replace("rate: 850 Mbit/s", "trace: walk.csv"))
    assert load_scenario(small).link.trace == str(small.parent / "walk.csv")
    monkeypatch.chdir(small.parent)
    assert load_scenario(small, ["link.trace=./walk.csv"]).link.trace == str(small.parent / "walk.csv")
    assert load_scenario(small, ["link.trace=wifi-campus"]).link.trace == "wifi-campus"


def test_aliases_stand_for_what_they_name(small: Path) -> None:
    text = SMALL.replace("{rate: 850 Mbit/s, rtt: 4 ms}", "{rate: 850 Mbit/s, rtt: &four 4 ms, offset: *four}")
    small.write_text(text)
    assert load_scenario(small).link.offset_s == 0.004


def test_yaml_words_mean_what_they_look_like(small: Path) -> None:
    # YAML 1.1 would read no as false, 1e1 as text and 010 as eight.
    small.write_text(SMALL + "policies: {a: no, b: 1e1, c: 010, d: 1:30, e: '5', f: true, g: 2001-01-01}\n")
    assert load_scenario(small).policy_values == {
        "a": "no",
        "b": 10.0,
        "c": 10,
        "d": "1:30",
        "e": "5",
        "f": True,
        "g": "2001-01-01",
    }


def test_under_another_system_policies_are_that_systems_own(small: Path) -> None:
    scenario = load_scenario(small, ["policies.codec=kivi"])
    assert scenario.under("ferry") is scenario
    assert (scenario.under("sparkv").system, scenario.under("sparkv").policies) == ("sparkv", {})


def test_policies_of_one_system_are_for_it_alone_and_under_those_of_the_run() -> None:
    file = "kvswap/throughput"
    of = {"quest": {"group_tokens": 8, "selected_tokens": 64}, "flexgen": None}
    loaded = load_scenario(file, [f"system_policies={json.dumps(of)}", "system=quest", "policies.selected_tokens=128"])
    assert loaded.policy_values == {"group_tokens": 8, "selected_tokens": 128}
    assert loaded.under("kvswap").policy_values == {}
    assert load_scenario(dump_scenario(loaded)) == loaded
    assert load_scenario(dump_scenario(loaded.under("kvswap"))).under("quest").policy_values == of["quest"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("system_policies.qest.group_tokens=8", "system_policies.qest: unknown system 'qest'"),
        ("system_policies.quest.groups=8", "system_policies.quest.groups: unknown key"),
        ("system_policies.kvswap.groups=8", "system_policies.kvswap.groups: unknown key"),
        ("system_policies.sparkv.adapt=false", "system_policies.sparkv: 'sparkv' is a system for workload kind"),
    ],
)
def test_policies_of_a_system_are_checked_whichever_runs(change: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario("kvswap/throughput", [change], check=names_in_use)
    assert said in str(caught.value)


def test_the_input_is_the_context_by_another_name() -> None:
    without = ["workload.context=null", "workload.input=2Ki"]
    assert load_scenario("kvswap/throughput", without).decode.workload.context == 2048
    with pytest.raises(InputError) as caught:
        load_scenario("kvswap/throughput", ["workload.input=2Ki"])
    assert "workload.input: is another name for context; leave one of the two out" in str(caught.value)
    with pytest.raises(InputError) as caught:
        load_scenario("kvswap/throughput", ["workload.context=null", "workload.input=0"])
    assert "workload.input: 0: must be at least 1" in str(caught.value)


def test_a_check_points_into_the_file(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small.parent)
    with pytest.raises(InputError) as caught:
        load_scenario("small.yaml", check=lambda scenario: [Complaint(("system",), "never heard of it")])
    assert str(caught.value) == "small.yaml:2: system: never heard of it"


def full(small: Path) -> Scenario:
    changes = [
        "policies.schedule={name: greedy, stage: 5 ms, weights: [1, 0.5]}",
        "policies.race=true",
        "load={share: 0.25, processor: cpu}",
        "workload.arrivals.rate=0.19 requests/s",
        "budget.memory=6 GiB",
        "link.outages=[{start: 0.1 s, duration: 33 ms}]",
        "link.scale=0.7",
    ]
    return load_scenario(small, changes)


def test_the_dump_reads_back_to_an_equal_scenario(small: Path, tmp_path: Path) -> None:
    scenario = full(small)
    assert load_scenario(dump_scenario(scenario)) == scenario
    (tmp_path / "resolved.yaml").write_text(dump_yaml(scenario))
    again = load_scenario(tmp_path / "resolved.yaml")
    assert again == scenario
    assert dump_yaml(again) == dump_yaml(scenario)
    assert dump_scenario(scenario)["link"]["rtt"] == "0.004 s"
    assert dump_scenario(scenario)["budget"]["memory"] == "6442450944 B"


@pytest.mark.parametrize("name", names("scenario"))
def test_bundled_scenarios_read_back(name: str) -> None:
    assert load_scenario(dump_scenario(load_scenario(name))) == load_scenario(name)


def test_the_hash_is_the_same_in_every_process(small: Path) -> None:
    program = (
        "import sys; from kvferry.scenarios.loader import load_scenario, scenario_hash;"
        "print(scenario_hash(load_scenario(sys.argv[1], ['policies.a={name: x, c: 1, b: 2}'])))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program, str(small)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(hashes) == 1


def test_the_hash_tells_scenarios_apart_and_not_spellings(small: Path) -> None:
    scenario = load_scenario(small)
    assert scenario_hash(scenario) == scenario_hash(load_scenario(small, ["link.rtt=0.004 s", "workload.context=4096"]))
    assert scenario_hash(scenario) == scenario_hash(load_scenario(dump_scenario(scenario)))
    assert scenario_hash(scenario) != scenario_hash(load_scenario(small, ["seed=1"]))
    assert scenario_hash(scenario) != scenario_hash(load_scenario(small, ["link.rtt=4.000000001 ms"]))
    a, b = "policies.a={name: x, c: 1, b: 2}", "policies.a={name: x, b: 2, c: 1}"
    assert scenario_hash(load_scenario(small, [a])) == scenario_hash(load_scenario(small, [b]))


def test_the_hash_follows_a_files_content_and_not_its_place(small: Path) -> None:
    first, second = small.parent / "first.csv", small.parent / "second.csv"
    first.write_text("1\n")
    second.write_text("1\n")
    of = [scenario_hash(load_scenario(small, ["link.rate=null", f"link.trace={path}"])) for path in (first, second)]
    assert of[0] == of[1]
    second.write_text("2\n")
    assert scenario_hash(load_scenario(small, ["link.rate=null", f"link.trace={second}"])) != of[0]


@pytest.mark.parametrize("key", ["policies.tuned", "policies.tuned.name", "system_policies.kvswap.tuned"])
def test_the_hash_follows_a_tunings_content(small: Path, key: str) -> None:
    """A tuning lies beside the scenario that names it, and an edited one makes another point."""
    (small.parent / "tuned.json").write_text("1")
    *above, last = key.split(".")
    part = f"{last}: tuned.json"
    for name in reversed(above):
        part = f"{name}: {{{part}}}"
    named = small.with_name("named.yaml")
    named.write_text(f"extends: {small.name}\n{part}\n")
    first = scenario_hash(load_scenario(named))
    assert first == scenario_hash(load_scenario(named))
    (small.parent / "tuned.json").write_text("2")
    assert scenario_hash(load_scenario(named)) != first
    (small.parent / "tuned.json").unlink()
    with pytest.raises(InputError, match="tuned.*'tuned.json' is not there"):
        load_scenario(named)


def test_a_measured_folder_is_found_beside_its_device_and_hashed(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    tables = small.parent / "tables" / "tiny"
    (small.parent / "board.yaml").write_text(BOARD.replace("{kind: gpu,", "{kind: gpu, measured: tables,"))
    with pytest.raises(InputError, match=r"board.yaml:4: device.processors.gpu.measured: 'tables' is no folder$"):
        load_scenario(small)
    tables.mkdir(parents=True)
    (tables / "prefill.csv").write_text("1\n")
    scenario = load_scenario(small)
    assert scenario.device.processors["gpu"].measured == str(small.parent / "tables")
    before = scenario_hash(scenario)
    assert load_scenario(dump_scenario(scenario)) == scenario
    (tables / "prefill.csv").write_text("2\n")
    assert scenario_hash(scenario) != before


def test_the_bundled_folder_holds_only_names_that_resolve() -> None:
    assert "quickstart" in names("scenario")
    assert not any(name.startswith(("devices/", "models/", "studies/", "searches/")) for name in names("scenario"))


def test_a_dump_is_plain_yaml(small: Path) -> None:
    assert yaml.safe_load(dump_yaml(full(small))) == dump_scenario(full(small))


def _shown(page: str) -> list[str]:
    text = (Path(__file__).parents[2] / f"docs/{page}.md").read_text()
    return re.findall(r"```yaml\n(.*?)```", text, re.S)


@pytest.mark.parametrize("page", ["loading", "decoding", "assist"])
def test_the_scenario_of_a_kinds_page_is_one_of_that_kind(page: str, small: Path) -> None:
    (example,) = _shown(page)
    (small.parent / "shown.yaml").write_text(example)
    kind = {"loading": "context-reuse", "decoding": "decode", "assist": "assist"}[page]
    assert load_scenario(small.parent / "shown.yaml").workload.kind == kind


def test_what_the_docs_show_is_read(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs/scenarios.md").read_text()
    monkeypatch.chdir(small.parent)
    shown = _shown("scenarios")
    whole = [example for example in shown if "name:" in example.split("policies:")[0]]
    assert len(whole) == 2
    for example in whole:
        Path("shown.yaml").write_text(example)
        assert load_scenario("shown.yaml").link.rtt_s == 0.004
    with_policies, with_machines = (yaml.safe_load(example) for example in shown if example not in whole)
    assert SYSTEMS[with_policies["system"]].with_policies(with_policies["policies"])
    described = {**yaml.safe_load(SMALL), "device": "tiny", **with_machines}
    assert load_scenario(described).machine_names == ("device", "cloud", "phone.0", "phone.1", "phone.2")
    changes = re.findall(r"--set (\S+?)='(.*?)'", text)
    assert len(changes) == 3
    assert load_scenario("quickstart", [f"{key}={value}" for key, value in changes]).link.rtt_s == 0.02


def test_the_page_on_decoding_has_every_name_of_a_role() -> None:
    text = (Path(__file__).parents[2] / "docs/decoding.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.M))
    assert set(rows) == set(ROLES)
    for role, named in ROLES.items():
        assert set(named) <= set(re.findall(r"`([\w-]+)`", rows[role])), role


@pytest.mark.parametrize(
    ("scenario", "change", "said"),
    [
        ("quickstart", "workload.batch=8", "workload.batch: unknown key; known here: arrivals"),
        ("quickstart", "budget.kv_share=0.5", "budget.kv_share: unknown key; known here: memory"),
        ("quickstart", "live.paced=false", "live.paced: unknown key"),
        ("kvswap/throughput", "workload.question=3", "workload.question: unknown key; known here: arrivals"),
        ("kvswap/throughput", "live.cloud=http://127.0.0.1:1", "live.cloud: unknown key"),
        (
            "quickstart",
            "workload.kind=decod",
            "workload.kind: 'decod' is none of context-reuse, decode, assist, session; did",
        ),
        ("quickstart", "workload={context: 4Ki}", "workload.kind: is missing"),
        ("quickstart", "budget={kind: decode}", "budget.kind: 'decode' is not the workload's, which is context-reuse"),
    ],
)
def test_a_key_of_another_workload_is_refused_with_its_place(scenario: str, change: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(scenario, [change])
    assert f"--set {change}: {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ("0", "0: must be at least 1, or max"),
        ("65", "65: must be at most 64, or max"),
        ("2.5", "2.5 is not a whole number, or max"),
        ("most", "'most' is not a count; write it like 32768 or '32Ki', or max"),
    ],
)
def test_a_key_that_takes_a_number_or_a_word_says_both(batch: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario("kvswap/throughput", [f"workload.batch={batch}"])
    assert str(caught.value) == f"--set workload.batch={batch}: workload.batch: {said}"


def test_an_override_takes_its_source_along() -> None:
    loaded = load_scenario("quickstart", ["device.memory.bytes_per_s=100 GB/s", "model.layers=30"])
    sources, before = loaded.device.sources, load_device("rtx-5080-laptop").sources
    assert sources["memory.bytes_per_s"] == "--set device.memory.bytes_per_s=100 GB/s"
    assert sources["memory.capacity_bytes"] == before["memory.capacity_bytes"]
    assert loaded.model.source == f"{load_model('llama-3.1-8b').source}; but for layers: --set model.layers=30"
    # One of several figures that share a source: that source stays for the others.
    gemm = load_scenario("quickstart", ["device.processors.gpu.efficiency.gemm=0.5"]).device.sources
    assert gemm["processors.gpu.efficiency"] == before["processors.gpu.efficiency"]
    assert gemm["processors.gpu.efficiency.gemm"].startswith("--set ")
    # The same value again keeps its source.
    same = load_scenario("quickstart", ["model.layers=32"])
    assert same.model == load_model("llama-3.1-8b")


def test_an_override_of_storage_takes_the_storages_source_along() -> None:
    storage = load_scenario("kvswap/throughput", ["device.storage.active_w=3 W"]).device.storage
    assert storage is not None
    assert storage.sources["active_w"] == "--set device.storage.active_w=3 W"
    assert storage.sources["queue"] == load_storage("nvme").sources["queue"]


def test_what_extends_a_profile_has_sources_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "extends: tiny\nname: mine\nmemory: {bytes_per_s: 5 GB/s, capacity_bytes: 1 GB}\nbase_w: 2 W\n"
        "sources: {base_w: a meter}\n"
    )
    sources = load_device(str(tmp_path / "mine.yaml")).sources
    assert sources["memory.bytes_per_s"] == "given in mine.yaml"
    assert sources["base_w"] == "a meter"
    assert sources["memory"] == "made up"
    assert "memory.capacity_bytes" not in sources, "it is the same as before"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("-5", "--set workload.input=-5: workload.input: -5: must be at least 1"),
        ("lots", "workload.input: 'lots'"),
    ],
)
def test_a_prompt_that_cannot_be_is_complained_of_under_the_name_that_it_was_given(given: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        load_scenario("specontext/throughput", [f"workload.input={given}"])
    taken = load_scenario("specontext/throughput", ["workload.input=null", "workload.context=300"])
    assert taken.decode.workload.context == 300
    assert dump_scenario(taken)["workload"]["context"] == 300


def test_a_list_of_numbers_is_a_setting_and_a_role_needs_no_name() -> None:
    loaded = load_scenario("specontext/throughput", ["policies.thresholds=[5, 9]", "policies.residency={cache: 3}"])
    assert loaded.policy_values == {"thresholds": [5, 9], "residency": {"cache": 3}}
    assert load_scenario(dump_scenario(loaded)) == loaded
    for wrong in ("policies.thresholds=[]", "policies.thresholds=[a]", "policies.placement={}"):
        with pytest.raises(InputError, match="policies\\.(thresholds|placement)\\.name"):
            load_scenario("specontext/throughput", [wrong])


def test_a_link_is_asked_of_what_fetches_over_one(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        "name: s\nsystem: vllm\ndevice: tiny\nmodel: tiny\nworkload: {kind: decode, context: 512, output: 4}\n"
    )
    same = load_scenario(str(file), ["link={rate: 1 Gbit/s}"])
    assert scenario_hash(load_scenario(str(file))) == scenario_hash(load_scenario(str(file), ["link=null"]))
    assert load_scenario(str(file)) == same
    file.write_text(
        "name: s\nsystem: ferry\ndevice: tiny\nmodel: tiny\nworkload: {kind: context-reuse, context: 512}\n"
    )
    with pytest.raises(InputError, match=r"s\.yaml:1: link: is missing; write it like link: {rate: 100 Mbit/s, rtt: "):
        load_scenario(str(file))


def test_what_a_device_of_ones_own_lacks_is_said_as_it_would_be_written(tmp_path: Path) -> None:
    (tmp_path / "board.yaml").write_text(
        "name: board\nprocessors: {gpu: {kind: gpu}}\nmemory: {capacity_bytes: 8 GiB}\n"
    )
    with pytest.raises(InputError) as caught:
        load_scenario("quickstart", [f"device={tmp_path / 'board.yaml'}"])
    for line in (
        "device.main: is missing; write it like main: gpu",
        "device.memory.unified: is missing; write it like unified: true",
        "device.decompressor: is missing; write it like decompressor: {values_per_s: 200 Mvalue/s, workers: 4}",
        "device.sources: is missing; write it like sources: {processors.gpu.flop_per_s: data sheet}",
    ):
        assert line in str(caught.value)

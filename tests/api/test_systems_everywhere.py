"""A system is what its name says, whichever command runs it: the same scenario and, from it, the same bytes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny import ASSISTED, DECODING, changed

import kvferry
from kvferry.analysis.envelope import to_json
from kvferry.analysis.search import load_search
from kvferry.analysis.study import load_study
from kvferry.api.fidelity import study_in_both_worlds
from kvferry.api.scenario import load, under_systems
from kvferry.pipelines.checks import names_in_use
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import dump_scenario, load_scenario
from kvferry.scenarios.resolve import read_tree
from kvferry.specs.errors import InputError
from kvferry.specs.node import Place, node_of
from kvferry.specs.scenario import Scenario

QUICK = (
    *(("pd_device/assist", system) for system in ("pd-device", "refinement-only", "tokens-only", "cloud-only")),
    *(("pd_device/live", system) for system in ("pd-device", "tokens-only", "device-only")),
    *(("kvswap/live", system) for system in ("kvswap", "quest", "vllm", "dynakv")),
    ("specontext/edge", "shadowkv"),
    ("sparkv/congestion", "cachegen"),
)
# What makes a run of each kind short.
SHORT: dict[str, list[str]] = {
    "context-reuse": ["workload.context=2Ki", "workload.requests=1", "workload.arrivals=null"],
    "decode": ["workload.context=1Ki", "workload.output=6", "workload.decoded=null", "workload.batch=2"],
    "assist": ["workload.output=8", "workload.devices=1", "workload.arrivals=null", "workload.duration=null"],
    "session": ["workload.turns=2", "workload.context=1Ki", "workload.output=6"],
}


def every_way(name: str, system: str, settings: Sequence[str], folder: Path) -> dict[str, Scenario | str]:
    """The scenario under a system by each command, or what it says instead."""
    study = {"base": {"extends": name}, "axes": {"system": [system]}}
    search = {"base": {"extends": name}, "space": {"system": [system]}, "objectives": ["energy_j"]}
    zipped = {"base": {"extends": name}, "zip": [{"system": [system], "seed": [1]}]}
    files = {}
    for kind, described in {"study": study, "search": search, "zip": zipped}.items():
        files[kind] = str(folder / f"{kind}.yaml")
        Path(files[kind]).write_text(json.dumps(described))

    def searched() -> Scenario:
        base = load_search(files["search"], settings, names_in_use).base
        return base.scenario(base.with_values({"system": node_of(system, Place("here", None, folder))}))

    ways: dict[str, Callable[[], Scenario]] = {
        "run --system": lambda: load(name, settings, system=system),
        "run --set system": lambda: load(name, [f"system={system}", *settings]),
        "compare": lambda: under_systems(name, [system], settings).systems[system],
        "fidelity": lambda: study_in_both_worlds(name, [system], settings).scenarios[0],
        "sweep": lambda: load_study(files["study"], settings, names_in_use).points[0],
        "search": searched,
        "a file that extends": lambda: load({"extends": name, "system": system}, settings),
    }
    if name == "offload":
        # Weights that lie elsewhere are modelled alone.
        del ways["fidelity"]
    if not any(setting.startswith("seed=") for setting in settings):
        ways["zip"] = lambda: load_study(files["zip"], settings, names_in_use).points[0]
    found: dict[str, Scenario | str] = {}
    for way, make in ways.items():
        try:
            found[way] = make().model_copy(update={"seed": 1})
        except InputError:
            found[way] = "refused"
    return found


def pairs(scenarios: Sequence[str]) -> list[tuple[str, str]]:
    # Not resolved: this is done whenever tests are collected, in every worker.
    kinds = {name: read_tree("scenario", name, Path()).plain()["workload"]["kind"] for name in scenarios}
    return [(name, system) for name, kind in kinds.items() for system in WORKLOADS[kind].systems]


@pytest.mark.parametrize(("name", "system"), QUICK)
def test_every_command_has_the_same_scenario(name: str, system: str, tmp_path: Path) -> None:
    ways = every_way(name, system, [], tmp_path)
    assert all(one == ways["run --system"] for one in ways.values()), ways


@pytest.mark.long
@pytest.mark.parametrize(("name", "system"), pairs(names("scenario")))
def test_every_command_gives_the_same_bytes(name: str, system: str, tmp_path: Path) -> None:
    ways = every_way(name, system, [], tmp_path)
    assert all(one == ways["run --system"] for one in ways.values()), ways
    same_bytes(name, system, ["backend=sim", *SHORT[load_scenario(name).workload.kind]], tmp_path)


@pytest.mark.parametrize(
    ("name", "system"), [("pd_device/assist", "tokens-only"), ("kvswap/live", "quest"), ("sparkv/vlm", "ferry")]
)
def test_some_commands_give_the_same_bytes(name: str, system: str, tmp_path: Path) -> None:
    same_bytes(name, system, ["backend=sim", *SHORT[load_scenario(name).workload.kind]], tmp_path)


def same_bytes(name: str, system: str, settings: list[str], folder: Path) -> None:
    file = folder / "study.yaml"
    file.write_text(json.dumps({"base": {"extends": name}, "axes": {"system": [system]}}))

    def figures(carry_out: Callable[[], Any]) -> str:
        try:
            return str(carry_out())
        except InputError:
            return "refused"

    def swept() -> str:
        (row,) = kvferry.sweep(
            file, settings, output=folder / "swept", executor="in-process", plots=False
        ).points.to_dict("records")
        if row["outcome"] != "done":
            return "refused" if row["outcome"] == "failed" else to_json({"outcome": row["outcome"]})
        return to_json({key: row[key] for key in ran.metrics})

    try:
        ran = kvferry.run(name, [*settings, f"system={system}"])
    except InputError:
        assert figures(lambda: kvferry.compare(name, [system], settings)) == figures(swept) == "refused"
        return
    of_run = to_json(ran.metrics if ran.outcome == "done" else {"outcome": ran.outcome})
    assert figures(swept) == of_run
    by_option, compared = kvferry.run(name, settings, system=system), kvferry.compare(name, [system], settings)[system]
    assert to_json(by_option.envelope) == to_json(compared.envelope) == to_json(ran.envelope)


def test_pd_device_is_not_under_another_name() -> None:
    settings = {"workload.prompt": "2Ki", "workload.output": 40}
    figures = {
        name: kvferry.run("pd_device/assist", {**settings, "system": name}).metrics
        for name in ("pd-device", "refinement-only", "tokens-only")
    }
    assert figures["refinement-only"]["assisted_tokens"] == 1 < figures["pd-device"]["assisted_tokens"]
    assert len({one["cloud_latency_s"] for one in figures.values()}) == 3


def test_policies_that_a_user_sets_hold_for_every_system() -> None:
    found = under_systems("kvswap/live", ["kvswap", "quest", "vllm"], {"policies.group_tokens": 4})
    assert found.systems["quest"].policy_values == {"group_tokens": 4}
    assert found.systems["vllm"].policy_values == {}
    own = {"group_tokens": 4, "selected_tokens": 400, "compression": 8, "slots": 116}
    assert found.systems["kvswap"].policy_values == own
    assert found.remarks == (
        "policies.group_tokens has no effect on vllm",
        "kvswap-live says selected_tokens, compression, slots for kvswap alone; others run with their own policies",
    )


@pytest.mark.parametrize(
    ("systems", "setting", "message"),
    [
        (["vllm", "full-eager"], "policies.group_tokens=4", "policies.group_tokens: unknown key"),
        (["vllm"], "policies.selector=landmarks", "policies.selector: all KV is in memory.*has no effect"),
        (["quest", "vllm"], "policies.group_tokns=4", "policies.group_tokns: unknown key.*did you mean 'group_tokens'"),
        (["quest", "vllm"], "policies.group_tokens=four", "policies.group_tokens: 'four' is not a whole number"),
        (["quest"], "policies.tuned=none.json", "policies.tuned"),
    ],
)  # fmt: skip
def test_what_no_system_has_is_refused(systems: list[str], setting: str, message: str) -> None:
    with pytest.raises(InputError, match=f"--set {setting}.*{message}"):
        under_systems("kvswap/throughput", systems, [setting])
    with pytest.raises(InputError, match=message):
        load("kvswap/throughput", [setting], system=systems[0])


def test_a_whole_mapping_of_policies_loses_what_a_system_does_not_have() -> None:
    found = under_systems(DECODING, ["kvswap", "vllm"], ["policies={group_tokens: 8, batching: lock-step}"])
    assert [one.policy_values for one in found.systems.values()] == [{"group_tokens": 8}, {"batching": "lock-step"}]
    assert set(found.remarks) == {
        "policies.group_tokens has no effect on vllm",
        "policies.batching has no effect on kvswap",
    }


def test_parameters_stay_beside_those_of_the_system() -> None:
    loaded = load("pd_device/live", ["policies.assist.ratio=0.5"])
    assert loaded.policy_values["assist"]["tokens"] == 8
    assert loaded.policy_values["assist"]["ratio"] == 0.5
    assert load(dump_scenario(loaded)) == loaded


@pytest.mark.parametrize(
    ("system", "key", "value", "what"),
    [
        ("refinement-only", "assist.tokens", "40", "40 is not 1, which makes this system what it is"),
        ("tokens-only", "assist.ratio", "0.5", "0.5 is not 1.0, which makes this system what it is"),
        ("cloud-only", "assist.tokens", "40", "has no effect on this system: the cloud answers to the last token"),
        ("device-only", "assist.patience", "3 s", "has no effect on this system: the device answers by itself"),
        ("device-only", "serving.slots", "3", "has no effect: the device answers by itself"),
        ("pd-device", "assist.draft", "3", "has no effect on this system: a refined prompt"),
    ],
)  # fmt: skip
def test_what_makes_an_assisted_system_stays(system: str, key: str, value: str, what: str) -> None:
    with pytest.raises(InputError, match=f"policies.*{what}"):
        load(ASSISTED, [f"policies.{key}={value}"], system=system)


def test_fixed_values_may_be_repeated() -> None:
    described = changed(ASSISTED, system="tokens-only", policies={"assist": {"tokens": 4, "ratio": 1.0}})
    assert load(described).system == "tokens-only"


@pytest.mark.parametrize(
    ("described", "line"),
    [
        (
            changed(DECODING, device={"extends": "tiny", "storage": None}),
            "on which kvswap keeps KV, and tiny has none; --set device.storage=nvme (or emmc, ufs-3.1, ufs-4.0)",
        ),
        (
            changed(ASSISTED, workload={"resident": False}),
            "from which the model is loaded at each request, and tiny has none; --set device.storage=nvme (or emmc,"
            " ufs-3.1, ufs-4.0), or --set workload.resident=true",
        ),
    ],
)
def test_a_missing_storage_is_named_with_the_line_to_type(described: dict[str, Any], line: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in described.items()))
    at = list(described).index("device") + 1
    with pytest.raises(InputError) as error:
        load(file)
    assert str(error.value) == f"{file}:{at}: device.storage: is missing, {line}"
    assert load(file, ["device.storage=nvme"])


def test_systems_that_cannot_run_are_left_out_unless_they_are_named() -> None:
    described = changed(DECODING, system="vllm", device={"extends": "tiny", "storage": None}, budget={"kv_share": None})
    found = under_systems(described, None)
    assert "vllm" in found.systems
    assert "device.storage: is missing" in found.left_out["kvswap"]
    with pytest.raises(InputError, match=r"device\.storage: is missing"):
        under_systems(described, ["vllm", "kvswap"])


def test_axes_and_overrides_of_a_study_hold_for_every_system(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    axes = {"system": ["kvswap", "quest"], "policies.group_tokens": [4, 8]}
    file.write_text(json.dumps({"base": {"extends": "kvswap/live"}, "axes": axes}))
    points = load_study(str(file), ["policies.selected_tokens=64"], names_in_use).points
    own = {"compression": 8, "slots": 116}
    assert [point.policy_values for point in points] == [
        {"group_tokens": 4, "selected_tokens": 64} | own,
        {"group_tokens": 8, "selected_tokens": 64} | own,
        {"group_tokens": 4, "selected_tokens": 64},
        {"group_tokens": 8, "selected_tokens": 64},
    ]


def test_fidelity_of_a_study_keeps_its_axes_under_another_system(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps({"base": {"extends": "kvswap/live"}, "axes": {"policies.selected_tokens": [64, 96]}}))
    found = study_in_both_worlds(str(file), ["quest"], ["policies.group_tokens=4"]).scenarios
    assert [one.policy_values for one in found] == [{"group_tokens": 4, "selected_tokens": n} for n in (64, 96)]
    assert {one.system for one in found} == {"quest"}


def test_a_base_without_a_system_says_its_policies_for_all(tmp_path: Path) -> None:
    base = {key: value for key, value in DECODING.items() if key != "system"} | {"policies": {"group_tokens": 2}}
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps({"base": base, "axes": {"system": ["kvswap", "quest"]}}))
    assert [one.policy_values for one in load_study(str(file)).points] == 2 * [{"group_tokens": 2}]


def test_a_role_loses_nothing_to_its_own_name_and_nothing_is_said() -> None:
    own, named = (kvferry.run(DECODING, said, system="quest") for said in ({}, {"policies.selector": "page-bounds"}))
    assert (named.run.notes, named.metrics) == (own.run.notes, own.metrics)

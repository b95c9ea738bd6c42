"""A policy that a user sets applies to every system that has it; others run without, once, and it is said."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiny import ASSISTED, DECODING, LOADING

import kvferry
from kvferry.analysis.search import load_search
from kvferry.analysis.study import Study, load_study
from kvferry.api.fidelity import study_in_both_worlds
from kvferry.api.scenario import remarks_under, under_systems, under_variants
from kvferry.pipelines.checks import names_in_use
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.node import Place, node_of

IDLE = "policies.group_tokens has no effect on vllm"
SPACE = {"system": ["kvswap", "vllm"], "policies.group_tokens": [2, 4]}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def studied(settings: list[str] = [], **described: Any) -> Study:  # noqa: B006
    Path("study.yaml").write_text(json.dumps({"base": DECODING, **described}))
    return load_study("study.yaml", settings, names_in_use)


def searched(space: Mapping[str, Any], **more: Any) -> str:
    described = {"base": DECODING, "space": space, "objectives": ["throughput_tokens_per_s"], "points": 8, **more}
    Path("search.yaml").write_text(json.dumps(described))
    return "search.yaml"


def test_a_sweep_runs_a_system_once_for_all_values_of_a_policy_that_it_does_not_have() -> None:
    study = studied(axes=SPACE)
    assert [(one.system, one.policy_values) for one in study.points] == [
        ("kvswap", {"group_tokens": 2}),
        ("kvswap", {"group_tokens": 4}),
        ("vllm", {}),
    ]
    assert study.remarks == (IDLE,)


def test_settings_of_a_sweep_are_the_same() -> None:
    study = studied(["policies.group_tokens=4"], axes={"system": ["kvswap", "vllm"]})
    assert [one.policy_values for one in study.points] == [{"group_tokens": 4}, {}]
    assert study.remarks == (IDLE,)


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("policies", {"assist": {"patience": "1 s"}}),
        ("policies.assist", {"patience": "1 s"}),
        ("policies.assist.patience", "1 s"),
    ],
)
def test_so_are_parameters_of_roles(axis: str, value: Any) -> None:
    study = studied(base=ASSISTED, axes={"system": ["pd-device", "device-only"], axis: [value]})
    assert [one.system for one in study.points] == ["pd-device", "device-only"]
    assert study.remarks == ("policies.assist.patience has no effect on device-only",)


def test_a_role_without_effect_is_left_out_whole() -> None:
    found = under_systems(ASSISTED, ["pd-device", "device-only"], ["policies.serving.slots=3"])
    assert found.systems["device-only"].policy_values == {}
    assert "policies.serving has no effect on device-only" in found.remarks


def test_what_no_system_has_is_refused_once() -> None:
    with pytest.raises(InputError, match="group_tokens: unknown key") as error:
        studied(axes={"system": ["vllm"], "policies.group_tokens": [2, 4]})
    assert str(error.value).count("unknown key") == 1
    with pytest.raises(InputError, match="group_tokens: unknown key"):
        load_search(searched({"system": ["vllm", "full-eager"], "policies.group_tokens": [2, 4]}), [], names_in_use)


def test_a_fault_of_one_system_names_it() -> None:
    with pytest.raises(InputError, match=r"policies.group_tokens: .* \(under kvswap\)$"):
        studied(axes={"system": ["kvswap", "vllm"], "policies.group_tokens": [2, "x"]})


def test_conditions_hold_for_values_without_effect_as_they_are_written() -> None:
    axes = {"system": ["kvswap", "vllm"], "policies.selector": ["landmarks", "page-bounds"]}
    for where in ("policies.selector == page-bounds", "policies.selector == page-bounds or system == kvswap"):
        study = studied(axes=axes, where=[where])
        assert [one.system for one in study.points] == ["kvswap"] * (1 + ("or" in where.split())) + ["vllm"]


def test_variants_keep_what_they_say_and_share_what_is_set() -> None:
    variants = {"Ours": {"system": "kvswap"}, "Full": {"system": "vllm"}}
    study = studied(variants=variants, axes={"policies.group_tokens": [2, 4]})
    assert study.labels == ("Ours", "Ours", "Full")
    place = Place("here", None, Path())
    nodes = {label: {"system": node_of(values["system"], place)} for label, values in variants.items()}
    found = under_variants(DECODING, nodes, ["policies.group_tokens=4"])
    assert found.remarks == (IDLE,)
    with pytest.raises(InputError, match="group_tokens: unknown key"):
        studied(variants={**variants, "Full": {"system": "vllm", "policies.group_tokens": 4}})


def test_fidelity_of_a_study_tells_it() -> None:
    studied(axes={"policies.group_tokens": [2, 4]})
    found = study_in_both_worlds("study.yaml", ["kvswap", "vllm"])
    assert [one.system for one in found.scenarios] == ["kvswap", "kvswap", "vllm"]
    assert list(found.remarks) == [IDLE]
    with pytest.raises(InputError, match="group_tokens: unknown key"):
        study_in_both_worlds("study.yaml", ["vllm", "full-eager"])


def test_a_search_runs_a_system_that_lacks_a_policy() -> None:
    pytest.importorskip("optuna")
    found = kvferry.search(searched(SPACE, sampler="random", seed=1), output="out", executor="in-process", plots=False)
    assert {one.system for one in found.tried} == {"kvswap", "vllm"}
    assert all(one.is_valid for one in found.tried)
    assert {len(one.settings) for one in found.tried if one.system == "vllm"} == {1}, "its figures are of no group"
    assert len(found.points) == 3
    assert IDLE in found.remarks


def test_a_point_that_is_not_valid_says_why_and_under_which_system() -> None:
    pytest.importorskip("optuna")
    space = {"system": ["kvswap", "vllm"], "policies.group_tokens": [2, "x"]}
    found = kvferry.search(searched(space, sampler="random"), output="out", executor="in-process", plots=False)
    first = next(one for one in found.tried if not one.is_valid)
    (line,) = [line for line in found.remarks if "not a valid scenario" in line]
    assert line.startswith(f"point {first.number} is not a valid scenario: search.yaml:1: policies.group_tokens: 'x'")
    assert line.endswith("(under kvswap)")


def test_what_is_of_real_runs_has_no_effect_on_modelled_ones() -> None:
    why = "a modelled run has no use of it; --set backend=torch runs it for real"
    said = f"live.quality has no effect on kvswap: {why}"
    asked = ["live.quality=true"]
    assert remarks_under(DECODING, asked, load_scenario(DECODING)) == [said]
    assert remarks_under(DECODING, [], load_scenario(DECODING)) == []
    both = under_systems(DECODING, ["kvswap", "quest"], asked)
    assert f"live.quality has no effect on kvswap, quest: {why}" in both.remarks
    assert said in studied(asked, seeds=2).remarks
    assert said in studied(axes={"live.quality": [True, False]}).remarks


def test_fidelity_carries_out_what_is_modelled_elsewhere() -> None:
    assert studied(seeds=2).remarks == ()
    for source, systems in [(DECODING, ["kvswap"]), ("study.yaml", ["kvswap"]), ("study.yaml", None)]:
        told = study_in_both_worlds(source, systems, ["live.quality=true", "link.rtt=20 ms"]).remarks
        assert list(told) == ["link.rtt has no effect on kvswap: decoding fetches nothing over a link"]


def test_a_link_has_no_effect_where_nothing_is_fetched() -> None:
    said = "link.rtt has no effect on kvswap: decoding fetches nothing over a link"
    assert said in kvferry.run(DECODING, {"link.rtt": "20 ms"}).remarks
    assert not any("link" in line for line in kvferry.run(DECODING).remarks)
    # Contexts do come over it.
    assert remarks_under(LOADING, ["link.rtt=20 ms"], load_scenario(LOADING)) == []


def test_a_budget_of_kv_elsewhere_has_no_effect_on_kv_in_memory() -> None:
    said = "budget.kv has no effect on vllm: its KV is all in memory, which budget.in_memory_kv limits"
    found = under_systems(DECODING, ["kvswap", "vllm"], ["budget={}", "budget.kv=1 MB"])
    assert [line for line in found.remarks if "budget" in line] == [said]
    # What takes a file's value away asks for nothing.
    none = under_systems(DECODING, ["kvswap", "vllm"], ["budget={}", "budget.kv=null"])
    assert [line for line in none.remarks if "budget" in line] == []


@pytest.mark.parametrize(
    ("system", "without"),
    [
        ("tokens-only", ["mask=with-token", "refiner=snapkv"]),
        ("refinement-only", ["catch_up=prefill", "smoothing=paper"]),
    ],
)
def test_what_a_part_of_a_cloud_s_help_lacks_is_refused_alone_and_said_beside_others(
    system: str, without: list[str]
) -> None:
    for one in without:
        setting = f"policies.assist.{one}"
        key = setting.partition("=")[0]
        with pytest.raises(InputError, match=f"{key}: has no effect on this system"):
            load_scenario(ASSISTED, [f"system={system}", "policies=null", setting], names_in_use)
        said = f"{key} has no effect on {system}"
        assert said in under_systems(ASSISTED, ["pd-device", system], [setting]).remarks
        assert said in studied([setting], base=ASSISTED, axes={"system": ["pd-device", system]}).remarks


REFINER = "policies.assist.refiner"
UNATTENDED = f"{REFINER} has no effect on pd-device: a modelled prompt has no attention to choose by"


@pytest.mark.parametrize("setting", [f"{REFINER}=snapkv", "policies.assist={refiner: snapkv}"])
def test_a_refiner_has_no_effect_on_a_modelled_prompt(setting: str) -> None:
    assert UNATTENDED in remarks_under(ASSISTED, [setting], load_scenario(ASSISTED, [setting]))
    assert UNATTENDED in under_systems(ASSISTED, ["pd-device", "device-only"], [setting]).remarks
    assert remarks_under(ASSISTED, [setting], load_scenario(ASSISTED, [setting, "backend=torch"])) == []
    assert remarks_under(ASSISTED, ["link.rtt=9 ms"], load_scenario(ASSISTED, ["link.rtt=9 ms"])) == []


def test_studies_and_searches_say_the_same_of_settings_beside_policies() -> None:
    assert UNATTENDED in studied(base=ASSISTED, axes={REFINER: ["snapkv", "streaming-llm"]}).remarks
    said = "link.rtt has no effect on kvswap: decoding fetches nothing over a link"
    assert said in studied(["link.rtt=20 ms"], axes={"policies.group_tokens": [2, 4]}).remarks
    pytest.importorskip("optuna")
    space = {"link.rtt": ["1 ms", "2 ms"]}
    found = kvferry.search(
        searched(space, sampler="random", points=2), output="out", executor="in-process", plots=False
    )
    assert said in found.remarks

"""Decode systems by name, and scenarios that replace a role or one of its parameters."""

from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import yaml
from tiny import DECODING as TINY

from kvferry.analysis.metrics import metrics_for
from kvferry.api.written import written
from kvferry.pipelines.checks import names_in_use
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, ROLES
from kvferry.pipelines.parameters import BadParameters, arguments_of
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.blocking import TokenGroups, ValueGroups
from kvferry.policies.decode.placement import OneTier
from kvferry.policies.decode.residency import DoubleBuffer, Reuse
from kvferry.policies.decode.scored_keys import Landmarks, LowRankKeys, PartialKeys
from kvferry.policies.decode.selector import Everything
from kvferry.policies.decode.upkeep import KeepNewest, RollingGroups
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError


def test_a_parameter_goes_to_the_role_that_has_it() -> None:
    system = DECODE_SYSTEMS["kvswap"].with_policies(
        {"group_tokens": 8, "selected_tokens": 80, "ahead": False, "slots": 20, "rolling": False, "scores": "by_head"}
    )
    assert system.roles.selector == LowRankKeys(selected_tokens=80, ahead=False, scores="by_head")
    assert system.roles.residency == Reuse(slots=20)
    assert system.roles.layout == TokenGroups(group_tokens=8)
    assert system.roles.upkeep == RollingGroups(rolling=False)
    assert DECODE_SYSTEMS["kvswap"].roles.residency == Reuse()


def test_a_role_is_replaced_as_a_whole() -> None:
    kvswap = DECODE_SYSTEMS["kvswap"]
    assert kvswap.with_policies({"residency": "none"}).roles.residency == DoubleBuffer()
    assert kvswap.with_policies({"residency": {"name": "reuse", "slots": 9}}).roles.residency == Reuse(slots=9)
    changed = kvswap.with_policies({"selector": {"name": "landmarks", "per_head": True}, "selected_tokens": 64})
    assert changed.roles.selector == Landmarks(per_head=True, selected_tokens=64)
    changed = kvswap.with_policies({"layout": "value-groups", "upkeep": "none", "placement": "device"})
    assert (changed.roles.layout, changed.roles.upkeep) == (ValueGroups(), KeepNewest())
    assert changed.roles.placement == OneTier("device")
    assert kvswap.with_policies({"selector": "all"}).roles.selector == Everything()


def test_reuse_is_short_for_a_residency() -> None:
    infinigen = DECODE_SYSTEMS["infinigen-star"].with_policies({"reuse": True, "slots": 500, "metadata_share": 0.5})
    assert infinigen.roles.residency == Reuse(slots=500)
    assert infinigen.roles.selector == PartialKeys(compression=None, metadata_share=0.5)
    assert DECODE_SYSTEMS["kvswap"].with_policies({"reuse": True}).roles.residency == Reuse()


def test_with_a_role_that_is_replaced_go_its_parameters() -> None:
    # As a file says `slots`, and an override takes the buffer away.
    assert DECODE_SYSTEMS["kvswap"].with_policies({"reuse": False, "slots": 116}).roles.residency == DoubleBuffer()
    assert DECODE_SYSTEMS["kvswap"].with_policies({"residency": "none", "slots": 9}).roles.residency == DoubleBuffer()


@pytest.mark.parametrize(
    ("system", "policies", "message"),
    [
        (
            "kvswap",
            {"sigma": 3},
            "policies.sigma: unknown key; known here: ahead, attention, compression, group_tokens, ",
        ),
        ("kvswap", {"slot": 3}, "policies.slot: unknown key; .*did you mean 'slots'"),
        ("kvswap", {"landmarks": True}, "policies.landmarks: unknown key"),
        ("kvswap", {"slots": "many"}, "policies.slots: 'many' is not a whole number"),
        ("kvswap", {"metadata_share": -1.0}, "policies.metadata_share: -1.0: must be above 0"),
        ("shadowkv", {"metadata_share": 1.5}, "policies.metadata_share: 1.5: must be at most 1"),
        ("kvswap", {"reuse": "no"}, "policies.reuse: 'no' is not true or false"),
        (
            "specontext",
            {"placement": {"name": "progressive", "thresholds": [5, 3]}},
            "policies.placement.thresholds: 3 stands behind 5: a layer does not come back as KV grows",
        ),
        (
            "specontext",
            {"placement": {"name": "progressive", "thresholds": [-1]}},
            "policies.placement.thresholds.0: -1: must be at least 0",
        ),
        ("specontext", {"thresholds": [5, 3]}, "policies.thresholds: 3 stands behind 5: a layer does not come back"),
        (
            "specontext",
            {"placement": {"overflow": "tape"}},
            "policies.placement.overflow: 'tape' is none of host, storage",
        ),
        (
            "specontext",
            {"placement": {"spill": 1}},
            "policies.placement.spill: unknown key; known here: host, overflow, runtime_share, thresholds",
        ),
        ("dynakv", {"most_tokens": 0}, "policies.most_tokens: 0: must be at least 1"),
        ("dynakv", {"threshold": -1.0}, "policies.threshold: -1.0: must be at least 0"),
        ("dynakv", {"upkeep": {"threshold": -1.0}}, "policies.upkeep.threshold: -1.0: must be at least 0"),
        ("dynakv", {"cache_share": 2.0}, "policies.cache_share: 2.0: must be at most 1"),
        ("kvswap", {"compression": 0.5}, "policies.compression: 0.5: must be at least 1"),
        ("kvswap", {"residency": "lru"}, "policies.residency: unknown residency 'lru'; known: elastic, none, reuse"),
        ("kvswap", {"residency": 3}, "policies.residency: unknown residency '3'"),
        ("kvswap", {"residency": {"name": "reuse", "slot": 3}}, "policies.residency.slot: unknown key"),
        ("kvswap", {"residency": {"name": "none", "slots": 3}}, "policies.residency.slots: unknown key"),
        ("infinigen", {"slots": 500}, "policies.slots: unknown key"),
        ("flexgen", {"selected_tokens": 400}, "policies.selected_tokens: unknown key"),
        ("flexgen", {"reuse": True}, "policies.reuse: unknown key"),
        ("flexgen", {"residency": "reuse"}, "policies.residency: everything is read again"),
        ("vllm", {"group_tokens": 8}, "policies.group_tokens: unknown key"),
        ("shadowkv", {"compression": 0.5, "sigma": 1}, "policies.sigma"),
    ],
)
def test_what_a_system_does_not_have_is_refused_with_its_key(
    system: str, policies: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        DECODE_SYSTEMS[system].with_policies(policies)
    # A scenario that says so is refused before it runs.
    with pytest.raises(InputError, match=message.split(";")[0]):
        run_scenario(load_scenario({**TINY, "system": system, "policies": policies}))


def test_decoding_has_no_coupling_of_chunks() -> None:
    with pytest.raises(InputError, match="coupling: is about contexts loaded in chunks"):
        run_scenario(load_scenario(TINY, ["coupling=per_head"]))


def test_an_ablation_is_one_line() -> None:
    def figures(*settings: str) -> dict[str, float]:
        scenario = load_scenario(TINY, list(settings))
        return metrics_for(scenario, run_scenario(scenario))

    with_buffer, without = figures(), figures("policies.residency=none")
    assert with_buffer["reuse_rate"] > 0
    assert "reuse_rate" not in without
    assert without["read_bytes"] > with_buffer["read_bytes"]


@pytest.mark.parametrize("role", ["selector", "layout", "upkeep", "residency"])
def test_a_system_with_all_kv_in_memory_takes_no_role_that_it_would_ignore(role: str) -> None:
    name = {"selector": "low-rank-keys", "layout": "groups", "upkeep": "none", "residency": "none"}[role]
    with pytest.raises(BadParameters, match=rf"policies.{role}: .*"):
        DECODE_SYSTEMS["vllm"].with_policies({role: name})


# Values that a parameter takes, by its name or else by the type of what it has.
OTHERS: dict[str, list[Any]] = {
    "bool": [True, False],
    "int": [8, 9],
    "float": [0.5, 0.25],
    "NoneType": [8],
    "selected_share": [0.5, 0.25],
    "compression": [3.0],
    "threshold": [3.0],
    "thresholds": [[1, 2]],
    "host_bytes": ["1 GB"],
    **{name: [8] for name in ("window_tokens", "sink_tokens", "prefill_tokens")},
    "scores": ["by_head"],
    "overflow": ["host", "storage"],
    "replacement": ["lru"],
    "page_bytes": ["4 KiB"],
}


@pytest.mark.parametrize("name", sorted(DECODE_SYSTEMS))
def test_parameters_without_a_name_leave_the_others_of_a_role_as_the_system_has_them(name: str) -> None:
    """For every parameter of every role of every system: nothing but it changes, written flat or under its role."""
    system, seen = DECODE_SYSTEMS[name], 0
    for role in ROLES:
        part = getattr(system.roles, role)
        for one in (each for each in fields(part) if each.kw_only and role != "attention"):
            value = getattr(part, one.name)
            other = next(each for each in (OTHERS.get(one.name) or OTHERS[type(value).__name__]) if each != value)
            idle = {"batching"} if system.roles.placement.away else {"selector", "residency", "layout", "upkeep"}
            if role in idle and not (role == "selector" and system.roles.selector.evicts):
                continue
            if role == "residency" and not system.roles.selective:
                continue
            changed = getattr(system.with_policies({role: {one.name.removesuffix("_bytes"): other}}).roles, role)
            assert getattr(changed, one.name) != value, one.name
            assert replace(changed, **{one.name: value}) == part
            seen += 1
    assert seen


def test_kv_that_overflows_to_a_storage_that_is_not_there_is_refused_with_its_key() -> None:
    for placed, key in (
        ("policies.placement={overflow: storage}", "policies.placement.overflow"),
        ("policies.overflow=storage", "policies.overflow"),
        ("policies.placement=storage", "policies.placement"),
        ("system_policies.specontext.overflow=storage", "system_policies.specontext.overflow"),
    ):
        said = rf"--set .*: {key}: storage is where KV would go, .* say host, or --set device.storage=nvme"
        with pytest.raises(InputError, match=said):
            load_scenario("specontext/throughput", [placed], names_in_use)


def test_what_has_no_effect_is_said() -> None:
    wanted = load_scenario(TINY, ["workload.output=20", "workload.decoded=30", "live.kv_file=/nowhere/x.kv"])
    assert run_scenario(wanted).notes[:2] == (
        "workload.decoded of 30 has no effect: the output has 20 tokens",
        "live.kv_file has no effect: a modelled run writes no KV; backend: torch does",
    )


@dataclass
class Maker:
    """A plugin's callable that has no hash."""

    def __call__(self, tokens: int = 3) -> int:
        return tokens


def test_a_callable_without_a_hash_has_parameters_like_any_other() -> None:
    assert arguments_of(Maker(), {"tokens": 4}) == {"tokens": 4}


def test_a_role_replaced_by_its_own_name_keeps_the_systems_parameters() -> None:
    quest = DECODE_SYSTEMS["quest"]
    assert quest.roles.selector.per_head
    assert quest.with_policies({"selector": "page-bounds"}).roles == quest.roles
    fewer = quest.with_policies({"selector": {"name": "page-bounds", "selected_tokens": 64}}).roles.selector
    assert (fewer.per_head, fewer.selected_tokens) == (True, 64)
    # Another tier is another policy, though of one class.
    other = {"host": "device", "device": "host"}
    tier = DECODE_SYSTEMS["kvswap"].roles.placement.tier
    moved = DECODE_SYSTEMS["kvswap"].with_policies({"placement": other.get(tier, "host")})
    assert moved.roles.placement.tier == other.get(tier, "host")


def test_another_selector_chooses_head_by_head_where_the_systems_own_does() -> None:
    """Else one's own selector reads for all heads at once what Quest reads for each, and looks as much faster."""
    quest, kvswap = DECODE_SYSTEMS["quest"], DECODE_SYSTEMS["kvswap"]

    def per_head(system: Any, policies: dict[str, Any]) -> bool:
        return bool(system.with_policies(policies).roles.selector.per_head)

    assert all(per_head(quest, {"selector": name}) for name in ("landmarks", "low-rank-keys", "keys"))
    assert per_head(quest, {"selector": {"name": "landmarks", "selected_tokens": 64}})
    assert not per_head(kvswap, {"selector": "landmarks"})
    # What the scenario says goes first, wherever it says so.
    assert not per_head(quest, {"selector": {"name": "landmarks", "per_head": False}})
    assert not per_head(quest, {"selector": "landmarks", "per_head": False})
    # A policy that is head by head by itself stays so; one that scores nothing has no heads.
    assert per_head(kvswap, {"selector": "retrieval-head"})
    assert not per_head(quest, {"selector": "all"})


def test_the_folder_of_a_run_says_what_stays_the_systems_own() -> None:
    def said(*settings: str) -> Any:
        scenario = load_scenario({**TINY, "system": "quest"}, settings)
        return yaml.safe_load(written(scenario))["policies"]

    assert said() == {}
    assert said("policies.selector=landmarks") == {"selector": {"name": "landmarks", "per_head": True}}
    assert said("policies.selector=page-bounds") == {"selector": {"name": "page-bounds"}}
    own = said("policies.selector=landmarks", "policies.per_head=false")
    assert own == {"selector": {"name": "landmarks"}, "per_head": {"name": False}}
    # Read again, it is written again as it is.
    described = written(load_scenario({**TINY, "system": "quest"}, ["policies.selector=landmarks"]))
    assert written(load_scenario(yaml.safe_load(described))) == described

"""Systems by name, and policies that replace theirs."""

from typing import Any

import numpy as np
import pytest

from kvferry.codecs.sizes import CODECS
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.policies.loading.greedy import greedy_plan
from kvferry.policies.loading.hybrid import Hybrid
from kvferry.policies.loading.milp import milp_plan
from kvferry.policies.loading.problem import LoadProblem
from kvferry.policies.loading.single_path import CacheGen
from kvferry.policies.loading.staged import SCHEDULES, Staged
from kvferry.specs.errors import InputError


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_is_complete(name: str) -> None:
    system = SYSTEMS[name]
    assert system.codec in CODECS
    assert system.about
    assert system.new_loader() is not system.new_loader()  # loaders remember: each request has its own


def test_a_policy_is_replaced_and_the_table_left_alone() -> None:
    changed = SYSTEMS["strong-hybrid"].with_policies({"variant": "two-pointer", "codec": "kivi"})
    loader = changed.new_loader()
    assert isinstance(loader, Hybrid)
    assert (loader.variant, changed.codec) == ("two-pointer", "kivi")
    assert SYSTEMS["strong-hybrid"].codec == "huffman"


@pytest.mark.parametrize(
    ("reading", "of", "policies"),
    [
        ("sparkv-last-first", "sparkv", {"schedule": "greedy-last-first"}),
        ("sparkv-overdue", "sparkv", {"compute_overdue": True}),
        ("cachegen-best-level", "cachegen", {"objective": "quality"}),
    ],
)
def test_a_reading_differs_from_its_system_in_one_policy(reading: str, of: str, policies: dict[str, Any]) -> None:
    named, spelt, default = SYSTEMS[reading], SYSTEMS[of].with_policies(policies), SYSTEMS[of]
    assert (named.loader, named.codec, named.serving) == (default.loader, default.codec, default.serving)
    made, meant, plain = (
        {key: value for key, value in vars(one.new_loader()).items() if key != "controller"}
        for one in (named, spelt, default)
    )
    assert made == meant != plain


def test_physical_policies_carry_units() -> None:
    loader = SYSTEMS["cachegen"].with_policies({"objective": "500 ms"}).new_loader()
    assert isinstance(loader, CacheGen)
    assert loader.objective_s == 0.5


def test_a_schedule_with_its_parameters() -> None:
    rng = np.random.default_rng(1)
    problem = LoadProblem(compute_s=rng.random((3, 2, 1)), stream_bytes=rng.random((3, 2, 1)), coupling="all_heads")
    literal = {"name": "greedy", "reading": "literal", "stage_budget": "500 ms", "own_weight": 2}
    planner = SYSTEMS["sparkv"].with_policies({"schedule": literal}).settings["schedule"]
    assert planner(problem, 1.0) == greedy_plan(problem, 1.0, reading="literal", stage_budget_s=0.5, own_weight=2.0)
    assert planner(problem, 1.0) != greedy_plan(problem, 1.0, reading="literal", stage_budget_s=0.5)
    exact = {"name": "milp", "solver": "highs", "stages": 1, "node_limit": 1000}
    planner = SYSTEMS["sparkv"].with_policies({"schedule": exact}).settings["schedule"]
    assert planner.keywords == {"solver": "highs", "stages": 1, "node_limit": 1000}
    assert planner(problem, 1.0) == milp_plan(problem, 1.0).plan
    # Wall time would make equal scenarios unequal.
    with pytest.raises(InputError, match="schedule.time_limit: unknown key; known here: .*node_limit"):
        SYSTEMS["sparkv"].with_policies({"schedule": {"name": "milp", "time_limit": "10 s"}})


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_by_its_name(name: str) -> None:
    loader = SYSTEMS["sparkv"].with_policies({"schedule": name, "adapt": False}).new_loader()
    assert isinstance(loader, Staged)
    assert loader.controller is None


@pytest.mark.parametrize(
    ("system", "policies", "message"),
    [
        ("sparkv", {"shedule": "greedy"}, "policies.shedule: unknown key; known here: adapt, codec, .*'schedule'"),
        ("ferry", {"schedule": "greedy"}, "policies.schedule: unknown key; known here: codec, needed_first"),
        ("stream-only", {"adapt": True}, "policies.adapt: unknown key; known here: codec, serving$"),
        # YAML 1.2: `no` is text.
        ("sparkv", {"adapt": "no"}, "policies.adapt: 'no' is not true or false"),
        ("sparkv", {"adapt": "maybe"}, "policies.adapt: 'maybe' is not true or false"),
        ("sparkv", {"adapt": 1}, "policies.adapt: 1 is not true or false"),
        ("sparkv", {"adapt": {"name": True, "foo": 1}}, "policies.adapt: a mapping is not true or false"),
        ("sparkv", {"migration_limit": "x"}, "policies.migration_limit: 'x' is not a number"),
        ("sparkv", {"migration_limit": True}, "policies.migration_limit: true is not a number"),
        ("sparkv", {"migration_limit": 2}, "policies.migration_limit: .* a share of a stage's units, 0 to 1"),
        ("sparkv", {"schedule": "gredy"}, "policies.schedule: unknown schedule 'gredy'.*Did you mean 'greedy'"),
        ("sparkv", {"schedule": 5}, "policies.schedule: unknown schedule '5'"),
        ("sparkv", {"schedule": {"name": "greedy", "foo": 1}}, "policies.schedule.foo: unknown key; known here: own_w"),
        ("sparkv", {"schedule": {"name": "greedy", "redding": "literal"}}, "did you mean 'reading'"),
        ("sparkv", {"schedule": {"name": "chain", "foo": 1}}, "policies.schedule.foo: unknown key; none is known here"),
        ("sparkv", {"schedule": {"name": "greedy", "stage_budget": 5}}, "schedule.stage_budget: 5 has no unit"),
        (
            "sparkv",
            {"schedule": {"name": "greedy", "stage_budget": "0 s"}},
            "policies.schedule: .* not a positive time",
        ),
        ("sparkv", {"schedule": {"name": "greedy", "own_weight": "x"}}, "schedule.own_weight: 'x' is not a number"),
        ("sparkv", {"schedule": {"name": "greedy", "reading": "litral"}}, "schedule: .* Did you mean 'literal'"),
        ("sparkv", {"schedule": {"name": "greedy-last-first", "reading": "literal"}}, "greedy-last-first says it"),
        ("sparkv", {"schedule": {"name": "milp", "solver": "higs"}}, "schedule: .* Did you mean 'highs'"),
        ("sparkv", {"schedule": {"name": "milp", "stages": 1.5}}, "schedule.stages: 1.5 is not a whole number"),
        ("strong-hybrid", {"variant": "static"}, "policies.variant: 'static' is none of uniform, true-costs"),
        ("cachegen", {"objective": "2"}, "policies.objective: '2' has no unit; write it like '4 ms'"),
        (
            "cachegen",
            {"objective": "fast"},
            "policies.objective: 'fast' is not a time; write it like '4 ms'; or quality",
        ),
        ("cachegen", {"objective": "0 s"}, "policies.objective: .* must be above 0"),
        ("cachegen", {"codec": "gzip"}, "policies.codec: 'gzip' is none of "),
        ("cachegen", {"codec": {"name": "kivi", "bits": 2}}, "policies.codec: a mapping is none of "),
    ],
)
def test_what_a_system_cannot_take(system: str, policies: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SYSTEMS[system].with_policies(policies)

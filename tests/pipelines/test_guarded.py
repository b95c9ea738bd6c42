"""What a user's own policy answers is checked where it is asked; what comes with KVFerry passes every check."""

import re
from dataclasses import replace

import numpy as np
import pytest
from plugin import none_left, written  # noqa: F401
from tiny import DECODING, LOADING, tiny

from kvferry.pipelines.answers import fault_of_durations, fault_of_lookup
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, ROLES
from kvferry.pipelines.guarded import guarded
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.plugins import use
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.index import INDEX_KINDS
from kvferry.policies.decode.rows import BlockRows, Lookup
from kvferry.specs.errors import InputError, KvferryError
from kvferry.specs.scenario import Scenario

pytestmark = pytest.mark.usefixtures("here")


def refused(text: str, scenario: Scenario) -> str:
    """What is said of the plugin, when the scenario asks it."""
    use(written(text))
    with pytest.raises(KvferryError) as error:
        run_scenario(scenario)
    assert not isinstance(error.value, InputError)
    return str(error.value)


LOADER = """\
from kvferry.policies.loading.loader import Compute, LinkWindow, Stream
from kvferry.policies.loading.single_path import StreamOnly


class Mine(StreamOnly):
    def next_{path}(self, progress, facts):
        return {answer}


KVFERRY = {{"loader": {{"mine": Mine}}}}
"""


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        ("stream", "42", "gave 42; Stream((unit, ...)) or None would do"),
        ("stream", "Stream(())", "gave the units (); a tuple of one at least, or None in its place, would do"),
        ("stream", "Stream([0])", "gave the units [0]; a tuple"),
        ("stream", "Stream((-1,))", "gave unit -1; it is none of 0 to "),
        ("stream", "Stream((10**9,))", "gave unit 1000000000; it is none of 0 to "),
        ("stream", "Stream((0.5,))", "gave unit 0.5; it is none of 0 to "),
        ("stream", "Stream((True,))", "gave unit True; it is none of 0 to "),
        ("stream", "Stream((3, 3))", "gave unit 3 twice; once would do"),
        ("stream", "Stream((3,), level=99)", "gave level 99; the encoding has 0 to 0"),
        ("stream", "Stream((3,))", "gave unit 3, which is on its way already; one that is absent would do"),
        ("compute", "Stream((0,))", "gave Stream(units=(0,), level=0); Compute((unit, ...)) or None would do"),
        ("compute", "Compute((-1,))", "gave unit -1; it is none of 0 to "),
        ("compute", "Compute((1,))", "gave unit 1, which cannot be computed yet; one for which progress.computable"),
        ("compute", "Compute((0,))", "gave unit 0, which the processor has already; None would do"),
    ],
)
def test_a_loaders_answer_that_cannot_be_carried_out(path: str, answer: str, says: str) -> None:
    said = refused(LOADER.format(path=path, answer=answer), tiny(LOADING, system="mine"))
    assert said.startswith(f"mine.py:6: loader 'mine': next_{path} {says}")


@pytest.mark.parametrize("window", ["3", "None", "LinkWindow(times=float('nan'))", "LinkWindow(ahead_s=-1.0)"])
def test_a_loaders_window(window: str) -> None:
    text = LOADER.format(path="compute", answer="None").replace("    def", f"    window = {window}\n\n    def", 1)
    said = refused(text, tiny(LOADING, system="mine"))
    assert said.startswith("mine.py: loader 'mine': window gave ")
    assert said.endswith("would do")


# By kind: the class that a bad answer is put into, the method, and the scenario that asks.
ROLE = """\
from dataclasses import dataclass

import numpy as np

from kvferry.policies.decode.batcher import Continuous
from kvferry.policies.decode.blocking import TokenGroups
from kvferry.policies.decode.page_bounds import PageBounds
from kvferry.policies.decode.placement import Progressive
from kvferry.policies.decode.residency import Reuse
from kvferry.policies.decode.rows import BlockRows
from kvferry.policies.decode.selector import Index
from kvferry.policies.decode.stages import Stage
from kvferry.policies.decode.upkeep import RollingGroups
from kvferry.sim.cost import Cost
from kvferry.sim.costs.roofline import Roofline


{decorated}
class Mine({base}):
    def {method}(self, *asked):
        return {answer}


KVFERRY = {{"{kind}": {{"mine": Mine}}}}
"""
BASES = {
    "selector": "PageBounds",
    "residency": "Reuse",
    "layout": "TokenGroups",
    "upkeep": "RollingGroups",
    "placement": "Progressive",
    "batching": "Continuous",
}


@pytest.mark.parametrize(
    ("kind", "method", "answer", "says"),
    [
        ("selector", "selected", "-5", "-5; a whole number from 1 to 1, or None, would do"),
        ("selector", "selected", "0.5", "0.5; a whole number from 1 to 1, or None, would do"),
        ("selector", "wanted_tokens", "float('nan')", "nan; a finite number, not below 0, would do"),
        ("selector", "vectors", "-(10**9)", "-1000000000; a whole number from 0 would do"),
        ("selector", "index", "Index(self.spec(asked[0], 2), -1e12)", "an index whose n_bytes is -1000000000000.0; a "),
        ("selector", "index", "3", "3; an Index with an IndexSpec, or None, would do"),
        ("selector", "ask", "3", "3; an Ask would do"),
        ("selector", "take", "BlockRows(asked[0].blocks.ids + 10**6)", "block 10"),
        ("selector", "take", "BlockRows(asked[0].blocks.ids - 10**6)", "block -"),
        ("selector", "take", "asked[0]", "Ranked("),
        ("selector", "take", "BlockRows(asked[0].blocks.ids[:1])", "1 rows; 4 would do, as the answer has"),
        ("selector", "take", "BlockRows(asked[0].blocks.ids * 0.5)", "ids of the type float64; whole numbers would do"),
        ("selector", "take", "BlockRows(asked[0].blocks.ids * 0 + 7)", "block 7 twice in a row; each once would do"),
        (
            "selector",
            "take",
            "BlockRows(np.indices((4, 30))[1])",
            "30 blocks in a row; at most 25 would do, as memory ",
        ),
        ("selector", "stages", "(Stage('nonsense', 0),)", "a stage of the kind 'nonsense'; bring_known, prefill, "),
        (
            "selector",
            "stages",
            "(Stage('attend', 0, (('bring', 0),)),)",
            "stage ('attend', 0) before ('bring', 0), for",
        ),
        ("residency", "slots_within", "-3", "-3; a whole number from 0 would do"),
        ("residency", "reserved_bytes", "-1e15", "-1000000000000000.0; a finite number, not below 0, would do"),
        ("residency", "start", "None", "None; what has look_up, renew, held, ahead, forget, check, too, would do"),
        ("layout", "block_tokens", "3.5", "3.5; a whole number from 1 would do"),
        ("layout", "layout", "None", "None; a Layout or ClusterLayout would do"),
        ("upkeep", "holdings", "-1", "-1; a tuple of Holdings would do"),
        ("placement", "tiers", "('cloud',) * asked[0].layers", "the tier 'cloud'; device, host or storage would do"),
        ("placement", "tiers", "('host',) * 100", "100 tiers; one for each of "),
        ("placement", "tiers", "('host',)", "1 tiers; one for each of "),
        ("placement", "tiers", "None", "None; a tuple with the tier of each of "),
        ("batching", "joins", "False", "False where nobody decodes; then nobody ever would: True would do"),
        ("batching", "joins", "3", "3; True or False would do"),
    ],
)
def test_a_roles_answer_that_cannot_be(kind: str, method: str, answer: str, says: str) -> None:
    text = ROLE.format(
        kind=kind, method=method, answer=answer, base=BASES[kind], decorated="@dataclass(frozen=True, kw_only=True)"
    )
    system = {"batching": "vllm", "selector": "quest"}.get(kind, "kvswap")
    # Where KV is in the host's memory, every answer of the machine is looked at by itself.
    elsewhere = {} if kind == "batching" else {"placement": "host"}
    more = {"budget": {"kv_share": None, "kv": "9 MB"}} if elsewhere else {}
    said = refused(text, tiny(DECODING, system=system, policies={**elsewhere, kind: "mine"}, **more))
    assert said.startswith(f"mine.py:20: {kind} 'mine': {method} gave {says}")


def test_more_slots_than_there_are() -> None:
    """A residency that keeps all blocks has made room for few."""
    answer = "super().start(asked[0], asked[1], asked[1])"
    text = ROLE.format(
        kind="residency",
        method="start",
        answer=answer,
        base="Reuse",
        decorated="@dataclass(frozen=True, kw_only=True)",
    )
    asked = {"residency": {"name": "mine", "slots": 12}, "selected_tokens": 40, "group_tokens": 4}
    said = refused(text, tiny(DECODING, policies=asked))
    assert re.fullmatch(r"mine\.py: residency 'mine': look_up gave slot \d+; one of 0 to 11 would do", said)


def test_an_index_of_an_unknown_kind() -> None:
    text = ROLE.format(
        kind="selector",
        method="other",
        answer="0",
        base="PageBounds",
        decorated="@dataclass(frozen=True, kw_only=True)",
    ).replace("    def other", "    kind = 'nonsense'\n\n    def other")
    said = refused(text, tiny(DECODING, system="quest", policies={"selector": "mine"}))
    assert said.startswith("mine.py: selector 'mine': index gave an index of the kind 'nonsense'; low-rank-keys, ")


def test_what_a_role_has_instead_of_methods() -> None:
    text = ROLE.format(
        kind="layout", method="other", answer="0", base="TokenGroups", decorated="@dataclass(frozen=True, kw_only=True)"
    ).replace("    def other", "    before_write = ('nonsense',)\n\n    def other")
    said = refused(text, tiny(DECODING, policies={"layout": "mine"}))
    assert said.startswith(
        "mine.py: layout 'mine': before_write gave 'nonsense'; stages of the kinds bring_known, prefill, "
    )


def test_slots_are_counted_from_0() -> None:
    def said(*slots: int) -> str | None:
        found = Lookup(BlockRows(np.array([[3, 5]])), np.array([[True, False]]), np.array([slots]))
        return fault_of_lookup(found, found.wanted, blocks=9, slots=2)

    assert (said(0, 1), said(1, 2), said(-1, 0)) == (
        None,
        "slot 2; one of 0 to 1 would do",
        "slot -1; one of 0 to 1 would do",
    )


@pytest.mark.parametrize("cost", ["Cost(-1.0)", "Cost(float('nan'))", "Cost(float('inf'))", "Cost(1.0, -1.0)", "None"])
def test_a_cost_that_cannot_be(cost: str) -> None:
    text = ROLE.format(kind="cost-model", method="cost", answer=cost, base="Roofline", decorated="# No dataclass.")
    said = refused(text, tiny(LOADING, costs="mine"))
    assert said.startswith("mine.py:20: cost-model 'mine': cost gave ")
    assert said.endswith("; a Cost of finite seconds and bytes, none below 0, would do")


def test_durations_that_cannot_be() -> None:
    assert fault_of_durations([0.0, 2.0]) is None
    text = ROLE.format(
        kind="cost-model", method="durations_s", answer="np.array([-1.0])", base="Roofline", decorated="# No dataclass."
    ).replace("*asked", "*asked, **more")
    said = refused(text, tiny(LOADING, costs="mine"))
    assert said == (
        "mine.py:20: cost-model 'mine': durations_s gave array([-1.]); finite seconds, none below 0, would do"
    )


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("None", "None; a kvferry.policies.loading.plan.Plan would do"),
        ("Plan((Stage(stream=tuple(range(-problem.units, 0))),))", "unit -"),
        ("Plan((Stage(stream=tuple(range(problem.units + 1))),))", "unit "),
        ("Plan((Stage(stream=tuple(range(problem.units))),) * 2)", "unit 0 2 times; each of the units 0 to "),
        ("Plan((Stage(stream=(0,)),))", "unit 1 not at all; each of the units 0 to "),
        ("Plan((Stage(stream=(0.5,)),))", "the units (0.5,); whole numbers would do"),
    ],
)
def test_a_plan_that_cannot_be(plan: str, says: str) -> None:
    text = f"""\
from kvferry.policies.loading.plan import Plan, Stage


def mine(problem, bytes_per_s):
    return {plan}


KVFERRY = {{"schedule": {{"mine": mine}}}}
"""
    said = refused(text, tiny(LOADING, system="sparkv", policies={"schedule": "mine"}))
    assert said.startswith(f"mine.py:4: schedule 'mine': gave {says}")


def test_the_parts_of_a_system() -> None:
    text = ROLE.format(
        kind="system",
        method="tiers",
        answer="None",
        base="Progressive",
        decorated="@dataclass(frozen=True, kw_only=True)",
    ).replace(
        '{"mine": Mine}',
        '{"mine": DecodeSystem(about="mine", roles=replace(DECODE_SYSTEMS["kvswap"].roles, placement=Mine()))}',
    )
    imports = "from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS, DecodeSystem\n"
    text = imports + text.replace("import dataclass", "import dataclass, replace")
    said = refused(text, tiny(DECODING, system="mine"))
    assert said.startswith("mine.py:21: system 'mine': tiers gave None; a tuple with the tier of each of ")


def test_what_comes_with_kvferry_is_not_looked_at_in_a_run() -> None:
    assert guarded("system", "mine", "mine.py", DECODE_SYSTEMS["kvswap"]) == DECODE_SYSTEMS["kvswap"]


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_loader_passes_and_runs_as_it_does_alone(name: str) -> None:
    alone = run_scenario(tiny(LOADING, system=name))
    watched = guarded("loader", name, "mine.py", SYSTEMS[name])
    assert run_scenario(tiny(LOADING, system=name), system=watched).requests == alone.requests


@pytest.mark.parametrize("name", DECODE_SYSTEMS)
def test_every_role_passes_and_runs_as_it_does_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = run_scenario(tiny(DECODING, system=name))
    monkeypatch.setattr("kvferry.pipelines.guarded._bundled", lambda thing: False)
    watched = guarded("system", name, "mine.py", DECODE_SYSTEMS[name])
    assert type(watched.roles.selector) is not type(DECODE_SYSTEMS[name].roles.selector)
    again = run_scenario(tiny(DECODING, system=name), system=watched)
    # What attention mass a selector of one's own holds is not known.
    assert again.decoded is not None and alone.decoded is not None
    decoded = replace(again.decoded, attention_mass=alone.decoded.attention_mass)
    assert (again.outcome, again.why, decoded) == (alone.outcome, alone.why, alone.decoded)


@pytest.mark.parametrize("role", [role for role in ROLES if role != "attention"])
def test_every_entry_of_a_role_keeps_its_parameters(role: str) -> None:
    for name, maker in ROLES[role].items():
        watched, own = guarded(role, name, "mine.py", maker)(), maker()
        assert isinstance(watched, type(own))
        assert repr(watched) == repr(own)
        if "selected_tokens" in vars(own):
            with pytest.raises(InputError):
                DECODE_SYSTEMS["quest"].with_policies({role: {"name": name, "selected_tokens": "x"}})


def test_kinds_of_indexes_are_those_that_selectors_have() -> None:
    kinds = {getattr(maker, "kind", None) for maker in ROLES["selector"].values()}
    assert kinds - {None} == set(INDEX_KINDS)

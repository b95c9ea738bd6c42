"""A reuse buffer and the budget: keys make room for it, and a run without one says so."""

import itertools
import re

import pytest
from decoding import buffer_bytes
from typer.testing import CliRunner

from kvferry.analysis.metrics import metrics_for
from kvferry.api.scenario import load
from kvferry.cli.main import app
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

SHORT = [
    "device.storage=emmc",
    "workload.context=6Ki",
    "workload.batch=1",
    "workload.output=9",
    "workload.decoded=null",
]


def scenario(*settings: str) -> Scenario:
    return load_scenario("kvswap/throughput", [*SHORT, *settings])


def plan(*settings: str) -> DecodePlan:
    given = scenario(*settings)
    return plan_for(given, DECODE_SYSTEMS[given.system].with_policies(given.policy_values))


def of_the_buffer(run: Run) -> tuple[str, ...]:
    """What the run says of its reuse buffer; that selections are generated is told beside it."""
    return tuple(note for note in run.notes if not note.startswith("selections are generated"))


@pytest.mark.parametrize("system", ["infinigen-star-ru", "shadowkv"])
def test_keys_yield_to_one_selections_slots(system: str) -> None:
    settings = [f"system={system}", "workload.output=1000", "policies.compression=fit"]
    if system == "shadowkv":
        settings += ["workload.context=8Ki", "policies.residency=reuse"]
    # Half of the budget, or all of it, for keys would leave no selection of every layer.
    chosen = plan(*settings)
    assert chosen.choice.selected is not None
    assert chosen.staying.slots >= chosen.choice.selected
    assert chosen.memory.sequence_bytes <= chosen.managed.budget_bytes
    assert chosen.keys.rank >= 1


def test_a_run_with_a_part_of_a_selection_says_which_budget_would_hold_one() -> None:
    """KVSwap A.1 and A.4 know buffers of any size: reuse grows with them, without a step where a selection fits."""
    rates, memory = list[float](), list[float]()
    for share in (0.025, 0.04, 0.065):
        given = scenario(f"budget.kv_share={share}")
        run, sized = run_scenario(given), plan(f"budget.kv_share={share}")
        (note,) = of_the_buffer(run)
        found = re.search(r"holds no selection .*; budget.kv_share of (\S+), ", note)
        assert found
        kept = f"a layer keeps {sized.staying.slots:,} of {sized.choice.selected:,} selected groups: a budget of "
        assert note.startswith(kept)
        rates.append(metrics_for(given, run)["reuse_rate"])
        memory.append(sized.memory.sequence_bytes / sized.managed.budget_bytes)
    assert 0 < rates[0] < rates[1] < rates[2]
    assert max(memory) <= 1 and min(memory[1:]) > 0.9
    with_it = scenario(f"budget.kv_share={found[1]}")
    run = run_scenario(with_it)
    assert of_the_buffer(run) == () and metrics_for(with_it, run)["reuse_rate"] > rates[2]
    whole, less = (plan(f"budget.kv_share={float(found[1]) - short}") for short in (0.0, 2e-4))
    assert less.staying.slots < less.choice.selected <= whole.staying.slots


def test_so_does_one_whose_budget_is_in_bytes() -> None:
    (note,) = of_the_buffer(run_scenario(scenario("budget={kv: 50 MiB}", "workload.batch=2")))
    found = re.search(r"; budget.kv of ([\d,]+) KiB for all would", note)
    assert found
    least = int(found[1].replace(",", ""))
    whole, less = (plan(f"budget={{kv: {least - short} KiB}}", "workload.batch=2") for short in (0, 1))
    assert less.staying.slots < less.choice.selected <= whole.staying.slots


def test_a_share_of_a_short_context_that_cannot_do_is_not_told() -> None:
    (note,) = of_the_buffer(run_scenario(scenario("workload.context=400", "budget.kv_share=0.5")))
    assert re.search(r"budget.kv_share of null and budget.kv of [\d,]+ KiB for all would", note)


def test_without_reuse_nothing_is_said() -> None:
    given = scenario("policies.reuse=false")
    run = run_scenario(given)
    assert of_the_buffer(run) == () and "reuse_rate" not in metrics_for(given, run)


def test_a_buffer_that_the_decoded_part_does_not_fill_is_told() -> None:
    long = ["workload.context=8Ki", "workload.output=60", "budget.kv_share=0.9"]
    part, whole = scenario(*long, "workload.decoded=12"), scenario(*long)
    run, slots = run_scenario(part), plan(*long).staying.slots
    (note,) = of_the_buffer(run)
    misses = sum(wanted - reused for wanted, reused in run.decoded.step_blocks)
    filled = 100 * misses / (part.model.layers * slots)
    assert note.startswith(f"the reuse buffers have {slots:,} slots, and the 12 tokens that are decoded fill")
    assert f"fill {filled:.0f} % of them: more is reused over all 60 tokens" in note
    everything = run_scenario(whole)
    assert of_the_buffer(everything) == ()
    assert metrics_for(whole, everything)["reuse_rate"] > metrics_for(part, run)["reuse_rate"]
    assert of_the_buffer(run_scenario(scenario(*long, "workload.decoded=12", "budget.kv_share=0.08"))) == ()


def test_keys_that_are_narrower_than_published_are_told() -> None:
    fit = ("system=shadowkv", "policies.compression=fit")
    run, sized = run_scenario(scenario(*fit)), plan(*fit)
    (note,) = (note for note in run.notes if "keys are rebuilt from" in note)
    assert note.startswith(
        f"keys are rebuilt from {sized.keys.rebuilt_rank} of 1,024 numbers, as policies.compression=fit"
    )
    assert "as published 160: a larger budget makes them wider" in note
    compression = 1024 / sized.keys.rebuilt_rank
    same = [f"policies.compression={compression}", "system=shadowkv"]
    (note,) = (note for note in run_scenario(scenario(*same)).notes if "keys are" in note)
    assert f"policies.compression={compression:g} has them; as published 160, which takes longer" in note
    assert plan(*same).keys.rebuilt_rank == sized.keys.rebuilt_rank
    as_published = scenario("system=shadowkv", "system_policies.shadowkv.compression=null", "budget.kv_share=0.3")
    assert not any("keys are" in note for note in run_scenario(as_published).notes)


@pytest.mark.parametrize("share", ["policies.metadata_share=0.4", "policies.selector={metadata_share: 0.4}"])
def test_a_share_of_the_budget_that_keys_do_not_follow_is_told(share: str) -> None:
    def told(*settings: str) -> bool:
        return any("metadata_share has no effect" in note for note in run_scenario(scenario(*settings)).notes)

    loki = "system=loki"
    assert told(loki, share) and not told(loki) and not told("system=infinigen-star-ru")
    assert not told(loki, share, "policies.compression=fit")


@pytest.mark.parametrize("system", ["infinigen", "infinigen-star-ru", "loki", "shadowkv"])
def test_a_budget_without_room_for_keys_as_published_is_refused_with_what_would_do(system: str) -> None:
    asked = (f"system={system}", f"system_policies.{system}.compression=null", "budget.kv_share=0.07")
    with pytest.raises(
        InputError, match=r"hold no selection .*; so would policies\.compression=fit, with narrower"
    ) as met:
        plan(*asked)
    assert plan(*asked[:1], *asked[2:], "policies.compression=fit").keys is not None
    would = re.search(r"; ([\d,.]+) MB would", str(met.value))
    assert would
    share = (float(would[1].replace(",", "")) + 0.1) * 1e6 / scenario().model.kv_full_bytes(6 * 1024)
    assert plan(*asked[:2], f"budget.kv_share={share:.4f}").keys is not None
    # No width would do.
    with pytest.raises(InputError) as met:
        plan(*asked[:2], "budget.kv_share=0.0001")
    assert "fit" not in str(met.value)


def test_where_all_kv_is_in_memory_nothing_is_said() -> None:
    assert of_the_buffer(run_scenario(scenario("budget.kv_share=0.065", "policies.placement=device"))) == ()


def test_the_terminal_shows_it() -> None:
    given = [word for setting in (*SHORT, "budget.kv_share=0.065") for word in ("--set", setting)]
    shown = CliRunner().invoke(app, ["compare", "kvswap/throughput", "--systems", "kvswap", *given]).stdout
    assert "selected groups: a budget of " in shown.replace("\n", " ")


def test_a_buffer_has_no_more_slots_than_there_are_blocks() -> None:
    # 48 GiB are free for a context of 768 MiB.
    endless = plan("budget={kv_share: null}", "policies.slots=all")
    assert endless.staying.slots == endless.layout.blocks
    assert buffer_bytes(endless) < 1.1 * endless.model.kv_full_bytes(endless.context + endless.output)
    assert plan("budget={kv_share: null}", "policies.slots=9000").staying.slots == endless.layout.blocks


def test_more_memory_never_slows_decoding_by_default() -> None:
    """Of a runtime that searches all slots for each block, so that all that the budget holds are too many."""
    budgets, settings = (0.07, 0.1, 0.2, 0.5), {"workload.context": "16Ki", "workload.batch": 8, "workload.decoded": 40}

    def took(**more: str) -> list[float]:
        runs = [
            run_scenario(load("kvswap/throughput", {**settings, **more, "budget.kv_share": one})) for one in budgets
        ]
        return [one.decoded.token_times_s[-1] - one.decoded.token_times_s[0] for one in runs if one.decoded]

    took_s, all_slots_s = took(), took(**{"policies.slots": "all"})
    assert all(after <= 1.001 * before for before, after in itertools.pairwise(took_s))
    assert took_s[-1] < 0.95 * all_slots_s[-1] and all_slots_s[-1] > 1.05 * all_slots_s[0]
    # What hardly pays is left.
    assert took_s[0] <= 1.005 * all_slots_s[0]


def test_other_words_for_slots_are_refused_under_their_key() -> None:
    with pytest.raises(InputError, match=r"policies\.slots: 'many' is not a whole number, or all$"):
        load("kvswap/throughput", ["policies.slots=many"])


def test_where_a_search_costs_nothing_all_slots_pay() -> None:
    where = ("budget={kv_share: 0.5}", "workload.context=16Ki", "workload.batch=8", "device.storage=nvme")
    free, searched = (plan(*where, f"runtime={name}").staying.slots for name in ("ideal", "kvswap-prototype"))
    assert free == plan(*where, "policies.slots=all").staying.slots > searched

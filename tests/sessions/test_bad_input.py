"""Sessions that ask for more than there is: flash that fills up, turns that fit nowhere, budgets that hold nothing."""

import re
from pathlib import Path

import pytest
from tiny import TURNS, tiny, turns

from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.sessions.faults import without_effect
from kvferry.sessions.systems import SESSION_SYSTEMS
from kvferry.specs.errors import InputError

# Conversations about three documents of ten blocks, one after the other: more than is kept.
MANY = ("workload.turns=8", "workload.contexts=3", "workload.turns_each=2.0", "workload.think=2 s")
# A block of 64 tokens takes 32 KiB: six lie on flash.
SIX = 6 * 64 * 512


def ran(*overrides: str) -> Run:
    return run_scenario(tiny(TURNS, *overrides))


@pytest.mark.parametrize("system", ["on-flash", "three-way", "everywhere"])
def test_flash_is_full_in_the_middle(system: str) -> None:
    # By the budget or by what the device holds.
    for full in (f"budget.kept_flash={SIX} B", f"device.storage.capacity_bytes={SIX} B"):
        found = turns(ran(*MANY, f"system={system}", full))
        assert max(turn.kept_flash_bytes for turn in found) == SIX
        for turn in found:
            assert turn.from_memory + turn.from_flash + turn.from_cloud + turn.computed == turn.prompt
        # What was given up is had again, from the cloud or by computing.
        assert sum(turn.from_cloud + turn.computed for turn in found[1:]) > 0


def test_flash_that_a_turn_decodes_on_fills_up() -> None:
    # Its file for the longest turn and six blocks: kept KV makes way for the file.
    whole = turns(ran(*MANY, "system=kvswap-on-flash", "budget.kept_memory=null"))
    capacity = max(turn.kept_flash_bytes for turn in whole)
    found = turns(
        ran(
            *MANY,
            "system=kvswap-on-flash",
            "budget.kept_memory=null",
            f"device.storage.capacity_bytes={capacity:.0f} B",
        )
    )
    assert 0 < max(turn.kept_flash_bytes for turn in found) < capacity
    assert all(turn.from_flash + turn.from_cloud + turn.computed == turn.prompt for turn in found)


@pytest.mark.parametrize("system", ["on-flash", "three-way", "streamed"])
def test_a_turn_that_is_larger_than_memory(system: str) -> None:
    run = ran(f"system={system}", "budget.memory=8 MiB", "workload.context=64Ki tokens", "budget.kept_memory=null")
    assert run.outcome == "out_of_memory"
    what = r"turn 1 of conversation 1: 65,582 tokens take [\d.]+ MB of memory, [\d.]+ MB are free; a shorter prompt, "
    assert re.match(what, run.why), run.why
    assert run.sessions is not None and not run.sessions.turns


def test_a_turn_that_is_larger_than_memory_and_flash() -> None:
    run = ran(
        "system=kvswap-on-flash", "budget={}", "workload.context=64Ki tokens", "device.storage.capacity_bytes=10 MB"
    )
    assert run.outcome == "infeasible"
    assert re.match(
        r"turn 1 of conversation 1: 65,582 tokens take [\d.]+ MB of storage, which holds 10.0 MB; ", run.why
    )


@pytest.mark.parametrize(
    ("budget", "what"),
    [
        ("budget.kept_memory=0 B", "budget.kept_memory: '0 B': must be above 0"),
        ("budget.kept_flash=0 B", "budget.kept_flash: '0 B': must be above 0"),
        ("budget.memory=0 B", "budget.memory: '0 B': must be above 0"),
        (
            "budget.kept_memory=31 KiB",
            "budget.kept_memory: 31.7 kB hold no block of 64 tokens, 32.8 kB would; or a smaller workload.block, or "
            "keep without memory",
        ),
        ("budget.kept_flash=5 B", "budget.kept_flash: 5 B hold no block of 64 tokens, 32.8 kB would; "),
    ],
)
def test_a_budget_that_holds_nothing(budget: str, what: str) -> None:
    with pytest.raises(InputError, match=re.escape(what)) as error:
        ran(budget)
    assert "\n" not in str(error.value)


def test_a_context_of_too_many_blocks_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="workload.block: makes 131,072 blocks of one turn; at most 100,000 will do"):
        ran("workload.context=8Mi tokens", "workload.question=1", "workload.output=1")


def test_all_turns_of_too_many_blocks_are_refused_before_memory_is_taken() -> None:
    # Each makes 80,000 of them, twice: all would take 128 GB.
    many = ("workload.turns=100000", "workload.context=80000", "workload.block=1", "workload.turns_each=1.0")
    with pytest.raises(InputError, match="workload.block: all turns make more than 50,000,000 blocks"):
        ran(*many, "workload.question=1", "workload.output=1", "workload.decoded=null")


def test_a_load_of_too_many_units_is_refused() -> None:
    # Of each token, in each of four layers and two heads.
    one = ("workload.context=70000", "workload.question=1", "workload.block=1", "workload.turns=1")
    with pytest.raises(
        InputError, match=r"workload.block: makes 560,008 units in the longest load \(blocks x layers x KV"
    ):
        ran(*one, "coupling=per_head")


def test_a_conversation_that_outgrows_memory_keeps_its_first_turns() -> None:
    run = ran("budget={memory: 6 MiB}", "workload.question=2000", "workload.turns_each=1000.0")
    assert run.outcome == "out_of_memory"
    assert run.why.startswith("turn 4 of conversation 1: 8,664 tokens take")
    assert run.sessions is not None and len(run.sessions.turns) == 3


def test_what_is_kept_where_nothing_is_kept_is_said_once_it_is_asked_for() -> None:
    system = SESSION_SYSTEMS["forgetful"]
    asked = ("system=forgetful", "budget.kept_memory=null")
    said = [
        list(without_effect(tiny(TURNS, *asked, f"budget.kept_flash={most}"), system)) for most in ("null", "1 MiB")
    ]
    assert said == [[], [f"budget.kept_flash has no effect: keep is {system.keep}"]]


def test_a_recording_over_a_drawn_workload_is_told_how_to_replace_it(tmp_path: Path) -> None:
    log = tmp_path / "turns.csv"
    log.write_text("arrival,context,question,output\n0,100,20,2\n5,200,20,2\n")
    with pytest.raises(InputError) as refused:
        load_scenario("session/day", [f"workload.trace={log}", "workload.turns=2"])
    said = str(refused.value)
    assert said.startswith(f"--set workload.trace={log}: workload.trace: ")
    assert "and the workload says context, output, spread, contexts, too; leave these out" in said
    (instead,) = re.findall("--set '(.+)'", said)
    assert load_scenario("session/day", [instead.replace("FILE", str(log))]).session.workload.turns == 2


def test_a_budget_is_too_small_for_the_blocks_of_a_logs_hash_ids(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n')
    workload = f"workload={{kind: session, trace: {path}, turns: 1}}"
    # 512 tokens take 256 KiB, more than the 128 KiB that the scenario keeps.
    with pytest.raises(InputError, match=re.escape("budget.kept_memory: 131.1 kB hold no block of 512 tokens")):
        ran(workload)

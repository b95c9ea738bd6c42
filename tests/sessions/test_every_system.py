"""Every loading system meets every decode system: a run ends, or is refused in one line that says why."""

import re
from itertools import product

import pytest
from tiny import TURNS, tiny

from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.sessions.systems import SESSION_SYSTEMS
from kvferry.specs.errors import InputError

# What cannot decode turns, or nothing of what it leaves on flash.
REFUSED = {
    "shadowkv": "writes values alone to flash, and the next turn needs keys, too; ",
    "sliding-window": "gives up the KV of a prompt's beginning, behind which no later turn can go on; ",
    "streaming-llm": "gives up the KV of a prompt's beginning, behind which no later turn can go on; ",
    "os-paging": "maps one file into memory for a whole run, and turns have files of their own; ",
}


def ended(load: str, decode: str, keep: str, *more: str) -> Run | None:
    """The run of four turns; None: it was refused, as it should be."""
    settings = (f"policies.load={load}", f"policies.decode={decode}", f"policies.keep={keep}", *more)
    scenario = tiny(TURNS, *settings)
    if decode in REFUSED:
        with pytest.raises(InputError, match=re.escape(f"policies.decode: {decode} {REFUSED[decode]}")) as error:
            run_scenario(scenario)
        assert "\n" not in str(error.value)
        return None
    run = run_scenario(scenario)
    assert run.outcome == "done", run.why
    return run


def check(run: Run | None) -> None:
    """All of every prompt came from somewhere, and nothing is kept beyond what may be."""
    if run is None:
        return
    assert run.sessions is not None
    assert len(run.sessions.turns) == 4
    for turn in run.sessions.turns:
        assert turn.from_memory + turn.from_flash + turn.from_cloud + turn.computed == turn.prompt
        assert turn.arrival_s <= turn.began_s <= turn.got_s <= turn.first_token_s <= turn.end_s
        assert turn.kept_memory_bytes <= 128 * 1024
        # A first token is there no sooner than it can be.
        assert turn.bound_s is not None
        assert turn.bound_s <= (turn.first_token_s - turn.arrival_s) * (1 + 1e-9)


@pytest.mark.parametrize("decode", DECODE_SYSTEMS)
def test_every_decode_system(decode: str) -> None:
    check(ended("ferry", decode, "memory-flash"))


@pytest.mark.parametrize("load", SYSTEMS)
def test_every_loading_system(load: str) -> None:
    check(ended(load, "vllm", "drop"))
    check(ended(load, "kvswap", "flash"))


@pytest.mark.parametrize("system", SESSION_SYSTEMS)
def test_every_composition(system: str) -> None:
    run = run_scenario(tiny(TURNS, system=system))
    check(run)


@pytest.mark.long
@pytest.mark.parametrize(("load", "decode"), list(product(SYSTEMS, DECODE_SYSTEMS)))
def test_each_with_each(load: str, decode: str) -> None:
    check(ended(load, decode, "memory-flash-cloud"))
    check(ended(load, decode, "memory-flash-cloud", "coupling=per_head", "workload.decoded=3"))


def test_equal_scenarios_give_equal_turns() -> None:
    one, other = (run_scenario(tiny(TURNS, "workload.turns=6", "workload.at_once=2")) for _ in range(2))
    assert one.sessions == other.sessions
    assert one.spans == other.spans

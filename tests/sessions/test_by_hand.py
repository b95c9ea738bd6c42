"""Sessions whose every time can be computed on paper."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from by_hand import LayersByHand
from tiny import tiny

from kvferry.backends.sim.machine import SimMachine
from kvferry.backends.world import Inputs
from kvferry.machine.ops import Advance, Extents, Number, Op, PrefillHead, Project
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.record import TurnAttention, TurnRecord
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.attention_mass import AttentionMass
from kvferry.policies.keep.eviction import Lru
from kvferry.policies.keep.kept import Kept, Room
from kvferry.sessions.found import Found
from kvferry.sim.cost import Cost
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.traces.turns import turns_of

# A token's KV is 512 B: storage moves 1,000 tokens a second. A block is 100 tokens.
ON_FLASH: dict[str, Any] = {
    "name": "by-hand",
    "system": "on-flash",
    "device": {"extends": "tiny", "storage": {"bytes_per_s": "512 kB/s", "latency_s": "0 s"}},
    "model": "tiny",
    "link": {"rate": "1 MB/s"},
    "costs": "layers-by-hand",
    "workload": {
        "kind": "session",
        "turns": 3,
        "context": 1000,
        "question": 100,
        "output": 11,
        "turns_each": 1000.0,
        "think": "5 s",
        "block": 100,
        "in_cloud": "nothing",
    },
    # Eight blocks.
    "budget": {"kept_memory": "409600 B"},
}

ROOFLINE = {"truth": "roofline", "estimate": "roofline"}


@pytest.fixture(autouse=True)
def _by_hand() -> Iterator[None]:
    COST_MODELS.update({"layers-by-hand": LayersByHand, "paths-by-hand": PathsByHand})
    yield
    del COST_MODELS["layers-by-hand"], COST_MODELS["paths-by-hand"]


def turns(*overrides: str, of: dict[str, Any] = ON_FLASH, **changes: Any) -> tuple[TurnRecord, ...]:
    run = run_scenario(tiny(of, *overrides, **changes))
    assert run.outcome == "done", run.why
    assert run.sessions is not None
    return run.sessions.turns


def test_three_turns() -> None:
    first, second, third = turns()
    # 1,100 tokens are computed at 1 ms each, then 10 tokens follow at 20 ms each.
    assert (first.from_memory, first.from_flash, first.computed) == (0, 0, 1100)
    assert first.first_token_s - first.arrival_s == pytest.approx(1.1)
    assert first.end_s == pytest.approx(1.3)
    # Of 11 whole blocks (1,111 tokens) 8 stay in memory; the last 3 are written.
    assert first.written_bytes == 300 * 512
    # 5 s later: the prompt is 1,111 + 100 tokens. 3 blocks are read in 0.3 s, 111 tokens computed.
    assert second.arrival_s == pytest.approx(6.3)
    assert (second.from_memory, second.from_flash, second.computed) == (800, 300, 111)
    assert second.got_s - second.arrival_s == pytest.approx(0.3)
    assert second.first_token_s - second.arrival_s == pytest.approx(0.3 + 0.111)
    # What lies on flash already is not written again.
    assert second.written_bytes == 100 * 512
    # 1,322 tokens: 4 blocks are read, 122 tokens computed.
    assert (third.from_memory, third.from_flash, third.computed) == (800, 400, 122)
    assert third.first_token_s - third.arrival_s == pytest.approx(0.4 + 0.122)
    assert third.kept_memory_bytes == 800 * 512


def test_what_is_read_is_copied_to_its_place_where_copies_take_time() -> None:
    device = {**ON_FLASH["device"], "memory": {"copy_bytes_per_s": "1024 kB/s", "copy_latency_s": "10 ms"}}
    second = turns(device=device)[1]
    # 3 blocks are read in 0.3 s, and copied at 2,000 tokens a second.
    assert second.from_flash == 300
    assert second.got_s - second.arrival_s == pytest.approx(0.3 + 0.01 + 0.15)


def test_the_least_wait_is_for_what_is_new() -> None:
    # All that came before may have been in memory: 1,100 tokens are new, then 111, then 122.
    assert [one.bound_s for one in turns()] == pytest.approx([1.1, 0.111, 0.122])
    # Whatever becomes of it.
    assert [one.bound_s for one in turns("policies.keep=drop")] == pytest.approx([1.1, 0.111, 0.122])
    # Two at once ask about one context: neither waits for the other's answer at best.
    at_once = turns("workload.turns=2", "workload.at_once=2")
    assert [one.bound_s for one in at_once] == pytest.approx([1.1, 0.1])


def test_what_an_earlier_run_has_left_on_flash_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    write, places = SimMachine.write, list[list[int]]()

    def noted(machine: SimMachine, extents: Extents, **asked: Any) -> Ticket:
        places.append([offset // 51_200 for offset, _ in extents])
        return write(machine, extents, **asked)

    monkeypatch.setattr(SimMachine, "write", noted)
    # Of the first prompt's 11 blocks the first two, in the places that others would get first; of the 12 that the
    # second turn leaves, number 10, whose place another block has.
    blocks = turns_of(tiny(ON_FLASH).session.workload, 0).numbered[1].leaves
    found = {0: {blocks[0]: 1, blocks[1]: 0}, 1: {blocks[10]: 1}}
    run = run_scenario(tiny(ON_FLASH, "workload.turns=2"), inputs=Inputs(found=found))
    assert run.sessions is not None
    first, second = run.sessions.turns
    assert (first.from_flash, first.computed) == (200, 900)
    assert first.first_token_s - first.arrival_s == pytest.approx(0.2 + 0.9)
    # Its last 3 blocks leave memory and are written behind the two.
    assert first.written_bytes == 300 * 512 and first.kept_flash_bytes == 500 * 512
    assert (second.from_memory, second.from_flash, second.computed) == (800, 300, 111)
    assert places == [[2, 3, 4], [5]]


def test_what_is_dropped_is_computed_again() -> None:
    found = turns("policies.keep=drop", "budget.kept_memory=null")
    assert [one.computed for one in found] == [1100, 1211, 1322]
    assert [one.first_token_s - one.arrival_s for one in found] == pytest.approx([1.1, 1.211, 1.322])


def test_what_lies_on_flash_is_read_beside_the_question() -> None:
    settings = ("policies.decode={name: flexgen, group_tokens: 4}", "policies.keep=flash", "budget.kept_memory=null")
    run = run_scenario(tiny(ON_FLASH, *settings, "workload.turns=2", "workload.output=1"))
    assert run.sessions is not None
    first, second = run.sessions.turns
    # A layer takes 0.275 s to compute, and as long to be written while the next is computed.
    assert first.first_token_s == pytest.approx(1.1 + 0.275)
    # 1,100 of 1,201 tokens lie on flash: 0.275 s a layer. The 25 blocks of four tokens that are new are written in
    # 0.025 s a layer, so that storage is at work all the time, but for 0.25 ms before the last write: layer 3 is there
    # after four reads and two writes, 101 tokens take 0.02525 s, and one write fits in between.
    assert (second.from_flash, second.computed) == (1100, 101)
    reads_s = 4 * 0.275 + 2 * 0.025
    assert second.first_token_s - second.arrival_s == pytest.approx(reads_s + 0.02525 + 0.025)
    moved = {label: sum(one.n_bytes for one in run.spans if one.label == label) for label in ("Read", "Write")}
    assert moved == {"Read": 1100 * 512, "Write": (1100 + 100) * 512}


@pytest.mark.parametrize(
    ("decode", "keep"), [("vllm", "memory-flash"), ("{name: flexgen, group_tokens: 4}", "memory-flash")]
)
def test_what_selects_nothing_attends_to_all(decode: str, keep: str) -> None:
    found = [one.attention for one in turns(f"policies.decode={decode}", f"policies.keep={keep}", costs=ROOFLINE)]
    # Prompts of 1,100, 1,211 and 1,322 tokens, and 1 to 10 of the answer.
    assert found == [TurnAttention(tokens=n, of=n, mass=AttentionMass(1.0, 0.0)) for n in (1105.5, 1216.5, 1327.5)]


def test_a_selection_and_the_newest_tokens() -> None:
    selects = "policies.decode={name: kvswap, group_tokens: 4, selected_tokens: 80, slots: 100}"
    run = run_scenario(tiny(ON_FLASH, selects, "policies.keep=flash", "budget.kept_memory=null", costs=ROOFLINE))
    assert run.sessions is not None
    first, second, third = (one.attention for one in run.sessions.turns)
    # 20 groups of 4; of 1 to 10 new tokens those that fill no group yet, and the one under way. Of a prompt of 1,211
    # tokens the last 3 fill none, of 1,322 the last 2.
    newest = [sum((new - 1 + rest) % 4 + 1 for new in range(1, 11)) / 10 for rest in (0, 3, 2)]
    assert first is not None and second is not None and third is not None
    assert [one.tokens for one in (first, second, third)] == pytest.approx([80 + n for n in newest])
    assert [one.of for one in (first, second, third)] == [1105.5, 1216.5, 1327.5]
    assert first.mass is not None and first.mass.mean < 1
    assert run.notes[-1] == "selections are generated and do not depend on this selector"


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    kept = Kept(Room(memory=9, flash=0), Lru(), "memory")
    kept.keep((1, 2, 3), 0.0)
    # All three blocks of 300 tokens are there, and the token that follows them is not.
    assert [Found.of(kept, (1, 2, 3), 100, prompt).computed for prompt in (300, 301)] == [100, 1]


def test_a_turn_waits_for_the_one_before() -> None:
    first, second = sorted(turns("workload.turns=2", "workload.at_once=2"), key=lambda one: one.began_s)
    assert first.arrival_s == second.arrival_s == 0.0
    # The device turns to it once the first is answered and three blocks are written; the context is known by then.
    assert second.began_s == pytest.approx(1.3 + 0.3)
    assert (second.from_memory, second.from_flash, second.computed) == (800, 200, 100)


def test_what_follows_at_a_pace_takes_as_long() -> None:
    whole, outlined = (turns("workload.output=101", f"workload.decoded={n}") for n in ("null", "5"))
    assert [one.end_s for one in outlined] == pytest.approx([one.end_s for one in whole])


def test_on_a_device_that_warms_up_nothing_follows_at_a_pace() -> None:
    # 10 W and more for 2 s of decoding warm 1 J/K by some 20 K: the last steps are slower than those in the middle.
    limits = {"throttle_from_c": "30 C", "throttle_to_c": "60 C", "least_clock": 0.25, "look_s": "10 ms"}
    heat = {"capacity_j_per_k": "1 J/K", "resistance_k_per_w": "5 K/W", **limits}
    device = {**ON_FLASH["device"], "heat": heat}
    asked = "workload.output=101", "workload.turns=1"
    whole, outlined = (turns(*asked, f"workload.decoded={n}", device=device) for n in ("null", "5"))
    assert outlined[0].end_s == whole[0].end_s > turns(*asked)[0].end_s + 0.1


class PathsByHand(LayersByHand):
    """A layer of a token takes 0.25 ms of a load, too."""

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        if isinstance(op, PrefillHead):
            # One of two heads.
            return np.asarray(op.tokens, float) * self._prefill_s / 4 / 2
        if not isinstance(op, Project | Advance):
            return super().durations_s(op)
        return np.asarray(op.tokens, float) * self._prefill_s / 4 * isinstance(op, Project)

    def cost(self, op: Op) -> Cost:
        return (
            Cost(float(self.durations_s(op))) if isinstance(op, Project | Advance | PrefillHead) else super().cost(op)
        )


# Ten blocks lie in the cloud as they would in memory. A layer of a block takes 25 ms over the link, from flash, and on
# the processor.
THREE_WAYS: dict[str, Any] = {
    **ON_FLASH,
    "system": "three-way",
    "costs": "paths-by-hand",
    "link": {"rate": "512 kB/s", "rtt": "0 ms"},
    "workload": {**ON_FLASH["workload"], "turns": 2, "in_cloud": "contexts"},
    "policies": {"load": {"codec": "fp16"}, "keep": "flash-cloud"},
    "budget": {},
}


def test_three_like_paths_bring_a_third_each() -> None:
    first, second = turns(of=THREE_WAYS)
    # 40 layers of blocks by two paths, as nothing lies on flash yet.
    assert (first.units_streamed, first.units_computed, first.units_read) == (20, 20, 0)
    assert first.got_s - first.began_s == pytest.approx(0.5)
    # 44 by three.
    assert second.got_s - second.began_s == pytest.approx(0.375)
    assert sorted((second.units_streamed, second.units_computed, second.units_read)) == [14, 15, 15]
    assert (second.from_flash, second.from_cloud, second.computed) == (1100, 0, 111)
    # A unit is a quarter of a block of 100 tokens.
    assert (second.read, second.streamed) == (25 * second.units_read, 25 * second.units_streamed)


@pytest.mark.parametrize(
    ("room", "seconds"),
    [
        # All is in memory but for the question, which takes 100 ms in the first turn and 111 in the second.
        (["budget.kept_memory=1 MB"], [0.1, 0.111]),
        # One block has room: 36 of 40 layers of blocks come within the first wait, and 40 of 44 within the second. One
        # of each block is free; the others come at 40 a second by each of three paths, but for the time in which the
        # processor reads the question: that of 4, and of 4.44.
        (["budget.kept_memory=51200 B"], [(26 + 4) / 120, (40 - 11 + 4.44) / 120]),
    ],
)
def test_what_memory_has_no_room_for_comes_within_the_least_wait(room: list[str], seconds: list[float]) -> None:
    found = turns("policies.keep=memory-flash-cloud", *room, of=THREE_WAYS)
    assert [one.bound_s for one in found] == pytest.approx(seconds, rel=1e-5)
    assert all(one.bound_s < one.first_token_s - one.arrival_s for one in found if one.bound_s is not None)


def test_a_unit_of_one_head_is_half_of_a_layers_where_there_are_two() -> None:
    _, second = turns("coupling=per_head", of=THREE_WAYS)
    assert second.units_read and second.units_streamed
    assert (second.read, second.streamed) == (12.5 * second.units_read, 12.5 * second.units_streamed)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        # Read as a whole, as it lies nearer than the cloud.
        (["policies.load=ferry"], 1.1),
        # Two paths: nothing on flash, and nothing in the cloud.
        (["policies.keep=cloud"], 0.55),
        (["policies.keep=flash", "workload.in_cloud=nothing"], 0.55),
    ],
)
def test_fewer_ways_take_longer(changes: list[str], seconds: float) -> None:
    _, second = turns("policies.load={name: ferry-three-way, codec: fp16}", *changes, of=THREE_WAYS)
    assert second.got_s - second.began_s == pytest.approx(seconds)


@pytest.mark.parametrize("link", ["64 kB/s", "4 MB/s"])
@pytest.mark.parametrize("flash", ["64 kB/s", "4 MB/s"])
def test_three_ways_are_never_slower_than_the_best_two(link: str, flash: str) -> None:
    rates = f"link.rate={link}", f"device.storage.bytes_per_s={flash}", "workload.think=60 s"
    loader = "policies.load={name: ferry-three-way, codec: fp16}"

    def waited_s(*changes: str) -> float:
        _, second = turns(*rates, *changes, of=THREE_WAYS)
        return second.got_s - second.began_s

    two_s = [
        waited_s("policies.load={name: ferry, codec: fp16}"),
        waited_s("policies.load={name: ferry, codec: fp16}", "policies.keep=cloud"),
        waited_s(loader, "policies.keep=flash", "workload.in_cloud=nothing"),
    ]
    assert waited_s(loader) <= min(two_s) * (1 + 1e-6)

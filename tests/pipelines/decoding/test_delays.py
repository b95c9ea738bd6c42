"""What planners price, against hand-computed moves and against the simulated run of the same plan."""

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from decoding import roles_of
from tiny import DECODING, tiny

from kvferry.machine.ops import Op
from kvferry.pipelines.decoding.delays import Delays
from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.prices import Parts
from kvferry.pipelines.decoding.stages import KINDS
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.specs.tier import Tier

# Reads take 50 us and 10 ns a byte, copies 10 us and 5 ns a byte.
COPIES = {"unified": False, "copy_bytes_per_s": "200 MB/s", "copy_latency_s": "10 us", "host_capacity_bytes": "1 GB"}
SELECTING = {"group_tokens": 4, "selected_tokens": 80, "reuse": False}
OUTPUT = 24


def scenario(system: str, unified: bool = True, budget: dict[str, Any] | None = None, **policies: Any) -> Scenario:
    device = DECODING["device"] | ({} if unified else {"memory": COPIES})
    return tiny(
        DECODING | {"device": device, "budget": budget or DECODING["budget"]},
        system=system,
        policies=policies,
        workload={"output": OUTPUT},
    )


@dataclass(frozen=True)
class Moves:
    """Prices moves from storage to the processor alone."""

    plan: DecodePlan
    delays: Delays
    tier: Tier = "storage"
    missing: float = 0.0

    def work(self, op: Op) -> Parts:
        raise NotImplementedError

    def move(self, commands: float, each_bytes: int, source: Tier, to: Tier) -> Parts:
        assert (source, to) == ("storage", "device")
        return (self.delays.queues.leg(self.plan, "read", commands, each_bytes),)


def plan_and_delays(wanted: Scenario) -> tuple[DecodePlan, Delays]:
    system = DECODE_SYSTEMS[wanted.system].with_policies(wanted.policy_values)
    return plan_for(wanted, system), Delays(wanted.device, wanted.model)


@pytest.mark.parametrize(
    ("unified", "tier", "io_s"),
    [
        # Two sequences, one command each: 1,024 tokens of 512 bytes take 50 us + 5.24288 ms.
        (True, "storage", 2 * (50e-6 + 2**19 / 100e6)),
        (True, "host", 0.0),
        (True, "device", 0.0),
        # The copy of both goes on from the host's memory.
        (False, "storage", 2 * (50e-6 + 2**19 / 100e6) + 10e-6 + 2 * 2**19 / 200e6),
        (False, "host", 10e-6 + 2 * 2**19 / 200e6),
        (False, "device", 0.0),
    ],
)
def test_a_move_costs_what_lies_between_its_tiers_by_hand(unified: bool, tier: Tier, io_s: float) -> None:
    plan, delays = plan_and_delays(scenario("flexgen", unified))
    assert (plan.layout.stride_bytes, plan.row_bytes) == (512, 2**19)
    assert delays.block(plan, tier=tier).io_s == pytest.approx(io_s, rel=1e-12)


def test_reused_blocks_do_not_move_by_hand() -> None:
    plan, delays = plan_and_delays(scenario("kvswap", **SELECTING))
    # 20 groups of 512 bytes for each of two sequences; a quarter of them is there.
    assert delays.block(plan, 0.25).io_s == pytest.approx(30 * (50e-6 + 512 / 100e6), rel=1e-12)


@pytest.mark.parametrize(
    ("system", "policies", "budget", "unified"),
    [
        *itertools.product(["flexgen"], [{}], [None], [True, False]),
        # On unified memory the budget is that of the host, too.
        *itertools.product(["flexgen", "shadowkv"], [{"placement": "host"}], [{"kv": "9 MB"}], [True, False]),
        *itertools.product(["kvswap"], [{"placement": "host", **SELECTING}], [{"kv": "9 MB"}], [True, False]),
        *itertools.product(["kvswap"], [{"placement": "device", **SELECTING}], [{"kv": "9 MB"}], [True, False]),
        *itertools.product(["full-eager"], [{"placement": "host"}], [{"kv": "9 MB"}], [True, False]),
        ("kvswap", {"placement": "progressive", **SELECTING}, {"kv": "900 kB"}, False),
        *itertools.product(
            ["flexgen"], [{"placement": "progressive", "overflow": "storage"}], [{"kv": "1067008 B"}], [True, False]
        ),
    ],
)
def test_a_planned_run_is_the_simulated_one(
    system: str, policies: dict[str, Any], budget: dict[str, Any] | None, unified: bool
) -> None:
    wanted = scenario(system, unified, budget, **policies)
    run = run_scenario(wanted)
    assert run.outcome == "done", run.why
    assert run.decoded is not None
    simulated = run.decoded.token_times_s
    plan, delays = plan_and_delays(wanted)
    planned = delays.token_times_s(plan, OUTPUT)
    assert planned[0] == pytest.approx(simulated[0], rel=1e-9)
    # Left out: blocks become more, by 2 % of them; newest tokens are the mean.
    assert planned[-1] - planned[0] == pytest.approx(simulated[-1] - simulated[0], rel=0.02)
    for step in range(1, OUTPUT):
        took_s = simulated[step] - simulated[step - 1]
        assert planned[step] - planned[step - 1] == pytest.approx(took_s, rel=0.05), step


def test_the_step_in_which_a_layer_moves_is_priced() -> None:
    plan, delays = plan_and_delays(
        scenario("flexgen", budget={"kv": "1067008 B"}, placement="progressive", overflow="storage")
    )
    # Buffers take 268,288 bytes of each sequence; two layers of both fit until there are 1,036 tokens of 256 bytes.
    counts = [plan.roles.placement.tiers(plan.memory.size(1024 + step)).count("device") for step in range(OUTPUT)]
    assert (counts[0], counts[-1]) == (2, 1)
    moves = counts.index(1)
    times = delays.token_times_s(plan, OUTPUT)
    took_s = [end - begin for begin, end in itertools.pairwise(times)]
    # Its layer is written and read again: in any other step it is read alone.
    assert took_s[moves] > took_s[moves + 1] > took_s[moves - 1]
    whole_s = 2 * (50e-6 + 2**19 / 100e6)
    assert took_s[moves] - took_s[moves + 1] == pytest.approx(whole_s, rel=0.02)


def test_vectors_that_blocks_are_scored_by_come_in_a_command_for_each_row() -> None:
    # Two sequences of two heads: 64 blocks of 16 tokens, each scored by 16 numbers of 4 B.
    plan, delays = plan_and_delays(scenario("dynakv", residency="virtual-cache", group_tokens=16))
    (part,) = KINDS["bring_index"].parts(Moves(plan, delays))
    assert part.seconds == pytest.approx(4 * (50e-6 + 64 * 64 / 100e6), rel=1e-12)


def test_storage_is_missed_where_kv_lies_on_it_alone() -> None:
    wanted = scenario("flexgen", unified=False)
    plan, _ = plan_and_delays(wanted)
    delays = Delays(wanted.device.model_copy(update={"storage": None}), wanted.model)
    assert delays.block(plan, tier="host").io_s > 0
    with pytest.raises(InputError, match="has no storage; its profile needs a `storage`"):
        delays.step_s(plan)


def test_a_step_that_waits_for_the_writes_before_it_takes_longer() -> None:
    # Every token is a block of its own: its write, a command for each row and layer, precedes the next step's reads.
    plan, delays = plan_and_delays(scenario("flexgen"))
    assert plan.roles == roles_of("flexgen")
    times = delays.token_times_s(plan, 3)
    written_s = plan.model.layers * plan.rows * (50e-6 + plan.layout.stride_bytes / 100e6)
    assert times[1] - times[0] == pytest.approx(delays.step_s(plan), rel=1e-9)
    assert times[2] - times[1] == pytest.approx(delays.step_s(plan) + written_s, rel=1e-9)

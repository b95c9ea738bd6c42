"""The offline tuner: never over the budget, near the best of a whole grid, clear about what does not work."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.pipelines.offload_tuning import reuse_table, tune_scenario
from kvferry.pipelines.run import run_scenario
from kvferry.policies.offload.grouping import Grouping, KvShape, memory_bytes
from kvferry.policies.offload.tuner import ReuseTable, Solutions, TuningLimits, solve, tune
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import PolicySpec

SHAPE = KvShape(layers=4, kv_heads=2, head_dim=16)
REUSE = ReuseTable((32.0, 64.0, 128.0), (0.5, 0.7, 0.8))


class PlainDelay:
    """I/O: a time per command and per byte. Computing: a constant and some per unit. Half of the shorter is hidden."""

    def __init__(self, command_s: float, bytes_per_s: float, compute_s: float, unit_s: float) -> None:
        self.command_s, self.bytes_per_s, self.compute_s, self.unit_s = command_s, bytes_per_s, compute_s, unit_s

    def __call__(self, batch: int, context: int, grouping: Grouping, reuse_rate: float) -> tuple[float, float]:
        units = batch * grouping.groups
        each_s = self.command_s + grouping.group_tokens * SHAPE.entry_bytes / self.bytes_per_s
        io_s = units * (1 - reuse_rate) * each_s
        compute_s = self.compute_s + units * self.unit_s
        return max(io_s, compute_s + io_s / 2), io_s


FAST = PlainDelay(1e-6, 1e9, 1e-3, 0.0)
SLOW = PlainDelay(1e-4, 1e7, 1e-3, 1e-6)


def limits(budget_bytes: float, **more: int) -> TuningLimits:
    given = {"most_context": 1024, "most_batch": 4, "selected_tokens": 32, "slots_step_tokens": 32, **more}
    return TuningLimits(budget_bytes=budget_bytes, least_context=256, context_step=256, **given)


def test_fast_storage_needs_no_buffer_and_the_smallest_groups() -> None:
    # 32 reads of 1.1 us are 36 us beside a millisecond: hidden at once, with the keys as they are.
    found = solve(1, 1024, SHAPE, limits(1e8), REUSE, FAST)
    assert found.hidden
    assert found.grouping == Grouping(group_tokens=1, compression=1, groups=32, slots=0)


def test_slow_storage_gets_large_groups_and_a_buffer() -> None:
    found = solve(4, 1024, SHAPE, limits(1e8), REUSE, SLOW)
    assert not found.hidden
    assert found.grouping.group_tokens == 8
    assert found.grouping.slots * 8 >= 64


@settings(max_examples=40, deadline=None)
@given(
    budget=st.floats(5e4, 5e6),
    batch=st.integers(1, 4),
    context=st.integers(40, 1024),
    command_s=st.floats(1e-7, 1e-3),
    rate=st.floats(1e6, 1e10),
    unit_s=st.floats(0, 1e-5),
)
def test_within_the_budget_and_near_the_best(
    budget: float, batch: int, context: int, command_s: float, rate: float, unit_s: float
) -> None:
    delay = PlainDelay(command_s, rate, 1e-3, unit_s)
    allowed = limits(budget)
    if memory_bytes(Grouping(group_tokens=1, compression=32, groups=32), context, SHAPE) > budget / 4:
        with pytest.raises(InputError, match="hold no selection"):
            solve(batch, context, SHAPE, allowed, REUSE, delay)
        return
    found = solve(batch, context, SHAPE, allowed, REUSE, delay)
    assert found.memory_bytes <= batch * budget / 4
    assert found.memory_bytes == batch * allowed.bytes_of(found.grouping, context, SHAPE)
    best_s = min(
        delay(batch, context, grouping, REUSE(slots * group))[0]
        for group, compression, slots in itertools.product((1, 2, 4, 8), (1, 2, 4, 8, 16, 32), range(0, 257, 4))
        if (slots == 0 or slots >= 32 // group)
        and slots * group <= context
        and allowed.bytes_of(
            grouping := Grouping(group_tokens=group, compression=compression, groups=32 // group, slots=slots),
            context,
            SHAPE,
        )
        <= budget / 4
    )
    # The grid has buffers between the solver's steps of 32 tokens: 5 % of the best, and what one step can bring.
    step = max(
        delay(batch, context, found.grouping, REUSE(tokens))[0]
        - delay(batch, context, found.grouping, REUSE(tokens + 32))[0]
        for tokens in range(0, 257, 32)
    )
    assert found.block_s <= 1.05 * best_s + step


def test_a_budget_too_small_for_anything_says_what_would_do() -> None:
    # Rank 1 for 1024 tokens x 4 layers x 2 B, and 2 x 32 + 4 entries of 128 B: 16.5 KiB for each of four.
    with pytest.raises(InputError, match=r"62\.5 KiB for 4 sequences hold no selection .* 66 KiB would"):
        solve(1, 1024, SHAPE, limits(4 * 16_000), REUSE, FAST)
    least = 4 * memory_bytes(Grouping(group_tokens=1, compression=32, groups=32), 1024, SHAPE)
    assert solve(1, 1024, SHAPE, limits(least), REUSE, FAST).memory_bytes == least / 4
    # 100 decoded tokens of 4 layers x 2 B each.
    with pytest.raises(InputError, match="hold no selection"):
        solve(1, 1024, SHAPE, limits(least, output=100), REUSE, FAST)
    more = limits(least + 4 * 100 * 4 * 2, output=100)
    assert solve(1, 1024, SHAPE, more, REUSE, FAST).memory_bytes == least / 4 + 800


def test_solutions_come_back_from_json_and_the_nearest_is_found() -> None:
    found = tune(SHAPE, limits(1e6, most_batch=2), REUSE, SLOW)
    assert sorted(found.solved) == [(b, s) for b in (1, 2) for s in (256, 512, 768, 1024)]
    back = Solutions.from_json(found.to_json(), "x.json")
    assert back.solved == found.solved
    assert back.to_json() == found.to_json()
    assert back.nearest(2, 512).context == 512
    # Never that of a shorter context: its keys would outgrow the budget.
    assert back.nearest(1, 520).context == 768
    assert back.nearest(1, 100).context == 256


@pytest.mark.parametrize(("batch", "context"), [(3, 512), (1, 1025)])
def test_past_what_was_tuned_for(batch: int, context: int) -> None:
    found = tune(SHAPE, limits(1e6, most_batch=2), REUSE, FAST)
    with pytest.raises(InputError, match="more than was tuned for: at most 2 with 1,024; tune again"):
        found.nearest(batch, context)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "kvferry-tuned", "version": 2}', '{"format": 1}'])
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.json: not what kvferry tune writes"):
        Solutions.from_json(text, "x.json")


def test_reuse_by_capacity() -> None:
    assert REUSE(0) == 0.0
    assert REUSE(48) == pytest.approx(0.6)
    assert REUSE(1000) == 0.8


def test_a_scenario_is_tuned_and_run_with_it(tmp_path: Path) -> None:
    budget = ("budget.kv_share=null", "budget.kv=200 MiB")
    scenario = load_scenario(
        "kvswap/throughput", ["workload.batch=2", "workload.context=4Ki", "workload.decoded=8", *budget]
    )
    allowed = TuningLimits(budget_bytes=2 * 100 * 2**20, most_context=8192, most_batch=2)
    found = tune_scenario(scenario, allowed)
    assert sorted(found.solved) == [(b, s) for b in (1, 2) for s in (4096, 6144, 8192)]
    assert all(solution.memory_bytes <= solution.batch * 100 * 2**20 for solution in found.solved.values())
    (tmp_path / "tuned.json").write_text(found.to_json())
    named = scenario.model_copy(update={"policies": {"tuned": PolicySpec(name=str(tmp_path / "tuned.json"))}})
    run = run_scenario(named)
    assert run.kv_memory_peak_bytes <= 2 * 100 * 2**20
    grown = named.model_copy(update={"workload": named.workload.model_copy(update={"batch": 3})})
    with pytest.raises(InputError, match=r"a batch of 3 with 4,096 tokens each is more than was tuned for: at most 2"):
        run_scenario(grown)
    with pytest.raises(InputError, match="cannot be read"):
        run_scenario(scenario.model_copy(update={"policies": {"tuned": PolicySpec(name="not-there.json")}}))


def test_reuse_table_ascends() -> None:
    scenario = load_scenario("kvswap/throughput")
    table = reuse_table(scenario, TuningLimits(budget_bytes=1e9, most_context=8192, most_batch=1))
    assert list(table.rate) == sorted(table.rate)
    assert 0.6 < table.rate[0] < table.rate[-1] < 1

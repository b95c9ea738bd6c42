"""The offline tuner: never over the budget, near the best of a whole grid, clear about what does not work."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tiny import tiny_model

from kvferry.policies.decode.grouping import Grouping
from kvferry.policies.decode.solutions import Solutions
from kvferry.policies.decode.tuner import COMPRESSIONS, BlockTimes, ReuseTable, Solution, solve, tune
from kvferry.policies.decode.tuning_limits import TuningLimits
from kvferry.specs.errors import InputError

MODEL = tiny_model(layers=4, kv_heads=2, head_dim=16)
# Groups of 1 in 1,024 tokens: 0.5, 0.7, 0.8.
REUSE = ReuseTable(
    contexts=(256, 1024),
    group_tokens=(1, 16),
    capacity_tokens=(32.0, 64.0, 128.0),
    rates=np.array([[[0.5, 0.75, 0.9], [0.55, 0.7, 0.8]], [[0.5, 0.7, 0.8], [0.52, 0.6, 0.7]]]),
)


class PlainDelay:
    """I/O: a time per command and per byte. Computing: a constant, and beside reads as much more as half of them take.
    Before both: some per KV block and slot, and per compressed key."""

    def __init__(
        self, command_s: float, bytes_per_s: float, block_s: float = 0.0, key_s: float = 0.0, slot_s: float = 0.0
    ) -> None:
        self.command_s, self.bytes_per_s = command_s, bytes_per_s
        self.block_s, self.key_s, self.slot_s = block_s, key_s, slot_s
        self.calls = 0

    def __call__(self, batch: int, context: int, grouping: Grouping, reuse_rate: float) -> BlockTimes:
        self.calls += 1
        blocks = batch * grouping.groups
        each_s = self.command_s + grouping.group_tokens * MODEL.kv_entry_bytes / self.bytes_per_s
        io_s = blocks * (1 - reuse_rate) * each_s
        before_s = blocks * (self.block_s + grouping.slots * self.slot_s)
        before_s += batch * context / grouping.compression * self.key_s
        beside_s = 1e-3 + io_s / 2
        return BlockTimes(before_s + max(io_s, beside_s), io_s, min(io_s, beside_s))


FAST = PlainDelay(1e-6, 1e9)
SLOW = PlainDelay(1e-3, 1e7, block_s=1e-6)


def limits(budget_bytes: float, **more: float) -> TuningLimits:
    given = {"most_context": 1024, "most_batch": 4, "selected_tokens": 32, "slots_step_tokens": 32, **more}
    return TuningLimits.model_validate(
        {"budget_bytes": budget_bytes, "least_context": 256, "context_step": 256} | given
    )


def test_fast_storage_needs_no_buffer_and_the_smallest_groups() -> None:
    # 32 reads of 1.1 us are 36 us beside a millisecond: hidden at once, with the keys as they are.
    delay = PlainDelay(1e-6, 1e9)
    found = solve(1, 1024, MODEL, limits(1e8), REUSE, delay)
    assert found.hidden and found.overlap == 1.0
    assert found.grouping == Grouping(group_tokens=1, compression=1, groups=32, slots=0)
    # The bound on what could be faster asks once for each of 8 group sizes, and the first that is tried will do.
    assert delay.calls == 9


def test_the_first_that_is_as_fast_as_can_be_ends_the_search() -> None:
    # Nothing takes any time but computing: no candidate is slower than another, and none may be.
    calls = list[Grouping]()

    def delay(batch: int, context: int, grouping: Grouping, reuse_rate: float) -> BlockTimes:
        calls.append(grouping)
        return BlockTimes(1e-3, 1e-4, 1e-4)

    found = solve(1, 1024, MODEL, limits(1e8, tolerance=0.0), REUSE, delay)
    assert found.grouping == calls[-1] and len(calls) == 9


def test_slow_storage_gets_large_groups_and_a_buffer() -> None:
    found = solve(4, 1024, MODEL, limits(1e8), REUSE, SLOW)
    assert not found.hidden
    # 16 units of 8 tokens are the fewest there are, and 0.2 to 0.3 of them are read from the largest buffer: 3 to 5 ms.
    assert found.grouping.group_tokens == 8
    assert found.grouping.slots * 8 >= 128


def test_the_search_stops_once_as_much_as_asked_is_hidden() -> None:
    # 32 reads of 75 us are 2.4 ms, the block beside them takes 1 + 1.2 = 2.2 ms: 92 % of them overlap. With half of
    # them held they take 1.2 ms, and all overlap.
    delay = PlainDelay(75e-6, 1e15)
    asked = {"most_group_tokens": 1, "tolerance": 1.0}
    found = solve(1, 1024, MODEL, limits(1e8, relaxation=0.1, **asked), REUSE, delay)
    assert (found.grouping.slots, found.hidden, found.overlap) == (0, True, pytest.approx(2.2 / 2.4))
    found = solve(1, 1024, MODEL, limits(1e8, relaxation=0.05, **asked), REUSE, delay)
    assert (found.grouping.slots, found.hidden, found.overlap) == (32, True, 1.0)


def test_groups_are_any_whole_number_of_tokens() -> None:
    # 100 us a command and nothing per byte: as few units as may be. 32 tokens are 3 groups of 12, which hold 36.
    delay = PlainDelay(1e-4, 1e15, block_s=1e-3)
    found = solve(4, 1024, MODEL, limits(1e8, most_group_tokens=12, tolerance=0.0), REUSE, delay)
    assert (found.grouping.group_tokens, found.grouping.groups) == (11, 3)
    twelve = solve(4, 1024, MODEL, limits(1e8, most_group_tokens=12, selected_tokens=36, tolerance=0.0), REUSE, delay)
    assert (twelve.grouping.group_tokens, twelve.grouping.groups) == (12, 3)


def test_keys_are_compressed_more_than_fits_where_scoring_them_is_slow() -> None:
    # A budget for keys as they are, but 1,024 keys x 10 us are 10 ms beside a block of 1 ms.
    delay = PlainDelay(1e-6, 1e9, key_s=1e-5)
    assert solve(1, 1024, MODEL, limits(1e8), REUSE, delay).grouping.compression == 32
    assert solve(1, 1024, MODEL, limits(1e8, most_compression=24.0), REUSE, delay).grouping.compression == 24


@given(
    budget=st.floats(5e4, 5e6),
    batch=st.integers(1, 4),
    context=st.integers(40, 1024),
    output=st.integers(0, 200),
    command_s=st.floats(1e-7, 1e-3),
    rate=st.floats(1e6, 1e10),
    block_s=st.floats(0, 1e-5),
    key_s=st.floats(0, 1e-6),
)
def test_within_the_budget_and_near_the_best(
    budget: float,
    batch: int,
    context: int,
    output: int,
    command_s: float,
    rate: float,
    block_s: float,
    key_s: float,
) -> None:
    delay = PlainDelay(command_s, rate, block_s, key_s)
    allowed = limits(budget, output=output)
    grid = [
        grouping
        for group, compression, tokens in itertools.product(range(1, 9), COMPRESSIONS, (0, *range(32, 257, 8)))
        if allowed.bytes_of(
            grouping := Grouping(
                group_tokens=group, compression=compression, groups=-(-32 // group), slots=-(-tokens // group)
            ),
            context,
            MODEL,
        )
        <= budget / 4
        and grouping.slots <= context // group
    ]
    if not grid:
        with pytest.raises(InputError, match="hold no selection"):
            solve(batch, context, MODEL, allowed, REUSE, delay)
        return
    found = solve(batch, context, MODEL, allowed, REUSE, delay)
    assert found.memory_bytes <= batch * budget / 4
    assert found.memory_bytes == batch * allowed.bytes_of(found.grouping, context, MODEL)
    best_s = min(
        delay(
            batch, context, grouping, REUSE(context, grouping.group_tokens, grouping.slots * grouping.group_tokens)
        ).block_s
        for grouping in grid
    )
    assert found.block_s <= 1.05 * best_s


def test_a_budget_too_small_for_anything_says_what_would_do() -> None:
    # Rank 1 for 1024 tokens x 4 layers x 2 B, and 2 x 32 + 4 entries of 128 B: 16.5 KiB for each of four.
    with pytest.raises(InputError, match=r"62\.5 KiB for 4 sequences hold no selection .* 66 KiB would"):
        solve(1, 1024, MODEL, limits(4 * 16_000), REUSE, FAST)
    least = 4 * limits(1e9).bytes_of(Grouping(group_tokens=1, compression=32, groups=32), 1024, MODEL)
    assert solve(1, 1024, MODEL, limits(least), REUSE, FAST).memory_bytes == least / 4
    # 100 decoded tokens of 4 layers x 2 B each.
    with pytest.raises(InputError, match="hold no selection"):
        solve(1, 1024, MODEL, limits(least, output=100), REUSE, FAST)
    more = limits(least + 4 * 100 * 4 * 2, output=100)
    assert solve(1, 1024, MODEL, more, REUSE, FAST).memory_bytes == least / 4 + 800


def test_the_smallest_budget_is_that_of_the_longest_context() -> None:
    # 256 tokens, solved for first, would be content with less.
    with pytest.raises(InputError, match="in a context of 1,024 tokens; 66 KiB would"):
        tune(MODEL, limits(4 * 1000), REUSE, FAST)
    assert tune(MODEL, limits(66 * 1024), REUSE, FAST)


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget_bytes": -5.0},
        {"budget_bytes": 0.0},
        {"most_group_tokens": 0},
        {"most_group_tokens": 4.5},
        {"most_compression": 0.5},
        {"relaxation": 1.5},
        {"most_batch": 65},
        {"context_step": 0},
        {"context_step": 1, "most_context": 10_000_000},
    ],
)
def test_limits_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        limits(**{"budget_bytes": 1e6} | wrong)


def test_solutions_come_back_from_json_and_the_nearest_is_found() -> None:
    allowed = limits(1e6, most_batch=2, output=50)
    found = Solutions(allowed, tune(MODEL, allowed, REUSE, SLOW))
    assert sorted(found.solved) == [(b, s) for b in (1, 2) for s in (256, 512, 768, 1024)]
    back = Solutions.from_json(found.to_json(), "x.json")
    assert (back.solved, back.limits) == (found.solved, found.limits)
    assert back.to_json() == found.to_json()
    assert back.nearest(2, 512).context == 512
    # Never that of a shorter context: its keys would outgrow the budget. More output than was tuned for counts too.
    assert back.nearest(1, 520).context == 768
    assert back.nearest(1, 100).context == 256
    assert back.nearest(1, 512, output=50).context == 512
    assert back.nearest(1, 512, output=51).context == 768


def test_no_more_io_passes_than_there_is() -> None:
    found = tune(MODEL, limits(1e6, most_batch=1), REUSE, FAST)[0]
    assert found.overlap == 1.0
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        Solution.model_validate({**dict(found), "overlap": 1.01})


@pytest.mark.parametrize(("batch", "context", "output"), [(3, 512, 0), (1, 1025, 0), (1, 1024, 1)])
def test_past_what_was_tuned_for(batch: int, context: int, output: int) -> None:
    allowed = limits(1e6, most_batch=2)
    found = Solutions(allowed, tune(MODEL, allowed, REUSE, FAST))
    with pytest.raises(InputError, match="more than was tuned for: at most 2 with 1,024 and 0; tune again"):
        found.nearest(batch, context, output)


def test_any_budget_is_one() -> None:
    assert limits(0.5).budget_bytes == 0.5


def test_batches_and_contexts_in_steps() -> None:
    assert limits(1e6, most_batch=8, batch_step=3).batches() == [1, 4, 7, 8]
    assert limits(1e6, most_context=1000).contexts() == [256, 512, 768, 1000]
    assert limits(1e6, most_context=100).contexts() == [100]


def test_reuse_by_context_group_and_capacity() -> None:
    assert REUSE(1024, 1, 0) == 0.0
    assert REUSE(1024, 1, 48) == pytest.approx(0.6)
    assert REUSE(1024, 1, 1000) == 0.8
    # Halfway between 256 and 1,024 tokens, and between 1 and 16: in their logarithms.
    assert REUSE(512, 1, 64) == pytest.approx(0.725)
    assert REUSE(1024, 4, 64) == pytest.approx(0.65)
    assert REUSE(512, 4, 64) == pytest.approx((0.75 + 0.7 + 0.7 + 0.6) / 4)
    assert REUSE(10_000, 99, 64) == pytest.approx(0.6)
    with pytest.raises(ValueError, match="rates for 1 x 1 x 2"):
        ReuseTable(contexts=(9,), group_tokens=(1,), capacity_tokens=(1.0, 2.0), rates=np.ones((1, 2, 2)))


@pytest.mark.parametrize(("key", "value"), [("tolerance", 1.01), ("relaxation", 1.01), ("most_compression", 0.5)])
def test_limits_beyond_what_they_may_be_are_refused(key: str, value: float) -> None:
    with pytest.raises(ValidationError, match=key):
        limits(1e9, **{key: value})

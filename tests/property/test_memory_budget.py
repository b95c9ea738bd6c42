"""Whatever is asked of the pool, its books balance and its budget holds."""

from hypothesis import given
from hypothesis import strategies as st

from kvferry.machine.machine import Refused
from kvferry.machine.memory import BudgetedLease, BudgetedPool

TAGS = ("weights", "kv", "metadata", "workspace")
# Reserve (tag, bytes), or release the n-th lease so far, perhaps once more.
steps = st.lists(st.one_of(st.tuples(st.sampled_from(TAGS), st.floats(0, 500)), st.integers(0, 30)), max_size=60)


@given(st.floats(1, 1000), steps)
def test_never_over_budget(capacity_bytes: float, steps: list[tuple[str, float] | int]) -> None:
    pool = BudgetedPool(capacity_bytes)
    leases: list[BudgetedLease] = []
    for step in steps:
        before = pool.used_bytes
        if isinstance(step, int):
            if step < len(leases):
                leases[step].release()
            assert pool.used_bytes <= before
        else:
            answer = pool.reserve(step[1], step[0])
            if isinstance(answer, Refused):
                assert step[1] > pool.capacity_bytes - before == answer.free_bytes
                assert pool.used_bytes == before
            else:
                leases.append(answer)
        pool.check()
        assert pool.used_bytes <= capacity_bytes
    assert pool.peak_bytes <= sum(pool.peak_of(tag) for tag in TAGS)
    for lease in leases:
        lease.release()
    pool.check()
    assert pool.used_bytes == 0

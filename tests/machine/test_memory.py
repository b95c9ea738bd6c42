"""The budgeted pool: what fits is granted, what does not is refused with its reason."""

import pytest

from kvferry.machine.machine import Refused
from kvferry.machine.memory import BudgetedLease, BudgetedPool


def granted(pool: BudgetedPool, n_bytes: float, tag: str = "kv") -> BudgetedLease:
    lease = pool.reserve(n_bytes, tag)
    assert isinstance(lease, BudgetedLease)
    return lease


def test_what_fits_is_held_until_released() -> None:
    pool = BudgetedPool(100)
    weights, kv = granted(pool, 60, "weights"), granted(pool, 40)
    assert (pool.used_bytes, pool.free_bytes) == (100, 0)
    weights.release()
    assert (pool.used_bytes, pool.peak_of("kv")) == (40, 40)
    kv.release()
    assert pool.used_bytes == 0
    pool.check()


def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    pool = BudgetedPool(100 * 2**20)
    granted(pool, 70 * 2**20, "weights")
    refused = pool.reserve(31 * 2**20, "kv")
    assert isinstance(refused, Refused)
    assert str(refused) == "kv needs 32.5 MB, 31.5 MB are free: 1.05 MB (1,048,576 bytes) are missing"
    assert (pool.used_bytes, pool.peak_of("kv")) == (70 * 2**20, 0)
    pool.check()


def test_releasing_twice_is_harmless() -> None:
    pool = BudgetedPool(100)
    lease, other = granted(pool, 30), granted(pool, 30)
    lease.release()
    lease.release()
    assert pool.used_bytes == other.n_bytes == 30
    pool.check()


def test_peaks_in_all_and_by_tag() -> None:
    # kv peaks at 50 while weights hold 20; workspace brings the whole to 80 after kv went down to 10
    pool = BudgetedPool(100)
    granted(pool, 20, "weights")
    granted(pool, 10)
    large = granted(pool, 40)
    large.release()
    granted(pool, 50, "workspace")
    assert (pool.peak_bytes, pool.peak_of("kv"), pool.peak_of("workspace")) == (80, 50, 50)
    assert pool.peak_of("metadata") == 0


def test_fractions_of_a_byte_count_as_a_byte() -> None:
    pool = BudgetedPool(2.9)
    lease = granted(pool, 0.5)
    assert (pool.capacity_bytes, lease.n_bytes, pool.free_bytes) == (2, 1, 1)
    assert isinstance(pool.reserve(1.2, "kv"), Refused)
    lease.release()
    assert pool.used_bytes == 0


def test_endless_memory_is_refused_and_nonsense_is_an_error() -> None:
    pool = BudgetedPool(100)
    assert isinstance(pool.reserve(float("inf"), "kv"), Refused)
    for n_bytes in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="cannot reserve"):
            pool.reserve(n_bytes, "kv")
    pool.check()


def test_check_finds_what_does_not_add_up() -> None:
    pool = BudgetedPool(100)
    granted(pool, 30)
    pool._used_bytes += 1
    with pytest.raises(AssertionError):
        pool.check()

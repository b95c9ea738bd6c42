"""How many slots pay: by hand, and with more memory never a worse number."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from kvferry.pipelines.decoding.paying import paying_slots, tried_slots


def test_the_best_of_what_fits_by_hand() -> None:
    # Reads that each slot more saves a hundredth of, and a search that takes 1 ms per slot: 1000 / n + n, least at 32.
    def took_s(slots: int) -> float:
        return 1000 / slots + slots

    assert tried_slots(10, 12) == [10, 11]
    assert paying_slots(10, 12, took_s) == 11
    assert 28 <= paying_slots(10, 500, took_s) <= 32
    assert paying_slots(40, 500, took_s) == 40
    # Where it makes hardly a difference, no more than one selection.
    assert paying_slots(10, 500, lambda slots: 1 - 1e-6 * slots) == 10
    assert paying_slots(10, 10, took_s) == 10


@given(st.integers(1, 500), st.lists(st.integers(0, 5000), min_size=2, max_size=2), st.floats(1, 1e6))
def test_more_room_is_never_worse(selected: int, more: list[int], reads: float) -> None:
    few, many = sorted(selected + n for n in more)

    def took_s(slots: int) -> float:
        return reads / slots + slots

    assert took_s(paying_slots(selected, many, took_s)) <= took_s(paying_slots(selected, few, took_s))
    assert tried_slots(selected, many)[: len(tried_slots(selected, few))] == tried_slots(selected, few)


@given(st.integers(1, 500), st.lists(st.integers(0, 5000), min_size=2, max_size=2), st.integers(0, 100))
def test_nor_is_it_where_estimates_err(selected: int, more: list[int], seed: int) -> None:
    """By a quarter of a percent, each in its own way."""
    few, many = sorted(selected + n for n in more)

    def took_s(slots: int) -> float:
        return 1e5 / slots + slots

    def estimated_s(slots: int) -> float:
        return took_s(slots) * (1 + 0.0049 * (Random(f"{seed} {slots}").random() - 0.5))

    assert took_s(paying_slots(selected, many, estimated_s)) <= took_s(paying_slots(selected, few, estimated_s))

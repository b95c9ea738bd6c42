"""How many slots pay: by hand, and with more memory never a worse number."""

from hypothesis import given
from hypothesis import strategies as st

from kvferry.pipelines.decoding.paying import paying_slots, tried_slots


def test_the_best_of_what_fits_by_hand() -> None:
    # Reads that each slot more saves a hundredth of, and a search that takes 1 ms per slot: 1000 / n + n, least at 32.
    def took_s(slots: int) -> float:
        return 1000 / slots + slots

    assert tried_slots(10, 12) == [10, 11, 12]
    assert paying_slots(10, 12, took_s) == 12
    assert 30 <= paying_slots(10, 500, took_s) <= 34
    assert paying_slots(40, 500, took_s) == 40
    # Where it makes no difference, as many as fit.
    assert paying_slots(10, 500, lambda slots: 1.0) == 500
    assert paying_slots(10, 10, took_s) == 10


@given(st.integers(1, 500), st.lists(st.integers(0, 5000), min_size=2, max_size=2), st.floats(1, 1e6))
def test_more_room_is_never_worse(selected: int, more: list[int], reads: float) -> None:
    few, many = sorted(selected + n for n in more)

    def took_s(slots: int) -> float:
        return reads / slots + slots

    assert took_s(paying_slots(selected, many, took_s)) <= 1.001 * took_s(paying_slots(selected, few, took_s))
    assert tried_slots(selected, few)[-1] == few

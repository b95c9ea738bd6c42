"""A ledger of memory by hand: what is held when, by whom."""

from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.ledger import Holding, Ledger, largest

KV = Holding("kv", lambda tokens: 3.0 * tokens, "sequence")
AWAY = Holding("kv", lambda tokens: 2.0 * tokens, "sequence", "host")
LEDGER = Ledger((Holding.of("weights", 100), KV, AWAY, Holding.of("kv: index", 7, "sequence")), sequences=4)


def test_what_is_held_by_hand() -> None:
    assert LEDGER.at(10) == {"weights": 100, "kv": 120, "kv: index": 28}
    assert LEDGER.at(10, "host") == {"kv": 80}
    assert LEDGER.at(10, "storage") == {}
    assert LEDGER.n_bytes(10) == 248
    assert LEDGER.of("kv").n_bytes(10) == 120
    assert LEDGER.without("kv", "weights").at(10) == {"kv: index": 28}
    # Holdings of one name are one.
    assert Ledger((*LEDGER.holdings, Holding.of("weights", 5))).at(0)["weights"] == 105


def test_the_largest_come_first_and_what_is_not_held_is_left_out() -> None:
    assert LEDGER.largest(1024) == "kv 12.3 kB, weights 100 B, kv: index 28 B"
    assert largest({"a": 1, "b": 0, "c": 3}, most=5) == "c 3 B, a 1 B"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1 << 40)), max_size=8), st.integers(1, 64))
def test_names_make_up_the_sum(held: list[tuple[str, int]], sequences: int) -> None:
    ledger = Ledger(tuple(Holding.of(name, n, "sequence") for name, n in held), sequences)
    assert sum(ledger.at(0).values()) == ledger.n_bytes(0) == sequences * sum(n for _, n in held)
    assert ledger.of("a").n_bytes(0) + ledger.without("a").n_bytes(0) == ledger.n_bytes(0)

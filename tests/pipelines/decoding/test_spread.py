"""Windows all over an output, and what they stand for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import DECODING as TINY

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.decoding.spread import Spread, Told, Window, tokens_of, windows_of
from kvferry.pipelines.run import run_scenario
from kvferry.pipelines.tally import Totals
from kvferry.scenarios.loader import load_scenario


def told(now_s: float, read: float) -> Told:
    totals = Totals(
        now_s=now_s,
        busy_s={("gpu", "Attend"): now_s / 2},
        n_bytes={("storage", "Read"): read},
        energy_j={"gpu": 3 * now_s},
        storage_utilisation=0.25,
    )
    return Told(totals=totals, counts={"wanted": read})


def test_windows_by_hand() -> None:
    # Two windows of 8 steps over 100: their later four lie around 25 and 75, at 23..27 and 73..77.
    assert windows_of(100, 16) == (Window(19, 4, 4), Window(42, 4, 4))
    # Of 6 steps to be carried out, 3 count, in the middle.
    assert windows_of(100, 6) == (Window(45, 3, 3),)
    # All of them: nothing is skipped.
    assert [one.skipped for one in windows_of(16, 16)] == [0, 0]


def test_tokens_of_windows_by_hand() -> None:
    assert tokens_of([Window(2, 1, 1), Window(3, 0, 2)]) == [0, 3, 4, 8, 9]
    assert tokens_of([Window(0, 0, 3)]) == [0, 1, 2, 3]


@given(steps=st.integers(1, 5000), share=st.floats(0.001, 1))
def test_windows_lie_within_the_output(steps: int, share: float) -> None:
    carried_out = max(1, int(steps * share))
    windows = windows_of(steps, carried_out)
    assert sum(one.warming + one.counted for one in windows) == carried_out
    assert sum(one.skipped for one in windows) + carried_out <= steps
    assert all(one.counted >= 1 and one.skipped >= 0 for one in windows)


def test_counted_parts_add_up_behind_the_prefill_by_hand() -> None:
    spread = Spread((Window(5, 1, 2), Window(7, 1, 1)))
    # Tokens 1 (prefill, at 10 s), 2 (warming), 3 and 4 (counted), 5 (warming), 6 (counted).
    assert [spread.wants(tokens) for tokens in range(1, 7)] == [True, True, False, True, True, True]
    times_s = [10, 14, 15, 17, 30, 34]
    for tokens, now_s in enumerate(times_s, 1):
        spread.on_token(tokens, now_s, told(now_s, 100 * now_s) if spread.wants(tokens) else None)
    assert spread.token_times_s == [10, 11, 13, 17]
    assert spread.prefill is not None
    assert spread.end is not None
    # 10 s of prefill, 14 to 17, 30 to 34.
    end = spread.end.totals
    assert (spread.prefill.totals.now_s, end.now_s) == (10, 17)
    assert end.n_bytes == {("storage", "Read"): 1700}
    assert end.busy_s == {("gpu", "Attend"): 8.5}
    assert end.energy_j == {"gpu": 51}
    assert end.storage_utilisation == pytest.approx(0.25)
    assert spread.end.counts == {"wanted": 1700}


def test_windows_tell_of_the_whole_output() -> None:
    """All KV is read in each step: more and more, evenly."""
    whole = {**TINY, "system": "flexgen", "workload": {**TINY["workload"], "output": 400}}
    part = {**whole, "workload": {**whole["workload"], "decoded": 33, "part": "spread"}}
    full, short = (metrics_for(wanted := load_scenario(one), run_scenario(wanted)) for one in (whole, part))
    for name in ("tpot_s", "read_bytes", "write_bytes", "throughput_tokens_per_s", "block_io_s"):
        assert short[name] == pytest.approx(full[name], rel=0.01), name


def test_what_moves_counts_once_by_hand() -> None:
    spread = Spread((Window(5, 1, 2), Window(7, 1, 1)))
    spread.on_token(1, 10, told(10, 1000))
    # A layer moves for 3 s among the tokens that are skipped, another for 5 s before the second counted step.
    spread.on_move(told(10, 1000))
    spread.on_move(told(13, 1300))
    for tokens, now_s in ((2, 14), (3, 15)):
        spread.on_token(tokens, now_s, told(now_s, 100 * now_s) if spread.wants(tokens) else None)
    spread.on_move(told(15, 1500))
    spread.on_move(told(20, 2000))
    for tokens, now_s in ((4, 22), (5, 30), (6, 34)):
        spread.on_token(tokens, now_s, told(now_s, 100 * now_s) if spread.wants(tokens) else None)
    assert spread.prefill is not None
    assert spread.end is not None
    # 10 s of prefill; 14 to 15, 20 to 22 and 30 to 34 count; 3 + 5 s moved.
    assert spread.token_times_s == [10, 11, 13, 17]
    assert (spread.end.totals.now_s, spread.moves.totals.now_s) == (17, 8)
    assert spread.with_moves(spread.prefill).totals.now_s == 18
    assert spread.with_moves(spread.end).totals.n_bytes == {("storage", "Read"): 2500}


def test_the_tokens_of_all_windows_were_decoded() -> None:
    wanted = load_scenario({**TINY, "workload": {**TINY["workload"], "output": 400, "decoded": 48, "part": "spread"}})
    assert metrics_for(wanted, run_scenario(wanted))["tokens_decoded"] == 48

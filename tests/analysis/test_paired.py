"""Systems beside each other at the same points, by hand."""

import pandas as pd
import pytest

from kvferry.analysis.paired import paired

AXES = ("system", "workload.context", "seed")


def table(**times_s: list[float]) -> pd.DataFrame:
    """A figure of each system at two contexts of each seed."""
    rows = [
        {"outcome": "done", "system": system, "workload.context": n % 2, "seed": n // 2, "ttft_s": value}
        for system, values in times_s.items()
        for n, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_the_better_of_two_by_hand() -> None:
    (one,) = paired(table(slow=[2.0, 4.0, 1.0, 10.0], fast=[1.0, 3.0, 2.0, 5.0]), "ttft_s", AXES)
    assert (one.better, one.worse, one.points, one.ahead) == ("fast", "slow", 4, 3)
    # Half, three quarters, twice and half of the time: in the middle of 1/2 and 3/4, on a logarithmic scale.
    assert one.median == pytest.approx(1 - (0.5 * 0.75) ** 0.5)
    assert (one.courses, one.interval) == (2, None)
    said = "fast beats slow at 3 of 4 points (75%), ttft_s by 38.8% in the median"
    assert str(one) == f"{said} (no interval: 2 seeds, 5 at least)"


def test_two_that_are_level_at_every_point_beat_nothing() -> None:
    (one,) = paired(table(a=[1.0, 2.0], b=[1.0, 2.0]), "ttft_s", AXES)
    assert str(one) == "a and b are level at 2 of 2 points, by ttft_s"
    # Level in the median: the one that is better anywhere is the better one.
    (other,) = paired(table(a=[1.0, 2.0, 3.0], b=[1.0, 2.0, 2.0]), "ttft_s", AXES)
    assert (other.better, other.ahead, other.level, other.median) == ("b", 1, 2, 0)


def test_as_many_wins_on_either_side_are_no_win() -> None:
    (one,) = paired(table(a=[1.0, 2.0, 3.0, 1.0], b=[2.0, 1.0, 2.0, 4.0]), "ttft_s", AXES)
    assert (one.ahead, one.level) == (2, 0)
    assert str(one).startswith("a and b are level: 2 of 4 points (50%) each, ttft_s by ")


def test_a_rate_is_better_where_it_is_higher() -> None:
    points = table(a=[1.0, 1.0], b=[1.5, 1.5]).rename(columns={"ttft_s": "throughput_tokens_per_s"})
    (one,) = paired(points, "throughput_tokens_per_s", AXES)
    assert (one.better, one.median) == ("b", pytest.approx(0.5))


def test_points_that_one_lacks_do_not_count() -> None:
    points = table(a=[1.0, 2.0], b=[2.0, 1.0])
    points.loc[(points["system"] == "b") & (points["workload.context"] == 1), "outcome"] = "out_of_memory"
    (one,) = paired(points, "ttft_s", AXES)
    assert (one.better, one.points) == ("a", 1)


def test_the_interval_is_over_courses_not_points() -> None:
    # Five seeds, of which each says the same at both contexts: one of them says the contrary.
    times_s = [0.5, 0.5, 0.8, 0.8, 0.9, 0.9, 0.6, 0.6, 1.2, 1.2]
    (one,) = paired(table(a=times_s, b=[1.0] * 10), "ttft_s", AXES)
    assert one.interval is not None
    low, high = one.interval
    assert (one.courses, one.ahead) == (5, 8)
    assert low == pytest.approx(-0.2) or low == pytest.approx(0.1)
    assert low < one.median < high <= 0.5
    assert paired(table(a=times_s, b=[1.0] * 10), "ttft_s", AXES) == [one]


def test_other_round_trips_and_scales_of_one_link_are_no_other_courses() -> None:
    points = table(a=[0.5, 0.8, 0.9, 0.6, 0.7, 0.9, 0.8, 0.5, 0.6, 0.7], b=[1.0] * 10)
    for key in ("link.rtt", "link.scale"):
        changed = points.assign(**{key: points["seed"], "seed": 1})
        (one,) = paired(changed, "ttft_s", ("system", "workload.context", key))
        assert (one.points, one.courses, one.interval) == (10, 1, None)
    # As a sweep's table calls it.
    elsewhere = points.assign(**{"link.offset_s": points["seed"], "seed": 1})
    (one,) = paired(elsewhere, "ttft_s", ("system", "workload.context", "link.offset"))
    assert one.courses == 5 and one.interval is not None
    assert str(one).endswith("95 % by bootstrap over 5 seeds and links)")


def test_an_interval_says_whether_seeds_change_the_link() -> None:
    points = table(a=[0.5, 0.8, 0.9, 0.6, 0.7, 0.9, 0.8, 0.5, 0.6, 0.7], b=[1.0] * 10)
    for link in ("", " over the same course of the link", ", each over another course of the link"):
        (one,) = paired(points, "ttft_s", AXES, link)
        assert str(one).endswith(f"95 % by bootstrap over 5 seeds{link})")


def test_points_whose_intervals_meet_are_no_sure_wins() -> None:
    """2 s lies inside 1 to 3 s, and outside of 2.5 to 3 s; without an interval an equal figure is a tie."""
    points = table(a=[2.0, 2.0, 2.0], b=[3.0, 3.0, 2.0])
    points["low_ttft_s"] = [None, None, None, 1.0, 2.5, None]
    points["high_ttft_s"] = [None, None, None, 3.0, 3.0, None]
    (one,) = paired(points, "ttft_s", AXES)
    assert (one.better, one.ahead, one.meeting) == ("a", 2, 1)
    assert str(one).startswith("a beats b at 2 of 3 points (67%; their 80 % intervals meet at 1), ttft_s by")


def test_less_quality_is_said() -> None:
    points = table(a=[1.0], b=[2.0])
    points["kv_relative_error"] = [0.3, 0.05]
    (one,) = paired(points, "ttft_s", AXES)
    assert str(one).startswith("a (KV error 0.3, not 0.05) beats b at 1 of 1 points")


def test_without_systems_there_is_nothing_to_say() -> None:
    assert paired(table(a=[1.0]), "ttft_s", ("workload.context",)) == []
    assert paired(table(a=[1.0], b=[1.0]), "tpot_s", AXES) == []


def test_a_system_without_a_policy_stands_beside_every_value_of_it() -> None:
    rows = [("kvswap", 2.0, 3.0), ("kvswap", 4.0, 1.0), ("vllm", None, 2.0), ("full-eager", None, 4.0)]
    points = pd.DataFrame(rows, columns=["system", "policies.group_tokens", "ttft_s"]).assign(outcome="done")
    pairs = paired(points, "ttft_s", ("system", "policies.group_tokens"))
    assert [(one.better, one.worse, one.ahead, one.points) for one in pairs] == [
        ("kvswap", "vllm", 1, 2),
        ("kvswap", "full-eager", 2, 2),
        ("vllm", "full-eager", 1, 1),
    ]


def test_systems_that_are_level_say_in_what_they_differ_most() -> None:
    gaps_s = {"steady": 0.096, "halting": 2.85}
    rows = [
        {
            "outcome": "done", "system": name, "seed": seed, "assisted_share": 1.0, "ttft_s": 0.8,
            "largest_gap_s": gap_s, "total_energy_j": 2600.0 if name == "steady" else 2100.0,
            # Neither is better, and no column of the table.
            "uplink_bytes": 1.0 if name == "steady" else 1e6, "throughput_tokens_per_s": 20.0,
        }
        for name, gap_s in gaps_s.items()
        for seed in (0, 1)
    ]  # fmt: skip
    (one,) = paired(pd.DataFrame(rows), "ttft_s", ("system",))
    level = "steady and halting are level at 2 of 2 points, by ttft_s"
    assert str(one) == f"{level}; they differ most by largest_gap_s, 96.0 ms against 2.85 s in the median"
    same = [{**row, "largest_gap_s": 0.1, "total_energy_j": 1.0} for row in rows]
    (one,) = paired(pd.DataFrame(same), "ttft_s", ("system",))
    assert str(one) == level

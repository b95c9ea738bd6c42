"""The least count that lets enough requests keep their limits: by hand, for any threshold, and of a small cloud."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import ASSISTED, changed
from typer.testing import CliRunner

import kvferry
from kvferry.analysis.capacity import Capacity, Trial, least_count
from kvferry.cli.main import app
from kvferry.specs.errors import InputError
from kvferry.specs.workload import SloSpec


def by(attained: dict[int, float] | None = None, threshold: int = 0) -> tuple[list[int], Capacity]:
    asked: list[int] = []

    def trial_of(count: int) -> Trial:
        asked.append(count)
        reached = float(count >= threshold) if attained is None else attained[count]
        return Trial(count, reached, {"slo_attainment": reached, "ttft_p95_s": 1 / count})

    return asked, least_count("n", 0.95, 64, trial_of)


def test_counts_double_and_the_gap_is_halved_by_hand() -> None:
    asked, found = by({1: 0.1, 2: 0.5, 4: 0.8, 8: 1.0, 6: 0.96, 5: 0.94})
    assert asked == [1, 2, 4, 8, 6, 5]
    assert (found.least, [one.count for one in found.trials]) == (6, [1, 2, 4, 5, 6, 8])
    assert found.best.attainment == 0.96


@given(st.integers(1, 64))
def test_any_threshold_is_found_in_few_trials_each_once(threshold: int) -> None:
    asked, found = by(threshold=threshold)
    assert found.least == threshold
    assert len(asked) == len(set(asked)) <= 2 * threshold.bit_length()


def test_where_more_changes_nothing_the_search_ends_and_says_what_stands_in_the_way() -> None:
    def trial_of(count: int) -> Trial:
        reached = min(count, 4) / 8
        return Trial(count, reached, {"slo_attainment": reached, "ttft_p95_s": 3.0}, prompt_p95_s=2.2)

    found = least_count("machines.cloud.count", 0.95, 4096, trial_of, SloSpec(ttft_s=1.0))
    assert found.least is None
    assert [one.count for one in found.trials] == [1, 2, 4, 8]
    assert found.why == (
        "no machines.cloud.count reaches 95.0%: from 4 on more of them change nothing, and 50.0% of the requests keep"
        " the SLO (TTFT p95 3.00 s, limit 1.00 s); the cloud's prefill alone takes 2.20 s at the 95th percentile"
    )


def test_the_most_that_may_be_tried_is_tried_and_said() -> None:
    _, found = by({1: 0.1, 2: 0.2, 4: 0.3, 8: 0.4, 16: 0.5, 32: 0.6, 64: 0.7})
    assert found.least is None
    assert "64 is the most tried, and 70.0% of the requests keep the SLO" in found.why


MANY = changed(
    ASSISTED,
    machines={"cloud": {"device": "rtx-5080-laptop", "model": "tiny", "count": 1}},
    workload={"devices": 6, "arrivals": {"rate": "2 requests/s"}, "duration": "5 s"},
    slo={"ttft": "1 h"},
)


def test_one_machine_is_enough_where_limits_are_wide() -> None:
    found = kvferry.capacity({**MANY, "system": "cloud-only", "policies": {}})
    assert found.least == 1
    assert found.best.machines == {"cloud": 1}
    assert 0 < found.best.busy["cloud"] <= 1
    assert found.best.machine_s


def test_limits_that_no_count_keeps_are_said_with_exit_code_1(tmp_path: Path) -> None:
    file = tmp_path / "many.yaml"
    file.write_text(json.dumps(changed(MANY, slo={"ttft": "1 ns"})))
    result = CliRunner().invoke(app, ["capacity", str(file), "--most", "2", "--json", "-o", str(tmp_path / "c.json")])
    assert result.exit_code == 1
    priced = CliRunner().invoke(app, ["capacity", str(file), "--most", "2", "--price-per-hour", "2"])
    assert priced.exit_code == 1 and "1,000 requests cost" not in priced.output
    told = json.loads((tmp_path / "c.json").read_text())
    assert told["least"] is None
    assert "of the requests keep the SLO" in told["why"]


@pytest.mark.parametrize(
    ("changes", "options", "wanted"),
    [
        ({"slo": None}, {}, "slo: is missing in the scenario"),
        (
            {},
            {"least": "machines.cluod.count"},
            "least: the scenario has no machines.cluod; machines.cloud.count would do",
        ),
        ({}, {"slo_attainment": 1.2}, "slo_attainment: 1.2 is no share"),
        ({}, {"least": "seed"}, "least: seed changes nothing"),
        ({}, {"most": 0}, "most: 0 is less than 1"),
    ],
)
def test_bad_questions_are_refused_in_a_line(
    changes: dict[str, object], options: dict[str, object], wanted: str
) -> None:
    with pytest.raises(InputError, match=wanted):
        kvferry.capacity(changed(MANY, **changes), **options)  # type: ignore[arg-type]

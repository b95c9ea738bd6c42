"""Answers that end before the cloud's tokens do, which no device knows beforehand. Times as in test_by_hand."""

from collections.abc import Iterator

import pytest
from assisted import BY_HAND, only, ran
from by_hand import by_hand
from tiny import changed, tiny

from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError

HELP = "policies.assist={tokens: 5, ratio: 0.25}"
PACE_S = 0.020 + 0.260 / 4


@pytest.fixture(autouse=True)
def _costs() -> Iterator[None]:
    with by_hand():
        yield


@pytest.mark.parametrize("output", [2, 3, 5, 10])
def test_the_pace_is_that_of_the_planned_tokens(output: int) -> None:
    run = ran(HELP, workload={"output": output})
    times_s = run.requests[0].token_times_s
    assert len(times_s) == output
    n = min(output, 5)
    assert times_s[:n] == pytest.approx([times_s[0] + PACE_S * k for k in range(n)])
    assert only(run)["pace_s"] == pytest.approx(PACE_S)


def test_patience_may_be_auto() -> None:
    run = ran("policies.assist={tokens: 5, ratio: 0.25, patience: auto}")
    assert only(run)["lost"] == 0


def test_patience_of_no_length_is_refused() -> None:
    with pytest.raises(InputError, match="patience: '0 s': must be above 0; or auto or planned"):
        run_scenario(tiny(BY_HAND, "policies.assist={patience: 0 s}"))


def test_a_stall_without_patience_is_refused() -> None:
    stalls = changed(BY_HAND, system="cloud-only", workload={"fault": {"what": "stalls", "tokens": 2}})
    with pytest.raises(InputError, match=r"workload\.fault\.what: stalls would be waited for without end"):
        run_scenario(tiny(stalls, "policies.assist={patience: null}"))


def test_a_stall_without_patience_is_none_where_the_device_has_its_own_tokens() -> None:
    run = ran(
        "policies.assist={tokens: 5, ratio: 0.25, patience: null}",
        workload={"fault": {"what": "stalls", "tokens": 2}},
    )
    assert only(run)["largest_gap_s"] < 0.3

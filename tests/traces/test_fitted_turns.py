"""A workload that is fitted to a log: what can be counted by hand, and drawn turns that are like it."""

import numpy as np
import pytest

from kvferry.specs.session import SessionSpec
from kvferry.traces.fitted_turns import fitted, statistics
from kvferry.traces.turn_logs import Logged, Recorded
from kvferry.traces.turns import turns_of


def logged(arrival_s: float, prompt: int, output: int, *ids: int) -> Logged:
    return Logged(0, arrival_s, prompt, output, ids or None)


def test_what_a_log_says() -> None:
    # Two conversations of two turns and one of one; all begin with block 7, and two of them with 7 and 8.
    recorded = Recorded(
        (
            [logged(0, 400, 50, 7, 8, 1), logged(20, 460, 50, 7, 8, 1, 2)],
            [logged(5, 400, 50, 7, 8, 3), logged(15, 460, 50, 7, 8, 3, 4)],
            [logged(9, 400, 50, 7, 9, 5)],
        ),
        block=100,
        timed=True,
    )
    found = fitted(recorded)
    assert found["turns_each"] == pytest.approx(5 / 3, abs=1e-3)
    # 10 tokens are asked behind 450; of the first prompts 100 are common to all, and 290 left.
    assert (found["beginning"], found["question"], found["context"], found["output"]) == (100, 10, 290, 50)
    assert found["think_s"] == 15.0
    assert found["question_percentiles"] == (10,) * 9


def test_requests_by_themselves_share_nothing() -> None:
    lengths = np.exp(np.random.default_rng(1).normal(np.log(1000), 0.5, 4000)).astype(int)
    recorded = Recorded(tuple([logged(n, int(length), 20)] for n, length in enumerate(lengths)), None, timed=True)
    found = fitted(recorded)
    assert (found["turns_each"], found["context"], found["in_cloud"]) == (1.0, 0, "nothing")
    assert found["question"] == pytest.approx(1000, rel=0.03)
    assert np.log(found["question_percentiles"][5] / 1000) == pytest.approx(0.5 * 1.2816, abs=0.03)


def test_drawn_turns_are_like_those_that_were_fitted() -> None:
    keys = {"turns_each": 3.0, "context": 800, "spread": 0.4, "question": 60, "question_spread": 1.0, "output": 90,
            "output_spread": 0.2, "think_s": 30.0, "think_spread": 0.5, "beginning": 256}  # fmt: skip
    drawn = turns_of(SessionSpec(kind="session", turns=3000, at_once=50, contexts=20, **keys), seed=3)
    found = statistics(drawn)
    assert found["asked later"][0] == pytest.approx(60, rel=0.1)
    assert found["asked later"][1] == pytest.approx(60 * np.exp(1.2816), rel=0.15)
    assert found["answer"][1] == pytest.approx(90 * np.exp(0.2 * 1.2816), rel=0.05)
    assert found["until the next, s"][0] == pytest.approx(30.0, rel=0.1)
    # Of twenty contexts most have been read before.
    assert 60 < found["of first prompts, %"][0] < found["found before, %"][0] < 100


def test_the_longest_drawn_turns_are_no_longer_than_the_logs() -> None:
    """Most questions are short, one in five is a document: a lognormal through both has a tail that no log has."""
    asked = np.where(np.arange(2000) % 5, 40, 5000 + np.arange(2000))
    turns = [
        [logged(60.0 * n, 1000, 50, *range(10)), logged(60.0 * n + 30, 1050 + int(more), 50, *range(10))]
        for n, more in enumerate(asked)
    ]
    found = fitted(Recorded(tuple(turns), block=100, timed=True))
    drawn = statistics(turns_of(SessionSpec(kind="session", turns=8000, at_once=50, **found), seed=3))
    recorded = np.percentile(asked, [50, 90, 99])
    assert drawn["asked later"] == pytest.approx(recorded.tolist(), rel=0.15)


def test_all_first_prompts_are_alike() -> None:
    """As in a log of one conversation: all whole blocks are common, and a search for the first other one ends."""
    found = fitted(Recorded(([logged(0, 230, 50, 1, 2), logged(9, 290, 50, 1, 2)],), block=100, timed=True))
    assert (found["beginning"], found["context"], found["question"]) == (200, 20, 10)


def test_lengths_by_percentiles() -> None:
    """As long as it is written there, and between two of them by the logarithm."""
    output = (1, 10, 10, 10, 10, 100, 1000, 1000, 1000)
    spec = SessionSpec(kind="session", turns=20_000, at_once=50, output_percentiles=output, turns_each=1.0)
    answers = [turn.output for turn in turns_of(spec, seed=1).numbered]
    assert max(answers) == 1000 and np.median(answers) == 10
    # Half of the way from the 75th to the 90th: the root of 10 times 100.
    assert np.percentile(answers, 82.5) == pytest.approx(31.6, rel=0.15)


@pytest.mark.parametrize(
    ("lengths", "what"),
    [
        ([1, 2], "has 2 lengths; 9 would do, at percentiles 0, 10, 25, 50, 75, 90, 95, 99, 100"),
        ([1, 2, 3, 4, 5, 6, 7, 9, 8], "falls from 9 to 8 tokens; the ascending order would do"),
    ],
)
def test_percentiles_that_are_none(lengths: list[int], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        SessionSpec(kind="session", question_percentiles=lengths)


def test_what_was_there_before() -> None:
    keys = {"context": 400, "question": 100, "output": 100, "turns_each": 1000.0, "block": 100}
    found = statistics(turns_of(SessionSpec(kind="session", turns=2, **keys), seed=1))
    # The second prompt is 700 tokens long, of which the first turn left 600.
    assert found["found before, %"] == pytest.approx([100 * 500 / 1200])
    assert found["first prompt"] == [500, 500, 500]

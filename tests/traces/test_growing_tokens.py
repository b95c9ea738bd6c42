"""Selections among a context that grows: what they hold, and how much neighbouring steps share."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.machine.ops import Retrieve
from kvferry.traces.critical_tokens import SmoothFields
from kvferry.traces.growing_tokens import GrowingTokens


def stream(blocks: int, *, sequences: int = 1, heads: int = 2, persistence: float = 40.0, lasting: float = 0.35):  # type: ignore[no-untyped-def]
    return GrowingTokens(
        sequences=sequences,
        heads=heads,
        blocks=blocks,
        reach=8,
        persistence=persistence,
        lasting=lasting,
        seed=3,
    )


def asked(step: int, there: int, k: int) -> Retrieve:
    return Retrieve(batch=1, groups=there, k=k, tokens=there, step=step, heads=2)


def overlap(budget: int, *, blocks: int = 8192, **statistics: float) -> float:
    """The share that neighbouring steps have in common, over eight of them."""
    chosen, tokens = stream(blocks, **statistics), []
    tokens = [chosen(asked(step, blocks - 9 + step, budget)).ids[0] for step in range(9)]
    shares = [
        len(np.intersect1d(a, b)) / budget
        for before, now in itertools.pairwise(tokens)
        for a, b in zip(before, now, strict=True)
    ]
    return float(np.mean(shares))


@given(there=st.integers(1, 60), k=st.integers(1, 60), steps=st.integers(1, 5))
def test_each_row_has_as_many_tokens_as_asked_of_those_that_are_there(there: int, k: int, steps: int) -> None:
    chosen = stream(70)
    for step in range(steps):
        k_now = min(k, there + step)
        ids = chosen(asked(step, there + step, k_now)).ids
        assert ids.shape == (1, 2, k_now)
        assert (np.diff(ids, axis=2) > 0).all()
        assert ids.min() >= 0
        assert ids.max() < there + step


def test_tokens_made_while_decoding_are_chosen_as_others_are() -> None:
    # Half of the tokens are new by then: about half of what is chosen.
    ids = stream(4000)(asked(2000, 4000, 1000)).ids
    assert 0.4 < (ids >= 2000).mean() < 0.6


def test_neighbouring_steps_share_more_of_a_larger_budget() -> None:
    shares = [overlap(budget) for budget in (256, 1024, 4096)]
    assert shares == sorted(shares)
    assert shares[0] > 0.8
    assert overlap(1024, persistence=5) < shares[1]
    # What lasts leaves only for tokens that are new.
    assert 0.999 < overlap(1024, lasting=1.0) < 1


def test_a_jump_forgets_as_much_as_its_steps() -> None:
    def shared(steps: list[int]) -> float:
        chosen = stream(8192)
        first, *_, last = (chosen(asked(step, 8192, 1024)).ids[0] for step in steps)
        return float(np.mean([len(np.intersect1d(a, b)) for a, b in zip(first, last, strict=True)])) / 1024

    assert shared([0, 20]) == pytest.approx(shared(list(range(21))), abs=0.04)


def test_equal_seeds_give_equal_selections_and_no_step_comes_twice() -> None:
    one, other = stream(100), stream(100)
    assert (one(asked(4, 90, 7)).ids == other(asked(4, 90, 7)).ids).all()
    with pytest.raises(ValueError, match="step 3 is over; the stream stands at 4"):
        one(asked(3, 90, 7))
    with pytest.raises(ValueError, match="lasting must lie in 0..1, got 2"):
        stream(100, lasting=2)


def test_fields_are_standard_normal_and_alike_where_near() -> None:
    field = SmoothFields(4, 20_000, math.exp(-1 / 8)).drawn(np.random.default_rng(1))
    assert field.shape == (4, 20_000)
    assert field.std() == pytest.approx(1, abs=0.03)
    apart = [float((field[:, n:] * field[:, :-n]).mean()) for n in (1, 8)]
    assert apart == pytest.approx([math.exp(-1 / 8), math.exp(-1)], abs=0.05)

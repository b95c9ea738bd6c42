"""Which tokens refiners keep: by hand, and at most as many as asked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.assist.refiner import (
    REFINERS,
    HeavyHitters,
    Shown,
    SinksAndNewest,
    SnapKv,
    best_sentences,
    content_tokens,
    pooled,
    votes,
)


def test_pooling_is_a_mean_over_neighbours() -> None:
    assert pooled(np.array([[0.0, 3.0, 6.0, 0.0]]), 3).tolist() == [[1.5, 3.0, 3.0, 3.0]]


def test_votes_count_heads() -> None:
    scores = np.array([[4.0, 3.0, 2.0, 1.0], [1.0, 5.0, 5.0, 0.0]])
    assert votes(scores, 2).tolist() == [1, 2, 1, 0]
    # What they pay for these: 4 and 3, 5 and 5.
    assert votes(scores, 2, weighted=True).tolist() == [4, 8, 5, 0]


def test_a_head_that_looks_far_back_is_outvoted_unless_votes_are_weighted() -> None:
    # Three heads look at the newest sentence, a little; one at the first, with nearly all that it has.
    window = np.repeat([[0.002, 0.003]] * 3 + [[0.04, 0.001]], 20, axis=1)
    shown = Shown(window, window, np.repeat([0, 1], 20))
    assert SnapKv(sentences=True).kept(shown, 20).tolist() == [False] * 20 + [True] * 20
    assert SnapKv(sentences=True, weighted=True).kept(shown, 20).tolist() == [True] * 20 + [False] * 20


def test_whole_sentences_by_their_mean() -> None:
    # Means 1.5, 2 and 1: the second is taken first, then the first does not fit beside it, the third does.
    sentences, scores = np.array([0, 0, 1, 1, 1, 2]), np.array([3.0, 0.0, 2.0, 2.0, 2.0, 1.0])
    assert best_sentences(sentences, scores, 4).tolist() == [False, False, True, True, True, True]
    # None fits: the best one's beginning.
    assert best_sentences(sentences[:5], scores[:5], 1).tolist() == [False, False, True, False, False]


def test_heavy_hitters_and_sinks_by_hand() -> None:
    whole = np.array([[0.0, 9.0, 1.0, 2.0, 8.0, 0.0, 0.0, 1.0]])
    shown = Shown(whole * 0, whole, np.zeros(8, int))
    assert np.flatnonzero(HeavyHitters().kept(shown, 4)).tolist() == [1, 4, 6, 7]
    assert np.flatnonzero(SinksAndNewest().kept(shown, 6)).tolist() == [0, 1, 2, 3, 6, 7]


def test_what_is_fixed_counts_in_the_ratio() -> None:
    assert content_tokens(1000, 100, 0.25) == 150
    assert content_tokens(1000, 300, 0.25) == 1
    assert content_tokens(1000, 1000, 0.25) == 0
    assert content_tokens(1000, 100, 1.0) == 900


@pytest.mark.parametrize("name", REFINERS)
@given(seed=st.integers(0, 10**6), tokens=st.integers(1, 60), share=st.floats(0, 1))
def test_never_more_than_asked_and_all_of_all(name: str, seed: int, tokens: int, share: float) -> None:
    chance = np.random.default_rng(seed)
    scores = chance.random((2, 3, tokens))
    shown = Shown(scores[0], scores[1], np.sort(chance.integers(0, 5, tokens)))
    most = round(share * tokens)
    kept = REFINERS[name].kept(shown, most)
    assert kept.dtype == np.bool_
    assert (most > 0) <= kept.sum() <= most
    assert REFINERS[name].kept(shown, tokens).all()


def test_scores_and_sentences_must_fit() -> None:
    with pytest.raises(ValueError, match="float"):
        Shown(np.zeros((2, 3)), np.zeros((2, 4)), np.zeros(3, int))
    with pytest.raises(ValueError, match="ascend"):
        Shown(np.zeros((2, 3)), np.zeros((2, 3)), np.array([0, 2, 1]))

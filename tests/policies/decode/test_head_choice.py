"""Which tokens heads choose, by hand for every kind of attention."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvferry.policies.decode.head_choice import best_tokens, group_weights

# Four query heads over five tokens.
WEIGHTS = np.array(
    [
        [0.1, 0.6, 0.1, 0.1, 0.1],
        [0.5, 0.1, 0.2, 0.1, 0.1],
        [0.1, 0.1, 0.1, 0.3, 0.4],
        [0.2, 0.1, 0.5, 0.1, 0.1],
    ]
)


def test_every_head_of_mha_and_mla_chooses_for_itself() -> None:
    expected = [[0, 1], [0, 2], [3, 4], [0, 2]]
    assert best_tokens(group_weights(WEIGHTS, 4, "mha"), 2).tolist() == expected
    assert best_tokens(group_weights(WEIGHTS, 1, "mla"), 2).tolist() == expected


def test_groups_of_gqa_choose_by_the_largest_weight() -> None:
    # Two heads each: 0.5 0.6 0.2 0.1 0.1, and 0.2 0.1 0.5 0.3 0.4.
    assert group_weights(WEIGHTS, 2, "gqa").tolist() == [[0.5, 0.6, 0.2, 0.1, 0.1], [0.2, 0.1, 0.5, 0.3, 0.4]]
    assert best_tokens(group_weights(WEIGHTS, 2, "gqa"), 2).tolist() == [[0, 1], [2, 4]]


def test_all_heads_of_mqa_choose_together() -> None:
    # 0.5 0.6 0.5 0.3 0.4: of equal weights the first.
    assert best_tokens(group_weights(WEIGHTS, 1, "mqa"), 2).tolist() == [[0, 1]]
    assert best_tokens(group_weights(WEIGHTS, 1, "mqa"), 9).tolist() == [[0, 1, 2, 3, 4]]


def test_head_counts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="gqa of 4 query heads has a divisor of 4 for KV heads, not 3"):
        group_weights(WEIGHTS, 3, "gqa")
    with pytest.raises(ValueError, match="mha of 4 query heads has 4 for KV heads, not 2"):
        group_weights(WEIGHTS, 2, "mha")
    with pytest.raises(ValueError, match="mla of 4 query heads has 1 .the latent cache. for KV heads, not 2"):
        group_weights(WEIGHTS, 2, "mla")
    with pytest.raises(ValueError, match="a budget is a token at least, got 0"):
        best_tokens(WEIGHTS, 0)


@settings(max_examples=50, deadline=None)
@given(groups=st.integers(1, 4), shared=st.integers(1, 4), tokens=st.integers(1, 12), budget=st.integers(1, 12))
def test_what_is_left_out_weighs_no_more(groups: int, shared: int, tokens: int, budget: int) -> None:
    weights = np.random.default_rng(tokens).random((groups * shared, tokens))
    together = group_weights(weights, groups, "gqa")
    for row, chosen in zip(together, best_tokens(together, budget), strict=True):
        assert len(set(chosen.tolist())) == len(chosen) == min(budget, tokens)
        left_out = np.delete(row, chosen)
        assert not len(left_out) or left_out.max() <= row[chosen].min()

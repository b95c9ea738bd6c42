"""Ranges of tokens, by hand."""

from hypothesis import given
from hypothesis import strategies as st

from kvferry.policies.decode.spans import Spans, gaps


def test_blocks_that_follow_each_other_are_one_range() -> None:
    found = Spans.of([5, 0, 1, 3], 16)
    assert found.ranges == ((0, 32), (48, 64), (80, 96)) and found.tokens == 64
    assert Spans.of([]) == Spans.first(0) == Spans() and Spans.first(7).ranges == ((0, 7),)


def test_groups_are_whole() -> None:
    assert Spans(((3, 9), (10, 20))).blocks(4, 100) == [(1, 2), (3, 5)]
    assert Spans(((3, 9), (10, 20))).blocks(4, 4) == [(1, 2), (3, 4)]
    assert Spans(((1, 4), (5, 7))).blocks(4, 100) == []


def test_gaps() -> None:
    assert gaps([(1, 2), (4, 6)], 9) == [(0, 1), (2, 4), (6, 9)]
    assert gaps([(0, 9)], 9) == [] and gaps([], 3) == [(0, 3)] and gaps([], 0) == []


@given(st.sets(st.integers(0, 20)), st.sets(st.integers(0, 20)))
def test_what_others_have_is_left_out(these: set[int], others: set[int]) -> None:
    left = Spans.of(these).without(Spans.of(others))
    assert {n for begin, end in left.ranges for n in range(begin, end)} == these - others

"""What many decoded tokens cost together, where attention sees all KV and where it sees a window."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.machine.ops import DecodeRun


def test_without_a_window_the_context_grows() -> None:
    """Ten, eleven and twelve."""
    assert DecodeRun(3, 10).middle.context_tokens == 11


def test_a_window_holds_the_context() -> None:
    """Ten, eleven, and then twelve for the rest."""
    assert DecodeRun(6, 10, window_tokens=12).middle.context_tokens == pytest.approx((10 + 11 + 12 * 4) / 6)
    assert DecodeRun(6, 100, window_tokens=12).middle.context_tokens == 12


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 200))
def test_it_is_the_mean_of_what_each_step_sees(tokens: int, context: int, window: int) -> None:
    seen = [min(context + n, window) for n in range(tokens)]
    assert DecodeRun(tokens, context, window_tokens=window).middle.context_tokens == pytest.approx(sum(seen) / tokens)

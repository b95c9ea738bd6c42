"""Generated selections: the locality that was asked for, at token and at group granularity alike."""

import numpy as np
import pytest

from kvferry.machine.ops import Select
from kvferry.policies.decode.reuse_buffer import ReuseBuffer
from kvferry.policies.decode.rows import BlockRows
from kvferry.specs.errors import InputError
from kvferry.traces.critical_tokens import CriticalTokens, RecordedSelections
from kvferry.traces.selections import SelectionStream

CONTEXT, SELECTED = 8192, 400


def tokens_of(group_tokens: int, **more: float) -> CriticalTokens:
    given = {"overlap": 0.77, "skew": 1.2, **more}
    return CriticalTokens(
        layers=2, sequences=2, context=CONTEXT, selected=SELECTED, group_tokens=group_tokens, seed=3, **given
    )


def shared(before: np.ndarray, after: np.ndarray) -> float:
    """The share of `after` (flat rows) that `before` has too."""
    rows = [len(set(a) & set(b)) for a, b in zip(before.tolist(), after.tolist(), strict=True)]
    return float(np.mean(rows)) / after.shape[1]


@pytest.mark.parametrize("group_tokens", [1, 4, 8])
def test_selections_are_distinct_and_overlap_as_asked(group_tokens: int) -> None:
    stream = tokens_of(group_tokens)
    overlaps, before = [], None
    for step in range(60):
        stream.advance(step)
        units = stream.selected().reshape(4, -1)
        assert units.shape[1] == SELECTED // group_tokens
        assert 0 <= units.min() <= units.max() < CONTEXT // group_tokens
        assert (np.diff(np.sort(units, axis=1)) > 0).all()
        if before is not None:
            overlaps.append(shared(before, units))
        before = units
    # A new token may lie in the group of the old one.
    assert np.mean(overlaps) == pytest.approx(0.77, abs=0.03)


@pytest.mark.parametrize("group_tokens", [2, 4, 8])
def test_groups_are_those_of_selected_tokens(group_tokens: int) -> None:
    alone, grouped = tokens_of(1), tokens_of(group_tokens)
    for step in range(20):
        alone.advance(step)
        grouped.advance(step)
        np.testing.assert_array_equal(alone.tokens(), grouped.tokens())
        tokens, units = grouped.tokens().reshape(4, -1), grouped.selected().reshape(4, -1)
        for row in range(4):
            assert set(units[row]) <= set(tokens[row] // group_tokens)


def test_reuse_and_skew_come_about() -> None:
    # KVSwap Tab. 5 and 3.4.2: some 77 % reuse, under 22 % of the groups for 80 % of the accesses.
    stream = CriticalTokens(
        layers=1, sequences=4, context=32768, selected=400, group_tokens=4, overlap=0.72, skew=1.6, seed=1
    )
    buffer, seen, hits = ReuseBuffer(4, 8192, 490), [], 0
    for step in range(300):
        stream.advance(step)
        units = stream.selected()[0, :, 0]
        seen.append(units[0])
        found = buffer.look_up(BlockRows(units)).hits
        # Once the buffer is full.
        hits += found if step >= 50 else 0
    assert hits / (250 * 400) == pytest.approx(0.78, abs=0.02)
    recorded = SelectionStream(np.sort(np.stack(seen), axis=1)[:, None, None], 8192)
    assert recorded.hot_share(0.8) < 0.22


def test_same_seed_same_stream_and_no_way_back() -> None:
    one, other = tokens_of(4), tokens_of(4)
    op = Select(2, CONTEXT // 4, 100, step=5, layer=1)
    np.testing.assert_array_equal(one(op), other(op))
    with pytest.raises(ValueError, match="step 4 is over"):
        one.advance(4)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [({"overlap": 1.01}, "overlap must lie"), ({"selected": 9000}, "cannot be selected"), ({"selected": 401}, "whole")],
)
def test_impossible_wishes(wrong: dict[str, float], what: str) -> None:
    given = {"layers": 1, "sequences": 1, "context": CONTEXT, "selected": 400, "group_tokens": 4, "overlap": 0.77}
    with pytest.raises(ValueError, match=what):
        CriticalTokens(**{**given, "skew": 1.2, "seed": 0, **wrong})


@pytest.mark.parametrize("context", [420, 1024, 5000])
@pytest.mark.parametrize("group_tokens", [1, 4, 16])
def test_short_contexts_have_distinct_groups_too(context: int, group_tokens: int) -> None:
    stream = CriticalTokens(
        layers=2, sequences=1, context=context, selected=400, group_tokens=group_tokens, overlap=0.95, skew=1, seed=0
    )
    for step in range(10):
        stream.advance(step)
        units = stream.selected().reshape(2, -1)
        assert (np.diff(np.sort(units, axis=1)) > 0).all()
        assert units.max() < context // group_tokens


def test_a_recorded_stream_answers_and_starts_again() -> None:
    stream = SelectionStream(np.arange(24, dtype=np.int32).reshape(4, 2, 1, 3), groups=24)
    answers = RecordedSelections(stream, sequences=2)
    # Sequences are two steps apart, of four.
    chosen = answers(Select(2, 24, 3, step=5, layer=1))
    assert chosen[:, 0].tolist() == [[9, 10, 11], [21, 22, 23]]
    with pytest.raises(InputError, match="recorded with 2 layers"):
        answers(Select(2, 24, 4, step=0, layer=0))

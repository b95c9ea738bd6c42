"""Generated selections: the structure that was asked for, and that recorded ones have."""

from typing import Any

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
    given: dict[str, Any] = {"context": CONTEXT, "reach": 32, "persistence": 9, "lasting": 0.35, **more}
    return CriticalTokens(layers=2, sequences=8, selected=SELECTED, group_tokens=group_tokens, seed=3, **given)


def recorded(stream: CriticalTokens, steps: int) -> SelectionStream:
    """What all rows select, each as a head of its own."""
    ids = []
    for step in range(steps):
        stream.advance(step)
        ids.append(stream.selected().reshape(1, -1, stream.groups).copy())
    return SelectionStream(np.stack(ids), stream.context_groups)


@pytest.mark.parametrize("group_tokens", [1, 4, 8])
def test_groups_ascend_and_are_distinct(group_tokens: int) -> None:
    # SelectionStream refuses others.
    assert recorded(tokens_of(group_tokens), 20).ids.shape == (20, 1, 16, SELECTED // group_tokens)


def test_what_is_wanted_lies_together() -> None:
    """As in streams recorded from byte-large: 400 of 4,096 tokens in groups of 8 come in runs of 2.1, and every other
    group is followed by one that is selected, too."""
    ids = recorded(tokens_of(8, context=4096), 60).ids
    followed = float((np.diff(ids, axis=-1) == 1).mean())
    assert followed == pytest.approx(0.52, abs=0.05)
    assert 1 / (1 - followed) == pytest.approx(2.1, abs=0.2)


def test_the_correlations_asked_for_come_about() -> None:
    # Of two normal numbers with a correlation of c, both lie on one side of 0 with a chance of 1/2 + asin(c) / pi.
    # Half of the groups are selected, so a score beyond the median is a selected group.
    half = CriticalTokens(
        layers=1, sequences=1, context=8192, selected=4096, reach=16, persistence=8, lasting=0.25, seed=1
    )
    ids = recorded(half, 120).ids[:, 0, 0]
    selected = np.zeros((120, 8192), bool)
    np.put_along_axis(selected, ids.astype(np.int64), True, axis=1)

    def both(one: np.ndarray, other: np.ndarray) -> float:
        return float((one == other).mean())

    for apart in (1, 8, 32):
        expected = 0.5 + np.arcsin(np.exp(-apart / 16)) / np.pi
        assert both(selected[:, apart:], selected[:, :-apart]) == pytest.approx(expected, abs=0.02)
    for later in (1, 8, 64):
        expected = 0.5 + np.arcsin(0.25 + 0.75 * np.exp(-later / 8)) / np.pi
        assert both(selected[later:], selected[:-later]) == pytest.approx(expected, abs=0.02)


def test_the_overlap_grows_with_the_share_that_is_selected() -> None:
    overlaps = [recorded(tokens_of(4, context=context), 40).overlaps().mean() for context in (2048, 8192, 32768)]
    assert overlaps[0] > overlaps[1] + 0.05 > overlaps[2] + 0.1


def test_reuse_and_skew_come_about() -> None:
    # KVSwap Tab. 5 and 3.4.2: some 77 % reuse, under 22 % of the groups for 80 % of the accesses.
    stream = CriticalTokens(
        layers=1,
        sequences=8,
        context=32768,
        selected=400,
        group_tokens=4,
        reach=32,
        persistence=9,
        lasting=0.35,
        seed=1,
    )
    buffer, seen, hits = ReuseBuffer(8, 8192, 490), [], 0
    for step in range(300):
        stream.advance(step)
        units = stream.selected()[0, :, 0]
        seen.append(units[0])
        found = buffer.look_up(BlockRows(units)).hits
        # Once the buffer is full.
        hits += found if step >= 50 else 0
    assert hits / (250 * 800) == pytest.approx(0.77, abs=0.02)
    assert SelectionStream(np.stack(seen)[:, None, None], 8192).hot_share(0.8) < 0.22


def test_rows_are_at_steps_of_their_own() -> None:
    stream = tokens_of(4)
    stream.advance(0)
    rows = stream.selected().reshape(16, -1)
    assert len({tuple(row) for row in rows.tolist()}) == 16


def test_same_seed_same_stream_and_no_way_back() -> None:
    one, other = tokens_of(4), tokens_of(4)
    op = Select(2, CONTEXT // 4, 100, step=5, layer=1)
    np.testing.assert_array_equal(one(op).ids, other(op).ids)
    np.testing.assert_array_equal(one(op).scores, other(op).scores)
    with pytest.raises(ValueError, match="step 4 is over"):
        one.advance(4)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"lasting": 1.01}, "lasting must lie"),
        ({"persistence": 0}, "must be positive"),
        ({"selected": 9000}, "cannot be selected"),
        ({"selected": 401}, "whole"),
    ],
)
def test_impossible_wishes(wrong: dict[str, float], what: str) -> None:
    given: dict[str, Any] = {"layers": 1, "sequences": 1, "context": CONTEXT, "selected": 400, "group_tokens": 4}
    given |= {"reach": 32, "persistence": 9, "lasting": 0.3, "seed": 0}
    with pytest.raises(ValueError, match=what):
        CriticalTokens(**{**given, **wrong})


@pytest.mark.parametrize("context", [400, 420, 1024, 5000])
@pytest.mark.parametrize("group_tokens", [1, 4, 16])
def test_short_contexts_have_distinct_groups_too(context: int, group_tokens: int) -> None:
    found = recorded(tokens_of(group_tokens, context=context), 10)
    assert found.ids.max() < context // group_tokens
    if context == 400:
        assert found.overlaps().min() == 1


def test_a_recorded_stream_answers_and_starts_again() -> None:
    stream = SelectionStream(np.arange(24, dtype=np.int32).reshape(4, 2, 1, 3), groups=24)
    answers = RecordedSelections(stream, sequences=2)
    # Sequences are two steps apart, of four.
    chosen = answers(Select(2, 24, 3, step=5, layer=1)).ids
    assert chosen[:, 0].tolist() == [[9, 10, 11], [21, 22, 23]]
    with pytest.raises(InputError, match="recorded with 2 layers"):
        answers(Select(2, 24, 4, step=0, layer=0))


def test_an_op_that_selects_more_than_the_context_had_gets_the_newest_besides() -> None:
    stream = tokens_of(8, context=SELECTED)
    (of_row,) = np.unique(stream(Select(8, 53, 52, 0, 0)).ids[:, 0], axis=0)
    assert of_row.tolist() == [*range(50), 51, 52]
    assert stream(Select(8, 53, 50, 1, 0)).ids.shape == (8, 1, 50)

"""What conversations say, and names of their blocks by content."""

from typing import Any

import pytest

from kvferry.traces.turn import Turn, Turns

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from kvferry.backends.live.turns.texts import Texts  # noqa: E402
from kvferry.model.prompts import Prompts  # noqa: E402


def turn(conversation: int, number: int, prompt: int, *leaves: int, **more: Any) -> Turn:
    """Blocks of four tokens; answers have three."""
    blocks = leaves[: prompt // 4]
    return Turn(conversation=conversation, number=number, prompt=prompt, output=3, blocks=blocks, leaves=leaves, **more)


# Both conversations begin with block 1; the second goes on with another. Turn 1 goes on from turn 0.
TURNS = Turns(
    streams=((turn(0, 0, 9, 1, 2, 3, stored=2), turn(0, 1, 14, 1, 2, 3, 4)), (turn(1, 0, 9, 1, 5, 6, stored=2),)),
    block=4,
)


def texts(seed: int = 0) -> Texts:
    return Texts(TURNS, Prompts(None, 50, None, seed))


def test_equal_blocks_are_said_alike_and_others_are_not() -> None:
    first, _, other = (texts().prompt(n, {0: [7, 8, 9]}) for n in range(3))
    assert first[:4] == other[:4] and first[4:8] != other[4:8]
    assert texts().document(0) == first[:8] and texts().document(2) == other[:8]


def test_a_turn_goes_on_from_what_was_answered() -> None:
    said = texts().prompt(1, {0: [7, 8, 9]})
    assert len(said) == 14
    assert said[:12] == (*texts().prompt(0, {}), 7, 8, 9)


def test_names_are_of_tokens_and_of_all_before_them() -> None:
    before = texts().names(0, {})
    # The third block has the answer's tokens, which are not known yet.
    assert list(before) == [1, 2]
    after = texts().names(0, {0: [7, 8, 9]})
    assert list(after) == [1, 2, 3] and after | before == after
    assert texts().names(1, {0: [7, 8, 9]}) == after
    # Another answer is another block; all before it are the same.
    otherwise = texts().names(0, {0: [7, 8, 10]})
    assert otherwise[2] == after[2] and otherwise[3] != after[3]
    # As is an equal block behind another one: only the first has its name in both conversations.
    other = texts().names(2, {2: [7, 8, 9]})
    assert other[1] == after[1] and {other[5], other[6]}.isdisjoint(after.values())
    assert set(texts(seed=1).names(0, {}).values()).isdisjoint(after.values())
    assert len({len(name) for name in after.values()} | {32}) == 1


def test_an_unfinished_answer_names_nothing() -> None:
    assert list(texts().names(0, {0: [7, 8]})) == [1, 2]


def test_the_name_of_an_equal_block_depends_on_what_came_before() -> None:
    same = Turns(streams=((turn(0, 0, 9, 1, 2, 3),),), block=4)
    zeros, ones = (Texts(same, _Said(first)).names(0, {}) for first in (0, 1))
    assert zeros[1] != ones[1] and zeros[2] != ones[2]


class _Said(Prompts):
    """Four times the first token, then zeros."""

    def __init__(self, first: int) -> None:
        self._first = first

    def tokens(
        self, sequence: int, context: int, question: int, apart: int | None = None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (*[self._first] * 4, *[0] * (context - 4)), ()

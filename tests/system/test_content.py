"""Digests of what objects hold."""

from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from kvferry.system import content
from kvferry.system.content import Unclear, digest_of


class Slotted:
    __slots__ = ("array", "other")

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def size(self) -> int:
        return self.array.size


class Plain(Slotted):
    def __init__(self, array: np.ndarray, number: float = 1.0) -> None:
        super().__init__(array)
        self.number = number


class Mangled:
    __slots__ = ("__hidden",)

    def __init__(self, hidden: int) -> None:
        self.__hidden = hidden


class Letters:
    __slots__ = "name"


class Listed(list[int]):
    pass


class Pair(NamedTuple):
    left: int
    right: int


@pytest.fixture(autouse=True)
def these_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_OWN", (*content._OWN, __name__.partition(".")[0]))


def made() -> list[Any]:
    """Returns objects none of which holds what another does."""
    ring: list[Any] = []
    ring.append(ring)
    zeros = np.zeros(4)
    return [
        zeros,
        np.zeros(4, np.float32),
        np.zeros((2, 2)),
        np.arange(4.0),
        Slotted(zeros),
        Plain(zeros),
        Plain(zeros, 2.0),
        Plain(zeros).size,
        {"a": 1},
        {1: "a"},
        [1, 2],
        (1, 2),
        deque([1, 2]),
        deque([1, 2], 3),
        Mangled(1),
        Mangled(2),
        np.asfortranarray(np.arange(4.0).reshape(2, 2)),
        np.arange(4.0).reshape(2, 2),
        [zeros, zeros],
        [zeros, zeros.copy()],
        Pair(1, 2),
        defaultdict(list, a=1),
        defaultdict(int, a=1),
        True,
        1,
        1.0,
        np.float64(1.0),
        "1",
        None,
        partial(holding, 1),
        partial(holding, 2),
        ring,
        [[1], [1]],
        [shared := [1], shared],
    ]


def test_what_holds_the_same_is_alike_and_nothing_else() -> None:
    first, again = ([digest_of(one) for one in made()] for _ in range(2))
    assert first == again
    assert len({*first}) == len(first)


def test_an_array_that_is_kept_apart_may_hold_anything() -> None:
    one, other = np.zeros(3), np.ones(3)
    assert digest_of(Slotted(one), one) == digest_of(Slotted(other), other)
    assert digest_of(Slotted(one), one) != digest_of(Slotted(one))


def holding(number: int) -> Callable[[], int]:
    return lambda: number


def defaulting(number: int = 1) -> int:
    return number


REFUSED = [
    holding(1),
    defaulting,
    lambda: 1,
    np.array([{}]),
    np.ma.masked_array([1], [True]),
    object(),
    iter([1]),
    pytest.raises,
    Letters(),
    Listed([1]),
    {1},
    ValueError("1"),
]


@pytest.mark.parametrize("one", REFUSED)
def test_what_is_not_clear_is_refused(one: Any) -> None:
    with pytest.raises(Unclear):
        digest_of([one])

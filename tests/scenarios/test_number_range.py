"""Ranges: their values by hand, and what holds for every one."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.scenarios.number_range import NumberRange
from kvferry.specs.amount import amount_of
from kvferry.specs.node import Place, node_of


def range_of(**keys: Any) -> NumberRange:
    mapping = {key.rstrip("_"): value for key, value in keys.items()}
    return NumberRange.of(node_of(mapping, Place("test", None, Path.cwd())))


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        ({"from_": 1, "to": 10, "points": 4}, [1, 4, 7, 10]),
        ({"from_": 1, "to": 16, "points": 5, "log": True}, [1, 2, 4, 8, 16]),
        ({"from_": 1, "to": 4, "points": 9}, [1, 2, 3, 4]),  # whole numbers, each once
        ({"from_": 1.0, "to": 2, "points": 3}, [1.0, 1.5, 2.0]),
        ({"from_": 0.1, "to": 0.5, "step": 0.1}, [0.1, 0.2, 0.3, 0.4, 0.5]),
        ({"from_": 0, "to": 10, "step": 4}, [0, 4, 8]),
        ({"from_": "1Ki", "to": "4Ki tokens", "step": "1Ki"}, [1024, 2048, 3072, 4096]),
        ({"from_": "1 ms", "to": "2 ms", "points": 3}, ["1 ms", "1.5 ms", "2 ms"]),
        ({"from_": "100 Mbit/s", "to": "1 Gbit/s", "points": 2}, ["12500000 B/s", "125000000 B/s"]),
        ({"from_": "1 ms", "to": "100 ms", "points": 3, "log": True}, ["1 ms", "10 ms", "100 ms"]),
    ],
)
def test_values(keys: dict[str, Any], values: list[Any]) -> None:
    found = range_of(**keys).values()
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_each_whole_number_has_an_equal_part() -> None:
    found = [range_of(from_=1, to=4).at(share / 8) for share in range(8)]
    assert found == [1, 1, 2, 2, 3, 3, 4, 4]


def test_rounding_leads_to_no_value_outside() -> None:
    assert range_of(from_=249, to=250, log=True).at(2.6e-140) == 249


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(2, 40), st.booleans(), st.booleans(), st.data())
def test_every_value_lies_between_the_ends(
    low: int, width: int, points: int, log: bool, unit: bool, data: st.DataObject
) -> None:
    ends = (low, low + width)
    first, last = (f"{end} us" for end in ends) if unit else ends
    limits = range_of(from_=first, to=last, points=points, log=log)
    values = [amount_of(value) for value in limits.values()]
    numbers = [value.number for value in values if value is not None]
    assert numbers == sorted(set(numbers))
    one, other = amount_of(first), amount_of(last)
    assert one is not None
    assert other is not None
    assert (numbers[0], numbers[-1]) == (one.number, other.number)
    drawn = amount_of(limits.at(data.draw(st.floats(0, 1, exclude_max=True))))
    assert drawn is not None
    assert one.number <= drawn.number <= other.number


def test_each_whole_number_has_its_share_below_zero_too() -> None:
    below = range_of(from_=-3, to=2)
    assert [below.at(share) for share in below.shares()] == [-3, -2, -1, 0, 1, 2]
    assert (below.at(0.0), below.at(0.999)) == (-3, 2)

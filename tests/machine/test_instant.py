"""Time-outs until an instant: by hand, and nowhere else by a difference of two times."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import simpy

from kvferry.machine.instant import at

HERE = Path(__file__).parents[2]
# Where a clock may be a real one, which goes on between two reads.
ROOMS = ("backends", "machine", "pipelines")


@pytest.mark.parametrize(("time_s", "fires_s"), [(3.0, 3.0), (2.0, 2.0), (0.5, 2.0)])
def test_it_fires_then_or_at_once_where_that_has_passed(time_s: float, fires_s: float) -> None:
    env = simpy.Environment(2.0)
    env.run(until=at(env, time_s))
    assert env.now == fires_s


def differences(file: Path) -> Iterator[int]:
    """Lines on which a time-out is a difference that reads the clock."""
    for call in ast.walk(ast.parse(file.read_text())):
        timeout = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "timeout"
        if timeout and any(isinstance(part, ast.Attribute) and part.attr == "now" for part in ast.walk(call)):
            yield call.lineno


def test_no_other_time_out_reads_a_clock() -> None:
    found = {
        str(file.relative_to(HERE)): list(differences(file))
        for room in ROOMS
        for file in (HERE / room).rglob("*.py")
        if file.name != "instant.py"
    }
    assert {file: lines for file, lines in found.items() if lines} == {}

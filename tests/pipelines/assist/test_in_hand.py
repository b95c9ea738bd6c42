"""Turns of requests that an instance decodes for."""

from types import SimpleNamespace
from typing import Any

import simpy

from kvferry.pipelines.assist.in_hand import Turn


def test_each_token_is_due_a_pace_behind_the_one_before() -> None:
    """The token before may be sent at 10 s, and the pace is 2 s: the first is due at 12, and behind three of five steps
    the next at 18, whenever that is asked for. Without a pace none is ever late."""
    env = simpy.Environment()
    instance: Any = SimpleNamespace(machine=SimpleNamespace(env=env), turns=SimpleNamespace(steps=7))
    paced, free = (Turn(instance, 0, 100, 5, pace_s, 10.0) for pace_s in (2.0, None))
    paced.until = free.until = 7 + 5
    assert paced.due_s == 12
    instance.turns.steps = 10
    assert paced.due_s == paced.due_s == 18
    assert free.due_s == float("inf")
    instance.turns.steps = 11
    assert paced.due_s == 20

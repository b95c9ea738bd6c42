"""The environment of modelled worlds does what SimPy's does."""

from collections.abc import Callable, Generator
from typing import Any

import pytest
import simpy

from kvferry.machine.instant import call_off
from kvferry.sim.environment import Environment


def told(env: simpy.Environment) -> list[tuple[float, str]]:
    """What two processes say, one of which waits for the other, until the first has ended."""
    said: list[tuple[float, str]] = []

    def first() -> Generator[simpy.Event, Any, str]:
        for n in range(3):
            yield env.timeout(1)
            said.append((env.now, f"first {n}"))
        return "over"

    def second(of: simpy.Process) -> Generator[simpy.Event, Any, None]:
        over = yield of
        said.append((env.now, over))
        yield env.timeout(2)
        said.append((env.now, "second"))

    process = env.process(first())
    env.process(second(process))
    over: str = env.run(until=process)
    said.append((env.now, over))
    # What waits for it as well is told when the run goes on.
    env.run(until=10)
    return said


def test_the_same_happens_at_the_same_times() -> None:
    found = told(Environment())
    assert found == told(simpy.Environment())
    assert found[-3:] == [(3, "over"), (3, "over"), (5, "second")]


@pytest.mark.parametrize("env", [Environment(), simpy.Environment()])
def test_an_error_that_nobody_takes_ends_the_run(env: simpy.Environment) -> None:
    def fails() -> Generator[simpy.Event, Any, None]:
        yield env.timeout(1)
        raise ValueError("no")

    done = env.event()
    env.process(fails())
    with pytest.raises(ValueError, match="no"):
        env.run(until=done)


@pytest.mark.parametrize("env", [Environment(), simpy.Environment()])
def test_what_never_happens_is_said(env: simpy.Environment) -> None:
    env.timeout(1)
    with pytest.raises(RuntimeError, match="No scheduled events left"):
        env.run(until=env.event())
    assert env.now == 1
    fired = env.event().succeed("there")
    assert env.run(until=fired) == env.run(until=fired) == "there"


def in_turn(env: simpy.Environment, until: Callable[[simpy.Environment], Any]) -> list[str]:
    """In which order things happen that are due together: scheduled ahead, at once, urgent, and behind one another."""
    said: list[str] = []

    def say(what: str, delay: float = 0, *then: Callable[[], None]) -> None:
        timeout = env.timeout(delay)
        timeout.callbacks.append(lambda _: said.append(what))
        timeout.callbacks += [lambda _, one=one: one() for one in then]

    def process() -> Generator[simpy.Event, Any, None]:
        said.append("process begins")
        yield env.timeout(0)
        said.append("process ends")

    say("first", 1, lambda: say("at once"), lambda: env.process(process()), lambda: say("at once, later"))
    say("second", 1, lambda: say("behind", 1))
    say("third", 1)
    end = until(env)
    env.run(until=end)
    return said


@pytest.mark.parametrize("until", [lambda env: env.timeout(5), lambda env: 5])
def test_what_is_due_at_once_stands_in_line(until: Callable[[simpy.Environment], Any]) -> None:
    """Behind what was due at the same time before, and behind what is urgent; whether SimPy's steps do it or not."""
    found = in_turn(Environment(), until)
    assert found == in_turn(simpy.Environment(), until)
    assert found == [
        "first", "process begins", "second", "third", "at once", "at once, later", "process ends", "behind",
    ]  # fmt: skip


def test_the_next_time_is_known() -> None:
    env = Environment()
    env.timeout(2)
    assert env.peek() == 2
    env.event().succeed()
    assert env.peek() == 0


def test_what_was_called_off_does_not_happen_and_is_not_kept() -> None:
    """Of 2,000 timeouts every tenth stays, one of those that were called off had a listener, and one has happened
    already: the others happen in order, and no more than about as many as these lie in the heap."""
    env, said = Environment(), list[int]()
    over = env.timeout(0)
    waited = [env.timeout(2_000 - n, n) for n in range(2_000)]
    env.run(until=env.timeout(0))
    call_off(over)
    for timeout in waited:
        timeout.callbacks.append(lambda timeout: said.append(timeout.value))
    for timeout in waited:
        if timeout.value % 10:
            call_off(timeout)
    call_off(waited[1])
    assert not waited[1].processed
    assert len(env._queue) < 2_000 / 10 + 300
    env.run(until=3_000)
    assert said == list(range(1_990, -1, -10))


def test_a_clock_that_takes_nothing_back_is_left_alone() -> None:
    env = simpy.Environment()
    timeout = env.timeout(1)
    call_off(timeout)
    env.run()
    assert timeout.processed

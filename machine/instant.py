"""Waiting until an instant, on a virtual clock or a real one."""

import simpy


def at(env: simpy.Environment, time_s: float) -> simpy.Timeout:
    """Fires at this time of the run's clock; at once where it has passed.

    The clock is read once: a wall clock goes on between two reads, and a difference that was positive at the first one
    may be negative at the second, which SimPy refuses.
    """
    return env.timeout(max(0.0, time_s - env.now))


def call_off(waited: simpy.Event) -> None:
    """Cancels an instant for which nothing waits any more, and nothing will, on a clock that can cancel events."""
    take_back = getattr(waited.env, "call_off", None)
    if take_back is not None:
        take_back(waited)

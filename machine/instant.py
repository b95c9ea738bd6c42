"""Waiting until an instant, on a virtual clock or a real one."""

import simpy


def at(env: simpy.Environment, time_s: float) -> simpy.Timeout:
    """Fires at this time of the run's clock; at once where it has passed.

    The clock is read once: a wall clock goes on between two reads, and a difference that was positive at the first one
    may be negative at the second, which SimPy refuses.
    """
    return env.timeout(max(0.0, time_s - env.now))

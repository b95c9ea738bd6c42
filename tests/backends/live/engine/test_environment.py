"""Wall-clock SimPy: the same order and the same events, with answers from threads in between."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import simpy

from kvferry.backends.live.engine.display import LiveDisplay
from kvferry.backends.live.engine.environment import WallClockEnvironment


def outside(env: WallClockEnvironment, work: Callable[[], Any], after_s: float = 0.0) -> simpy.Event:
    """An event that a thread of its own answers with what `work` returns, or raises."""
    event = env.event()
    with env.lock:
        env.expect()

    def run() -> None:
        time.sleep(after_s)
        try:
            env.post(event.succeed, work())
        except Exception as error:
            env.post(event.fail, error)

    threading.Thread(target=run, daemon=True).start()
    return event


def test_what_happens_at_once_happens_in_the_order_of_the_simulator() -> None:
    def story(env: simpy.Environment) -> list[object]:
        log: list[object] = []
        slot = simpy.PriorityResource(env)
        store = simpy.Store(env)

        def worker(name: str, priority: int) -> simpy.events.ProcessGenerator:
            try:
                with slot.request(priority) as turn:
                    yield turn
                    log.append((name, "in"))
                    yield env.timeout(0)
                    yield store.put(name)
                    log.append((name, "out"))
            except simpy.Interrupt as interrupt:
                log.append((name, interrupt.cause))

        def reader() -> simpy.events.ProcessGenerator:
            while len(log) < 9:
                log.append(("read", (yield store.get())))

        workers = [env.process(worker(f"w{i}", priority=-i)) for i in range(4)]
        env.process(reader())
        both = env.all_of([workers[1], workers[2]])
        both.callbacks.append(lambda _: log.append("both"))

        def interrupter() -> simpy.events.ProcessGenerator:
            yield env.timeout(0)
            workers[3].interrupt("enough")
            log.append("interrupted")
            # A new process begins before callbacks of events that succeeded earlier at the same time.
            later = env.event()
            later.callbacks.append(lambda _: log.append("later"))
            later.succeed()
            env.process(newborn())

        def newborn() -> simpy.events.ProcessGenerator:
            log.append("born")
            yield env.timeout(0)

        env.process(interrupter())
        env.run()
        return log

    assert story(WallClockEnvironment()) == story(simpy.Environment())


def test_time_outs_never_fire_early_and_in_their_order() -> None:
    env = WallClockEnvironment()
    woken: list[float] = []

    def sleeper(delay_s: float) -> simpy.events.ProcessGenerator:
        asked_s = env.now
        yield env.timeout(delay_s)
        assert env.now >= asked_s + delay_s
        woken.append(delay_s)

    delays_s = [0.03, 0.01, 0.02, 0.0]
    env.run(until=env.all_of([env.process(sleeper(delay_s)) for delay_s in delays_s]))
    assert woken == sorted(delays_s)
    env.run(until=env.now + 0.01)
    with pytest.raises(ValueError):
        env.run(until=env.now - 1)


def test_a_time_out_counts_from_when_it_was_asked_for_however_long_the_process_took_before() -> None:
    env = WallClockEnvironment()

    def busy() -> simpy.events.ProcessGenerator:
        yield env.timeout(0)
        time.sleep(0.02)
        asked_s = env.now
        yield env.timeout(0.01)
        assert env.now >= asked_s + 0.01

    env.run(until=env.process(busy()))


def test_answers_from_outside_come_as_events() -> None:
    env = WallClockEnvironment()

    def story() -> simpy.events.ProcessGenerator:
        answer = yield outside(env, lambda: 7)
        late, soon = outside(env, lambda: "late", after_s=0.03), env.timeout(0.001, "soon")
        first = yield env.any_of([late, soon])
        assert list(first.values()) == ["soon"]
        both = yield env.all_of([late, soon])
        assert sorted(both.values()) == ["late", "soon"]
        return answer

    assert env.run(until=env.process(story())) == 7


def test_errors_from_outside_fail_the_event() -> None:
    env = WallClockEnvironment()

    def broken() -> None:
        raise ValueError("no such luck")

    def heedful() -> simpy.events.ProcessGenerator:
        with pytest.raises(ValueError, match="no such luck"):
            yield outside(env, broken)

    env.run(until=env.process(heedful()))
    outside(env, broken)  # no process waits for it: the run must not go on as if nothing had happened
    with pytest.raises(ValueError, match="no such luck"):
        env.run()


def test_a_process_can_be_interrupted_while_it_waits_for_the_outside() -> None:
    env = WallClockEnvironment()
    done = threading.Event()

    def waiting() -> simpy.events.ProcessGenerator:
        try:
            yield outside(env, done.wait)
        except simpy.Interrupt as interrupt:
            return interrupt.cause

    waiter = env.process(waiting())

    def interrupter() -> simpy.events.ProcessGenerator:
        yield env.timeout(0.001)
        waiter.interrupt("now")
        done.set()

    env.process(interrupter())
    assert env.run(until=waiter) == "now"


def test_a_run_ends_when_nothing_can_happen_any_more_and_no_sooner() -> None:
    env = WallClockEnvironment()
    env.run()
    answered = outside(env, lambda: 1, after_s=0.01)
    env.run()
    assert answered.processed
    with pytest.raises(RuntimeError, match="No scheduled events left"):
        env.run(until=env.event())  # in virtual time as in real time: it would never end


def test_answers_of_many_threads_all_arrive_once() -> None:
    env = WallClockEnvironment()
    got: list[int] = []

    def asker(i: int) -> simpy.events.ProcessGenerator:
        for k in range(20):
            got.append((yield outside(env, lambda k=k: 20 * i + k)))  # noqa: PERF401 - a list would be made at the end

    env.run(until=env.all_of([env.process(asker(i)) for i in range(10)]))
    assert sorted(got) == list(range(200))


@pytest.mark.parametrize("waits_for", ["a time-out", "the outside"])
def test_ctrl_c_ends_a_waiting_run_at_once(waits_for: str) -> None:
    script = f"""
        import threading
        from kvferry.backends.live.engine.environment import WallClockEnvironment
        env = WallClockEnvironment()
        if {waits_for!r} == "the outside":
            with env.lock:
                env.expect()
        else:
            env.timeout(1e12)
        threading.Timer(0.05, print, ["waiting"], {{"flush": True}}).start()
        try:
            env.run()
        except KeyboardInterrupt:
            print("interrupted")
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "waiting\n"
        os.kill(run.pid, signal.SIGINT)
        out, _ = run.communicate(timeout=20)
    assert out == "interrupted\n"
    assert run.returncode == 0


class SteppingClock:
    """A clock that goes on by as much at every read, and otherwise stands still."""

    def __init__(self, step_s: float) -> None:
        self.time_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.time_s += self.step_s
        return self.time_s


@pytest.mark.parametrize("offset", range(8))
def test_a_slot_that_passes_between_two_reads_of_the_clock_is_shown_at_once(
    offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvferry.backends.live.engine.environment.perf_counter", SteppingClock(1e-3))
    env = WallClockEnvironment()
    display = LiveDisplay(env)
    # Between any two reads lies the slot of one of these.
    for n in range(200):
        display.show(0.0, 2e-3 + n * 0.7e-3 + offset * 0.1e-3)
    shown_s = env.run(until=display.shown())
    assert len(shown_s) == 200
    assert (np.diff(shown_s) > 0).all()


def test_what_is_put_off_is_shown_in_its_new_slot() -> None:
    env = WallClockEnvironment()
    display = LiveDisplay(env)
    for slot_s in (0.0, 1.0, 1.1):
        display.show(0.0, slot_s)
    # It waits for the second by now, which is not shown in its old slot.
    env.run(until=env.timeout(0.01))
    display.keep(1)
    for slot_s in (1.3, 1.4):
        display.show(0.0, slot_s)
    shown_s = env.run(until=display.shown())
    assert len(shown_s) == 3
    assert shown_s[1] >= 1.3 and shown_s[2] >= 1.4


def test_a_time_out_fires_under_a_flood_of_news() -> None:
    env, most = WallClockEnvironment(), 20_000

    def again(n: int) -> None:
        # As from a peer that is always faster: there is more whenever something is taken in.
        if n < most:
            env.tell(again, n + 1)

    env.tell(again, 0)
    env.run(until=env.timeout(0.001))
    assert env.now < 5
    left = env._inbox.qsize()
    assert left == 1, "all of it was taken in before the clock was looked at"

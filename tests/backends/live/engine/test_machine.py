"""The live machine beyond the contract: who waits for whom, what is called off, and what errors do."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import simpy

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.link import Fetched
from kvferry.backends.live.engine.machine import LiveMachine, LiveMemory
from kvferry.backends.live.engine.stream import StreamWorker
from kvferry.backends.live.engine.thread_work import Moving, WorkFailed
from kvferry.backends.live.engine.worker import Worker
from kvferry.machine.ops import Chunks, Decompress, FeedForward, KvRef, Op
from kvferry.machine.span import Span
from kvferry.machine.ticket import Cancelled, Ticket
from kvferry.specs.errors import InputError, KvferryError

OP = FeedForward(batch=1)
KV = KvRef(0, 0, 0, None, 10.0)
Make = Callable[..., LiveMachine]


class Script:
    """Runs the function given for an op's request, else nothing. Keeps the order."""

    def __init__(self, **does: Callable[[], Any]) -> None:
        self.does = {int(name.removeprefix("op")): do for name, do in does.items()}
        self.log: list[int | None] = []

    def run(self, op: Op, request: int | None, inputs: Any = ()) -> Any:
        result = self.does.get(request if request is not None else -1, lambda: None)()
        self.log.append(request)
        return result


class Pieces:
    """A cloud that sends one byte whenever `go` is released; what it sends is the request's number."""

    def __init__(self) -> None:
        self.go = {request: threading.Semaphore(0) for request in range(8)}
        self.stopped: list[int] = []

    def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> bytes:
        lane = chunks.ids[0]
        for _ in range(int(chunks.n_bytes)):
            while not self.go[lane].acquire(timeout=0.001):
                if moving.is_set():
                    self.stopped.append(lane)
                    return b""
            moving.moved(1)
        return bytes([lane] * int(chunks.n_bytes))


@pytest.fixture
def make() -> Iterator[Make]:
    machines: list[LiveMachine] = []

    def machine(runner: Any = None, **settings: Any) -> LiveMachine:
        machines.append(LiveMachine("device", runner or Script(), capacity_bytes=1000, **settings))
        return machines[-1]

    yield machine
    for each in machines:
        each.close()


def finish(machine: LiveMachine, *events: simpy.Event) -> None:
    machine.env.run(until=machine.env.all_of(events))


def until(condition: Callable[[], Any]) -> None:
    """Wait for threads, without running the environment."""
    for _ in range(5000):
        if condition():
            return
        time.sleep(0.001)
    raise AssertionError("it never came")


# --- handing on --------------------------------------------------------------------------------------------------


def test_a_chain_goes_on_while_the_environment_stands_still(make: Make) -> None:
    cloud = Pieces()
    cloud.go[1].release(3)
    runner = Script()
    machine = make(
        runner, fetcher=cloud, decode=lambda op, request, inputs: inputs[0].payload, others={"npu": Script()}
    )
    fetched = machine.fetch(Chunks(0, (1,), 3), request=0)
    opened = machine.submit(Decompress(3), after=(fetched,), on="decompress", request=0)
    placed = machine.copy(KV, to="device", after=(opened,), request=0)
    beside = machine.submit(OP, after=(placed,), on="npu")
    last = machine.submit(OP, after=(beside,), request=5)
    until(lambda: runner.log == [5])
    assert not any(ticket.triggered for ticket in (fetched, opened, placed, beside, last))
    finish(machine, last)
    assert fetched.value == Fetched(Chunks(0, (1,), 3), b"\1\1\1")
    assert opened.value == placed.value == b"\1\1\1"


def test_work_is_given_what_it_comes_after(make: Make) -> None:
    placed: list[tuple[Any, ...]] = []

    def place(kv: KvRef, to: str, request: int | None, inputs: Sequence[Any]) -> str:
        placed.append((kv, to, request, list(inputs)))
        return "handle"

    machine = make(Script(op1=lambda: "a", op2=lambda: "b"), place=place)
    a, b = machine.submit(OP, request=1), machine.submit(OP, request=2)
    message = Ticket(machine.env)
    copied = machine.copy(KV, to="host", after=(b, message, a), request=3)
    message.succeed("m")
    finish(machine, copied)
    assert placed == [(KV, "host", 3, ["b", "m", "a"])]
    assert copied.value == "handle"


def test_work_that_waits_holds_up_its_own_lane_and_no_other(make: Make) -> None:
    runner = Script()
    machine = make(runner)
    never = Ticket(machine.env)
    waits = machine.submit(OP, after=(never,), priority=1, request=1)
    behind = machine.submit(OP, priority=1, request=2)
    other = machine.submit(OP, priority=2, request=3)
    urgent = machine.submit(OP, priority=0, request=4)
    finish(machine, other, urgent)
    assert sorted(runner.log) == [3, 4]
    assert machine.observe(1.0).compute_queue == 2
    never.succeed()
    finish(machine, waits, behind)
    assert runner.log[2:] == [1, 2]


def test_a_thread_that_is_done_before_the_hand_over_is_fires_its_ticket_once(make: Make) -> None:
    class Slow:
        """A lock after which everybody else comes first."""

        def __init__(self, lock: Any) -> None:
            self.lock = lock

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()
            time.sleep(0.002)

    machine = make(Script(op1=lambda: 1))
    machine.env.lock = Slow(machine.env.lock)  # type: ignore[assignment]
    tickets = [machine.submit(OP, request=1) for _ in range(3)]
    finish(machine, *tickets)
    assert [ticket.value for ticket in tickets] == [1, 1, 1]


def test_a_ticket_does_not_keep_alive_what_it_came_after(make: Make) -> None:
    class Large:
        pass

    machine = make(Script(op1=Large))
    first = machine.submit(OP, request=1)
    last = machine.submit(OP, after=(first,))
    finish(machine, last)
    large = weakref.ref(first.value)
    del first
    # Whatever thread was the last to hold it lets go when it is given something else.
    finish(machine, machine.submit(OP))
    gc.collect()
    assert large() is None
    assert last.ok


def test_several_workers_decompress_at_once(make: Make) -> None:
    both = threading.Barrier(2, timeout=20)
    machine = make(decode=lambda *_: both.wait() < 2, decompress_workers=2)
    finish(machine, *(machine.submit(Decompress(1)) for _ in range(2)))


# --- errors ------------------------------------------------------------------------------------------------------


class Rude(Exception):
    """An error that cannot be made again from its arguments, as SimPy will want to."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


def raises(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


def test_an_error_fails_the_ticket_and_what_comes_after_it_and_nothing_else(make: Make) -> None:
    machine = make(Script(op1=raises(KvferryError("out of luck"))), decode=lambda *_: 1)
    failed = machine.submit(OP, request=1)
    dependent = machine.submit(Decompress(1), after=(failed,))
    last = machine.copy(KV, to="host", after=(dependent,))
    other = machine.submit(OP, request=2)

    def process() -> simpy.events.ProcessGenerator:
        with pytest.raises(KvferryError, match="out of luck"):
            yield last

    finish(machine, machine.env.process(process()), other)
    assert not failed.ok
    assert not dependent.ok
    late = machine.submit(OP, after=(failed,))
    late.defused = True
    machine.env.run()
    assert not late.ok
    finish(machine, machine.submit(OP))


def test_who_has_failed_already_speaks_for_what_fails_later(make: Make) -> None:
    machine = make(Script(op1=raises(KvferryError("one")), op2=raises(KvferryError("two"))), others={"npu": Script()})
    foreign = Ticket(machine.env)
    one, two = machine.submit(OP, request=1), machine.submit(OP, request=2)
    last = machine.submit(OP, after=(foreign, one, two), on="npu")
    last.defused = True
    until(lambda: two.error)  # type: ignore[attr-defined]
    machine.env.run()
    foreign.fail(KvferryError("three"))
    machine.env.run()
    assert str(one.value) == str(last.value) == "one"
    assert str(two.value) == "two"


def test_of_an_error_and_what_follows_from_it_the_error_is_raised(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read's thread is slow to tell of it; the processor, free by the failure, is not."""
    post = WallClockEnvironment.post

    def slow(env: WallClockEnvironment, deliver: Callable[[Any], None], answer: Any) -> None:
        if threading.current_thread().name == "kvferry decompress":
            time.sleep(0.05)
        post(env, deliver, answer)

    monkeypatch.setattr(WallClockEnvironment, "post", slow)
    machine = make(Script(op2=raises(KvferryError("nothing was attended"))), decode=lambda *_: refuse())
    refuse = raises(KvferryError("the file was cut"))
    machine.submit(OP, request=1, after=(machine.submit(Decompress(1)),))
    behind = machine.submit(OP, request=2)
    with pytest.raises(KvferryError, match="the file was cut"):
        machine.env.run(until=behind)


def test_an_error_that_nobody_heeds_ends_the_run(make: Make) -> None:
    machine = make(Script(op1=raises(KvferryError("out of luck"))))
    machine.submit(OP, request=1)
    with pytest.raises(KvferryError, match="out of luck"):
        machine.env.run()


@pytest.mark.parametrize("error", [Rude(code=3), FileNotFoundError(2, "none", "store.bin"), SystemExit("bye")])
def test_errors_cross_into_the_environment_with_all_they_say(make: Make, error: BaseException) -> None:
    machine = make(Script(op1=raises(error)))
    machine.submit(OP, request=1)
    with pytest.raises((WorkFailed, SystemExit)) as caught:
        machine.env.run()
    assert str(error) in str(caught.value)


def test_a_failed_ticket_of_another_kind_fails_what_comes_after(make: Make) -> None:
    machine = make()
    foreign = Ticket(machine.env)
    dependent = machine.submit(OP, after=(foreign,))
    dependent.defused = True
    foreign.fail(KvferryError("not ours"))
    machine.env.run()
    assert str(dependent.value) == "not ours"


def test_what_a_machine_lacks_is_reported(make: Make) -> None:
    machine = make()
    with pytest.raises(InputError, match="decoder"):
        machine.submit(Decompress(1))
    with pytest.raises(InputError, match="fetcher"):
        machine.fetch(Chunks(0, (1,), 1))
    with pytest.raises(InputError, match="switchboard"):
        machine.open("cloud")
    with pytest.raises(InputError, match="unknown processor 'cpi'.*Did you mean 'cpu'"):
        machine.submit(OP, on="cpi")


# --- calling off -------------------------------------------------------------------------------------------------


def test_an_op_that_runs_is_not_taken_back(make: Make) -> None:
    go = threading.Event()
    runner = Script(op1=lambda: go.wait(20))
    machine = make(runner)
    running, queued = machine.submit(OP, request=1), machine.submit(OP, request=2)
    after_queued = machine.submit(OP, after=(queued,), request=3)
    assert running.cancel() == 0
    assert queued.cancel() == 0
    go.set()
    finish(machine, running, after_queued)
    assert running.value is True
    assert queued.value == after_queued.value == Cancelled(0.0)
    assert runner.log == [1]


def test_a_fetch_called_off_tells_its_bytes_and_frees_its_flow(make: Make) -> None:
    cloud, spans = Pieces(), list[Span]()
    machine = make(fetcher=cloud, fetches_ahead=1, tell=spans.append)
    first = machine.fetch(Chunks(0, (1,), 5), request=0)
    second = machine.fetch(Chunks(0, (2,), 2), request=0)
    cloud.go[1].release(3)
    until(lambda: machine.observe(1e3).goodput_bytes_per_s is not None and first.moving.bytes_done == 3)  # type: ignore[attr-defined]
    assert first.cancel() == 3
    assert first.cancel() == 0
    cloud.go[2].release(2)
    finish(machine, second)
    assert first.value == Cancelled(3)
    until(lambda: cloud.stopped == [1])
    assert [(span.resource, span.label, span.n_bytes) for span in spans] == [("link", "Fetch", 3), ("link", "Fetch", 2)]


def test_a_cloud_that_does_not_listen_holds_nobody_up(make: Make) -> None:
    let_go = threading.Event()
    late: list[Moving] = []

    class Deaf:
        def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> bytes:
            if chunks.ids == (1,):
                assert let_go.wait(20)
                moving.moved(7)
                late.append(moving)
            return b"whole"

    machine = make(fetcher=Deaf(), fetches_ahead=1)
    first = machine.fetch(Chunks(0, (1,), 9), request=0)
    second = machine.fetch(Chunks(0, (2,), 5), request=0)
    assert first.cancel() == 0
    finish(machine, first, second)
    let_go.set()
    until(lambda: late)
    assert late[0].bytes_done == 0, "bytes that come after the end are not counted"
    machine.env.run()
    # Busy are moments; not all the time since the first byte of what was called off.
    time.sleep(0.01)
    assert machine.observe(0.005).link_utilisation == 0


def test_a_flow_is_delivered_in_order_though_its_fetches_overlap(make: Make) -> None:
    cloud = Pieces()
    machine = make(fetcher=cloud, fetches_ahead=2)
    first, second, third = (machine.fetch(Chunks(0, (i,), 1), request=0) for i in (1, 2, 3))
    waiting = machine.copy(KV, to="device", after=(second,))
    cloud.go[2].release()
    cloud.go[3].release()
    until(lambda: second.moving.bytes_done == 1)  # type: ignore[attr-defined]
    finish(machine, machine.env.timeout(0.01))
    assert not second.triggered  # it is here, but what was asked for before is not
    assert not waiting.triggered
    assert machine.observe(1.0).link_queue == 1
    cloud.go[1].release()
    finish(machine, third)
    assert first.processed
    assert second.processed
    machine.env.run(until=waiting)


def test_cancelling_the_first_of_a_flow_delivers_what_came_behind_it(make: Make) -> None:
    cloud = Pieces()
    machine = make(fetcher=cloud, fetches_ahead=2)
    first, second = (machine.fetch(Chunks(0, (i,), 1), request=0) for i in (1, 2))
    cloud.go[2].release()
    until(lambda: second.moving.bytes_done == 1)  # type: ignore[attr-defined]
    first.cancel()
    finish(machine, first, second)
    assert first.cancelled
    assert second.value.payload == b"\2"


def test_a_fetch_that_fails_lets_those_behind_it_pass(make: Make) -> None:
    class Flaky:
        def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> bytes:
            if chunks.ids == (1,):
                raise KvferryError("cut off")
            return b"whole"

    machine = make(fetcher=Flaky())
    first, second = (machine.fetch(Chunks(0, (i,), 5), request=0) for i in (1, 2))
    dependent = machine.submit(OP, after=(first,))
    dependent.defused = True
    finish(machine, second)
    machine.env.run()
    assert second.value.payload == b"whole"
    assert str(first.value) == str(dependent.value) == "cut off"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_called_off_every_ticket_fires_and_nothing_runs_too_early(make: Make, seed: int) -> None:
    """Chains across all paths, and cancellations at random moments of a good part of them."""
    rng = np.random.default_rng(seed)
    # Shut at first, so that much is queued when it is called off, however slow this process may be.
    gate = threading.Event()
    at_work = threading.Lock()
    ran: dict[int, tuple[float, float]] = {}

    class Cloud:
        def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> bytes:
            for _ in range(5):
                if moving.wait(1e-4):
                    break
                moving.moved(2)
            return b"0123456789"

    class Runner:
        def run(self, op: Op, request: int | None, inputs: Any = ()) -> None:
            assert at_work.acquire(blocking=False), "one processor does one op at a time"
            assert gate.wait(20)
            began_s = machine.env.now
            time.sleep(float(op.batch) * 1e-4)  # type: ignore[union-attr]
            ran[int(request or 0)] = began_s, machine.env.now
            at_work.release()

    machine = make(Runner(), fetcher=Cloud(), decode=lambda *_: 1, decompress_workers=2)
    tickets: list[Ticket] = []
    after_of: list[tuple[Ticket, ...]] = []

    def submit() -> simpy.events.ProcessGenerator:
        for i in range(150):
            recent = tickets[-12:]
            picked = rng.permutation(len(recent))[: rng.integers(0, 3)]
            after = tuple(recent[k] for k in picked)
            kind = rng.integers(0, 4)
            if kind == 0:
                ticket = machine.fetch(Chunks(0, (i,), 10), after=after, request=int(rng.integers(0, 3)))
            elif kind == 1:
                ticket = machine.submit(Decompress(1), after=after)
            elif kind == 2:
                ticket = machine.copy(KV, to="device", after=after)
            else:
                op = FeedForward(int(rng.integers(0, 3)))
                ticket = machine.submit(op, after=after, priority=int(rng.integers(0, 3)), request=i)
            tickets.append(ticket)
            after_of.append(after)
            if i == 75:
                gate.set()
            if rng.random() < 0.4:
                tickets[rng.integers(0, len(tickets))].cancel()
            if rng.random() < 0.2:
                yield machine.env.timeout(float(rng.random()) * 1e-3)

    machine.env.run(until=machine.env.process(submit()))
    machine.env.run()
    assert all(ticket.processed for ticket in tickets)
    assert 20 < sum(ticket.cancelled for ticket in tickets) < 150
    for ticket, after in zip(tickets, after_of, strict=True):
        if any(other.cancelled for other in after):
            assert ticket.cancelled
        elif not ticket.cancelled:
            assert all(other.end_s <= ticket.start_s for other in after)
    facts = machine.observe(1.0)
    assert facts.compute_queue == facts.link_queue == 0
    assert all(began_s <= ended_s for began_s, ended_s in ran.values())
    assert {i for i in ran if not tickets[i].cancelled} == set(ran), "what ran was not called off"


# --- spans and facts ----------------------------------------------------------------------------------------------


def test_spans_are_reported_in_the_environments_thread_with_wall_times(make: Make) -> None:
    seen: list[tuple[Span, threading.Thread]] = []
    machine = make(tell=lambda span: seen.append((span, threading.current_thread())), decode=lambda *_: 1, main="gpu")
    op = machine.submit(OP, request=4)
    opened = machine.submit(Decompress(1), after=(op,), request=5)
    copied = machine.copy(KV, to="host", after=(opened,))
    finish(machine, copied)
    spans = [span for span, _ in seen]
    expected = [("gpu", "FeedForward", 0, 4), ("decompress", "Decompress", 0, 5), ("copy", "Copy", 10, None)]
    assert [(s.resource, s.label, s.n_bytes, s.request) for s in spans] == expected
    assert [(s.start_s, s.end_s) for s in spans] == [(t.start_s, t.end_s) for t in (op, opened, copied)]
    assert {thread for _, thread in seen} == {threading.current_thread()}


def test_facts_come_from_what_happened(make: Make) -> None:
    cloud = Pieces()
    machine = make(Script(op1=lambda: time.sleep(0.02)), fetcher=cloud, nominal_s=lambda op: 0.01)
    idle = machine.observe(1.0)
    assert idle.goodput_bytes_per_s is None
    assert idle.compute_speed is None
    assert idle.link_utilisation == idle.compute_utilisation == 0
    slow, fetched = machine.submit(OP, request=1), machine.fetch(Chunks(0, (1,), 4), request=0)
    cloud.go[1].release(4)
    finish(machine, slow, fetched)
    facts = machine.observe(1e3)
    assert slow.start_s is not None
    assert slow.end_s is not None
    assert facts.compute_speed == pytest.approx(0.01 / (slow.end_s - slow.start_s))
    # Busy from when a thread was handed the op; over a time that ends when the machine is asked, or just after.
    assert 0.9 * (slow.end_s - slow.start_s) / machine.env.now < facts.compute_utilisation <= 1
    assert fetched.end_s is not None
    assert fetched.start_s is not None
    # Four bytes at four times: three of them took the time between.
    assert facts.goodput_bytes_per_s == pytest.approx(3 / (fetched.end_s - fetched.start_s))
    assert 0 < facts.link_utilisation <= 1
    nothing_since = machine.observe(1e-9)
    assert nothing_since.goodput_bytes_per_s is None
    assert nothing_since.compute_speed is None


def test_memory_is_shown_beside_what_the_process_holds() -> None:
    memory = LiveMemory(1000)
    # What tests before have left in cycles is not given back between the two.
    gc.collect()
    before = memory.resident_bytes()
    assert before is not None
    # Larger than what an allocator takes from memory that it holds already.
    held = np.ones(1 << 26, np.uint8)
    after = memory.resident_bytes()
    assert after is not None
    assert after - before > len(held) / 2
    if "torch" not in sys.modules:
        assert memory.device_bytes() is None


# --- the end -----------------------------------------------------------------------------------------------------


def test_leaving_stops_transfers_and_ends_the_threads() -> None:
    before = set(threading.enumerate())
    with LiveMachine("device", Script(), capacity_bytes=1, fetcher=Pieces()) as machine:
        machine.fetch(Chunks(0, (1,), 9), request=0)
        finish(machine, machine.submit(OP))
        assert set(threading.enumerate()) - before
    assert not set(threading.enumerate()) - before


def test_what_is_queued_when_a_machine_closes_never_begins(make: Make) -> None:
    go = threading.Event()
    runner = Script(op1=lambda: go.wait(20))
    machine = make(runner)
    running, _ = machine.submit(OP, request=1), machine.submit(OP, request=2)
    closing = threading.Thread(target=machine.close)
    closing.start()
    until(lambda: machine._processors["cpu"][0]._closed)
    go.set()
    closing.join()
    finish(machine, running)
    machine.submit(OP, request=3)
    machine.env.run()
    assert runner.log == [1]


def test_ctrl_c_ends_a_run_though_an_op_never_does() -> None:
    script = """
        import time
        from kvferry.backends.live.engine.machine import LiveMachine
        from kvferry.machine.ops import FeedForward

        class Stuck:
            def run(self, op, request, inputs):
                print("running", flush=True)
                time.sleep(1000)

        with LiveMachine("device", Stuck(), capacity_bytes=1) as machine:
            machine.env.run(until=machine.submit(FeedForward(1)))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "running\n"
        os.kill(run.pid, signal.SIGINT)
        _, err = run.communicate(timeout=20)
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_the_core_needs_no_torch() -> None:
    engine = "kvferry.backends.live.engine"
    script = f"import sys, {engine}.machine, {engine}.channel; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True) == "False\n"


# --- streams -----------------------------------------------------------------------------------------------------


class Device:
    """A device that keeps order by itself: what is launched on a stream is done when `pass_marks` lets it."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, Any, tuple[Any, ...]]] = []
        self.passed: dict[Any, threading.Event] = {}

    def stream(self, name: str) -> "DeviceStream":
        return DeviceStream(self, name)


class DeviceStream:
    def __init__(self, device: Device, name: str) -> None:
        self.device, self.name = device, name

    def launch(self, call: Callable[[], Any], behind: Sequence[Any]) -> tuple[Any, Any]:
        result = call()
        self.device.passed[result] = threading.Event()
        self.device.launched.append((self.name, result, tuple(behind)))
        return result, result

    def wait(self, mark: Any) -> float:
        assert self.device.passed[mark].wait(20)
        if mark == "bad":
            raise KvferryError("the device says no")
        return 1e-6


def test_work_is_launched_behind_other_work_of_its_device_before_that_has_ended(make: Make) -> None:
    device = Device()
    machine = make(Script(op1=lambda: "a", op2=lambda: "b"), place=lambda *_: "c", stream=device.stream)
    a, b = machine.submit(OP, request=1), machine.submit(OP, request=2)
    c = machine.copy(KV, to="device", after=(a, b))
    until(lambda: len(device.launched) == 3)
    assert device.launched == [("cpu", "a", ()), ("cpu", "b", ()), ("copy", "c", ("a", "b"))]
    assert not a.triggered
    for mark in "abc":
        device.passed[mark].set()
    finish(machine, a, b, c)
    assert (a.value, b.value, c.value) == ("a", "b", "c")
    assert a.end_s <= b.start_s


def test_what_is_run_once_before_any_work_is_launched_on_the_stream_too(make: Make) -> None:
    device = Device()
    machine = make(Script(op1=lambda: "a"), stream=device.stream)
    warmed = threading.Thread(target=machine.warm, args=(lambda: "warm",), daemon=True)
    warmed.start()
    until(lambda: device.launched)
    device.passed["warm"].set()
    warmed.join(20)
    assert not warmed.is_alive(), "the call was never made"
    a = machine.submit(OP, request=1)
    until(lambda: len(device.launched) == 2)
    device.passed["a"].set()
    finish(machine, a)
    assert device.launched == [("cpu", "warm", ()), ("cpu", "a", ())]


def test_launched_work_counts_once_for_what_waits_for_more(make: Make) -> None:
    device, go = Device(), threading.Event()
    machine = make(Script(op1=lambda: "a"), place=lambda *_: "c", decode=lambda *_: go.wait(20), stream=device.stream)
    a, elsewhere = machine.submit(OP, request=1), machine.submit(Decompress(1))
    c = machine.copy(KV, to="device", after=(a, elsewhere))
    until(lambda: device.launched)
    device.passed["a"].set()
    finish(machine, a, machine.env.timeout(0.01))
    assert len(device.launched) == 1
    go.set()
    until(lambda: len(device.launched) == 2)
    device.passed["c"].set()
    finish(machine, c)


def test_other_threads_wait_until_the_device_is_done(make: Make) -> None:
    device, decoded = Device(), threading.Event()
    machine = make(Script(op1=lambda: "a"), decode=lambda *_: decoded.set(), stream=device.stream)
    a = machine.submit(OP, request=1)
    opened = machine.submit(Decompress(1), after=(a,))
    until(lambda: device.launched)
    assert not decoded.wait(0.01)
    device.passed["a"].set()
    finish(machine, opened)
    assert decoded.is_set()


def test_only_so_much_is_launched_ahead_and_the_rest_can_be_called_off(make: Make) -> None:
    device = Device()
    env = WallClockEnvironment()
    worker = StreamWorker(env, "gpu", lambda span: None, device.stream("gpu"), ahead=1)
    works = [worker.do(lambda _, i=i: i) for i in range(4)]
    until(lambda: len(device.launched) == 2)
    works[1].cancel()  # launched: too late
    works[3].cancel()
    for mark in range(2):
        device.passed[mark].set()
    until(lambda: len(device.launched) == 3)
    device.passed[2].set()
    env.run(until=env.all_of(works))
    assert [work.value for work in works] == [0, 1, 2, Cancelled(0.0)]
    worker.stop()


def test_a_device_error_comes_when_the_device_is_waited_for(make: Make) -> None:
    device = Device()
    machine = make(Script(op1=lambda: "bad", op2=raises(KvferryError("never launched"))), stream=device.stream)
    bad, worse = machine.submit(OP, request=1), machine.submit(OP, request=2)
    dependent = machine.submit(OP, after=(worse,))
    for ticket in (bad, worse, dependent):
        ticket.defused = True
    until(lambda: device.launched)
    device.passed["bad"].set()
    machine.env.run()
    assert str(bad.value) == "the device says no"
    assert str(worse.value) == str(dependent.value) == "never launched"


def test_a_workers_queue_is_the_simulators() -> None:
    """What lanes and priorities mean is written once, in machine/work_queue.py."""
    assert Worker._serve is Worker.__mro__[1]._serve  # type: ignore[attr-defined]


def test_the_main_thread_is_warmed_and_the_clock_begins_then() -> None:
    threads: list[str] = []
    ran = Script(op1=lambda: threads.append(threading.current_thread().name))
    spans: list[Span] = []
    with LiveMachine("device", ran, capacity_bytes=1.0, tell=spans.append) as machine:
        machine.warm(lambda: (time.sleep(0.05), threads.append(threading.current_thread().name))[0])
        assert machine.env.now < 0.05
        machine.env.run(until=machine.submit(OP, request=1))
    assert len(set(threads)) == 1
    assert len(threads) == 2
    assert [span.request for span in spans] == [1]


def test_a_warm_up_that_fails_is_reported() -> None:
    def fails() -> None:
        raise InputError("no such kernel")

    with LiveMachine("device", Script(), capacity_bytes=1.0) as machine, pytest.raises(InputError, match="no such"):
        machine.warm(fails)

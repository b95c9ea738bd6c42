"""A request over a stored context, followed by hand on the fake machine: 1 s per op, 1 byte/s on every path."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from fake_machine import FakeMachine
from tiny import LOADING, tiny, unit_model

from kvferry.machine.ops import Advance, DecodeStep, KvRef, Op, Prefill, Project
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.load import LoaderStuck
from kvferry.pipelines.loading.outlook import Outlook
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.loading.reuse import Admission, ContextRequest, context_reuse
from kvferry.pipelines.record import RequestRecord
from kvferry.pipelines.workloads import WORKLOADS
from kvferry.policies.loading.loader import Compute, Loader, LoadFacts, Stream
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.single_path import LocalPrefill, StreamOnly
from kvferry.specs.errors import KvferryError, OutOfMemory

# A token weighs 2 values x 0.5 bytes per layer.
MODEL = unit_model(kv_value_bytes=0.5)


def context(coupling: Coupling = "all_heads") -> Context:
    """Two token chunks of one token, two layers, one head: four units of 2 encoded bytes and 2 values."""
    return Context(
        sequence=0,
        model=MODEL,
        coupling=coupling,
        tokens=np.array([1, 1]),
        active_blocks=np.ones((2, 2, 1), dtype=int),
        encoded_bytes=np.full((2, 2, 1), 2.0),
    )


def run(
    loader: Loader,
    *,
    coupling: Coupling = "all_heads",
    capacity_bytes: float = 100.0,
    requests: int = 1,
    machine: FakeMachine | None = None,
) -> list[RequestRecord]:
    machine = machine or FakeMachine(capacity_bytes=capacity_bytes)
    admission = Admission(machine)
    stored = context(coupling)
    processes = []
    for n in range(requests):
        request = ContextRequest(
            request=n,
            context=stored,
            problem=stored.problem(lambda op: np.ones(np.shape(op.tokens))),
            question_tokens=1,
            output_tokens=2,
            outlook=Outlook(bytes_per_s=1.0, rtt_s=0.0),
        )
        mine = loader if requests == 1 else type(loader)()
        pace = Pace(window_s=5.0)
        processes.append(machine.env.process(context_reuse(machine, request, mine, admission, pace)))
    done = machine.env.all_of(processes)
    machine.env.run(until=done)
    assert machine.memory.used_bytes == 0
    return [p.value[0] for p in processes]


def test_stream_only() -> None:
    # Link 0-2-4-6-8; the last unit is decompressed 8-9 and copied 9-10; then the question, then one more token.
    (record,) = run(StreamOnly())
    assert (record.loaded_s, record.first_token_s) == (10.0, 11.0)
    assert record.token_times_s == (11.0, 12.0)
    assert (record.units_streamed, record.units_computed) == (4, 0)
    assert (record.streamed_bytes, record.wasted_bytes) == (8.0, 0.0)
    assert record.streamed_bits_per_value == 8.0  # 8 bytes for 8 values
    assert record.shares_by_level == {0: 1.0}


def test_local_prefill_with_all_heads() -> None:
    # Each token chunk: project layer 0, advance it, project layer 1: 3 ops. Two chunks: 6 s.
    (record,) = run(LocalPrefill())
    assert (record.loaded_s, record.first_token_s) == (6.0, 7.0)
    assert (record.units_streamed, record.units_computed) == (0, 4)
    assert record.streamed_bits_per_value is None


def test_local_prefill_per_head() -> None:
    # One op per unit: 4 s.
    (record,) = run(LocalPrefill(), coupling="per_head")
    assert record.loaded_s == 4.0


def test_requests_wait_for_memory_first_come_first_served() -> None:
    # A request holds (2 + 1 + 2 tokens) x 2 layers x 2 values x 0.5 = 10 bytes... one fits at a time in 15.
    first, second = run(LocalPrefill(), capacity_bytes=15.0, requests=2)
    assert (first.loaded_s, first.token_times_s[-1]) == (6.0, 8.0)
    assert (second.arrival_s, second.loaded_s) == (0.0, 14.0)


def test_a_request_that_can_never_fit() -> None:
    with pytest.raises(OutOfMemory, match="kv needs"):
        run(LocalPrefill(), capacity_bytes=9.0)


class Race(LocalPrefill):
    """Computes everything, and has the link fetch unit 3 (chunk 1, layer 1) as well."""

    def start(self, problem: LoadProblem, facts: LoadFacts) -> None:
        super().start(problem, facts)
        self._asked = False

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        if self._asked:
            return None
        self._asked = True
        return Stream((3,))


def test_the_link_wins_a_race_and_the_queued_op_is_called_off() -> None:
    # Unit 3 arrives at 2 + 1 + 1 = 4 s. Compute: units 0 (0-1), 1 (1-3), 2 (3-4): complete at 4 s, when the
    # ops of unit 3 were handed over (at 3 s) but had not begun... the first of them begins at 4 s and runs on.
    (record,) = run(Race())
    assert record.loaded_s == 4.0
    assert (record.units_computed, record.units_streamed) == (3, 1)


class Slow(Race):
    """The same race, with unit 0, which the processor has after one second."""

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        return None if super().next_stream(progress, facts) is None else Stream((0,))


def test_the_processor_wins_a_race_and_the_transfer_stops() -> None:
    (record,) = run(Slow())
    assert record.loaded_s == 6.0
    assert record.wasted_bytes == 1.0  # one of two bytes had crossed after a second
    assert record.streamed_bytes == 0.0


class Undecodable(FakeMachine):
    """Of the transfers in their order, the `bad`-th arrives whole, is taken for decoded, and fails to be placed."""

    def __init__(self, bad: int, error: Exception) -> None:
        super().__init__(capacity_bytes=100.0)
        self._left, self._error = bad, error

    def copy(self, kv: KvRef, to: str, *, after: Iterable[Ticket] = (), request: int | None = None) -> Ticket:
        self._left -= 1
        if self._left != 0:
            return super().copy(kv, to, after=after, request=request)
        (opened,) = after
        failing = Ticket(self.env)
        opened.callbacks.append(lambda _: failing.fail(self._error))
        return failing


def test_what_arrives_and_is_of_no_use_is_computed() -> None:
    # Unit 2 (chunk 1, layer 0) is the second to arrive, at 4 s, and fails at 5: projected 5-6.
    (record,) = run(StreamOnly(), machine=Undecodable(2, KvferryError("no chunk")))
    assert record.loaded_s == 10.0
    assert (record.units_computed, record.units_streamed) == (1, 3)
    assert (record.streamed_bytes, record.wasted_bytes) == (6.0, 2.0)
    assert (record.units_unusable, record.unusable, record.link_down) == (1, "no chunk", None)
    # Unit 3 is the last to arrive, at 8 s, and fails at 9: its column is computed from below, 1 + 2 ops.
    (record,) = run(StreamOnly(), machine=Undecodable(4, KvferryError("no chunk")))
    assert record.loaded_s == 12.0
    assert (record.units_computed, record.units_streamed) == (1, 3)


def test_where_what_came_cannot_be_computed_it_is_reported() -> None:
    # Per head, a column that was streamed below cannot be computed on.
    with pytest.raises(LoaderStuck, match="1 units left; what came could not be used: no chunk"):
        run(StreamOnly(), coupling="per_head", machine=Undecodable(4, KvferryError("no chunk")))


def test_a_bug_in_placing_ends_the_load() -> None:
    with pytest.raises(TypeError, match="a bug"):
        run(StreamOnly(), machine=Undecodable(2, TypeError("a bug")))


class Mute(StreamOnly):
    """Never asks for anything."""

    def next_stream(self, progress: LoadProgress, facts: LoadFacts) -> Stream | None:
        return None


def test_a_loader_that_asks_for_nothing_is_an_error_and_no_hang() -> None:
    with pytest.raises(LoaderStuck, match="Mute asks for nothing with 4 units left"):
        run(Mute())


class Hasty(LocalPrefill):
    """Wants the second layer before the first."""

    def next_compute(self, progress: LoadProgress, facts: LoadFacts) -> Compute | None:
        return Compute((1,))


def test_a_loader_that_breaks_a_dependency_is_an_error() -> None:
    with pytest.raises(KvferryError, match="before it can be"):
        run(Hasty())


def test_ops_of_a_unit_name_the_kv_they_work_on() -> None:
    # Unit (1, 1): layer 0 is run for token chunk 1, then layer 1's KV is projected; 1 token x 2 values x 0.5 bytes.
    advance, project = context().ops_of(1, 1, 0)
    assert advance == Advance(tokens=1, active_blocks=1, context_tokens=1)
    assert isinstance(advance, Advance)
    assert advance.kv == KvRef(sequence=0, token_chunk=1, layer=0, head=None, n_bytes=1.0)
    assert isinstance(project, Project)
    assert project.kv == KvRef(sequence=0, token_chunk=1, layer=1, head=None, n_bytes=1.0)
    (lowest,) = context().ops_of(0, 0, 0)
    assert isinstance(lowest, Project)
    assert lowest.kv == KvRef(sequence=0, token_chunk=0, layer=0, head=None, n_bytes=1.0)


def test_further_turns_find_the_context_and_what_was_said_on_the_device() -> None:
    machine = FakeMachine(capacity_bytes=100.0)
    asked: list[tuple[int, int]] = []
    submit = machine.submit

    def listened(op: Op, **rest: Any) -> Ticket:
        if isinstance(op, Prefill | DecodeStep):
            asked.append((op.tokens if isinstance(op, Prefill) else 1, op.context_tokens))
        return submit(op, **rest)

    machine.submit = listened  # type: ignore[method-assign]
    stored = context()
    request = ContextRequest(
        request=4,
        context=stored,
        problem=stored.problem(lambda op: np.ones(np.shape(op.tokens))),
        question_tokens=3,
        output_tokens=2,
        outlook=Outlook(bytes_per_s=1.0, rtt_s=0.0),
        turns=2,
        think_s=5.0,
    )
    seen: list[RequestRecord] = []
    story = context_reuse(machine, request, StreamOnly(), Admission(machine), Pace(window_s=5.0), seen.append)
    first, second = machine.env.run(until=machine.env.process(story))
    assert seen == [first, second]
    # Each turn says what it was about: behind the first are its question and answer.
    told = [(one.context_tokens, one.question_tokens, one.conversation, one.turn) for one in seen]
    assert told == [(stored.total_tokens, 3, 4, 0), (stored.total_tokens + 5, 3, 4, 1)]
    assert [one.began_s for one in seen] == [one.arrival_s for one in seen]
    # Loaded at 10; two tokens; the user thinks for five seconds; two tokens more.
    assert (first.request, first.arrival_s, first.loaded_s, first.token_times_s) == (4, 0.0, 10.0, (11.0, 12.0))
    assert (second.request, second.arrival_s, second.loaded_s, second.token_times_s) == (5, 17.0, None, (18.0, 19.0))
    # The context has 2 tokens. The last token of the first answer is read with the second question.
    assert asked == [(3, 2), (1, 5), (4, 6), (1, 10)]
    assert machine.memory.peak_of("kv") == 2 * (2 + 2 * (3 + 2))  # layers x tokens, a byte each
    assert machine.memory.used_bytes == 0


def test_the_link_is_told_by_its_mean_rate() -> None:
    scenario = tiny(LOADING, "link={rate: 8 Mbit/s}")
    assert WORKLOADS["context-reuse"].medium(scenario) == "link constant (8 Mbit/s)"

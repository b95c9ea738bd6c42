"""A conversation over a stored context: admit it, load the KV, read each question, answer."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import simpy

from kvferry.machine.machine import Lease, Machine, Refused
from kvferry.machine.ops import DecodeStep, Prefill
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.load import ContextLoad
from kvferry.pipelines.loading.outlook import Outlook
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.record import MOST_UNIT_PATHS, RequestRecord
from kvferry.policies.loading.loader import DISCIPLINES, Discipline, Loader
from kvferry.policies.loading.problem import LoadProblem
from kvferry.specs.errors import OutOfMemory


class Admission:
    """Admits requests, first come first served: a request waits while others hold the memory that it needs, and then
    until the `discipline` lets its load begin. `loads` are under way."""

    def __init__(self, machine: Machine, discipline: Discipline = DISCIPLINES["fair"]) -> None:
        self._machine = machine
        self._discipline = discipline
        self.loads = 0
        self._next_load = simpy.Resource(machine.env)
        self._load_ended = machine.env.event()
        self._turn = simpy.Resource(machine.env)
        self._inside = 0
        self._released = machine.env.event()

    def enter(self, n_bytes: float) -> Generator[simpy.Event, Any, Lease]:
        with self._turn.request() as turn:
            yield turn
            while isinstance(lease := self._machine.memory.reserve(n_bytes, "kv"), Refused):
                if self._inside == 0:
                    raise OutOfMemory(str(lease))
                yield self._released
        self._inside += 1
        return lease

    def leave(self, lease: Lease) -> None:
        lease.release()
        self._inside -= 1
        self._released.succeed()
        self._released = self._machine.env.event()

    def begin_load(self) -> Generator[simpy.Event, Any, None]:
        """Wait for this load's turn; it is under way then until `end_load`."""
        if self._next_load.count or not self._discipline(self.loads):
            with self._next_load.request() as turn:
                yield turn
                while not self._discipline(self.loads):
                    yield self._load_ended
        self.loads += 1

    def end_load(self) -> None:
        self.loads -= 1
        self._load_ended.succeed()
        self._load_ended = self._machine.env.event()


@dataclass(frozen=True, kw_only=True)
class ContextRequest:
    """A conversation about one stored context: one question, or several in turns.

    ``request`` is the number of its first question, by which its ops and transfers are marked; the others follow.
    """

    request: int
    context: Context
    # The loading problem with estimated costs: what loaders plan on.
    problem: LoadProblem
    question_tokens: int
    output_tokens: int
    outlook: Outlook
    turns: int = 1
    # From an answer's last token to the next question.
    think_s: float = 0.0
    # The number of the context.
    source: int = 0

    @property
    def kv_bytes(self) -> float:
        """KV bytes of all turns, as nothing is evicted in between."""
        spoken = self.turns * (self.question_tokens + self.output_tokens)
        return (self.context.total_tokens + spoken) * self.context.model.kv_bytes_per_token

    def known_tokens(self, turn: int) -> int:
        """Returns the tokens before a turn's question: the context, and what was said in turns before."""
        return self.context.total_tokens + turn * (self.question_tokens + self.output_tokens)


def context_reuse(
    machine: Machine,
    request: ContextRequest,
    loader: Loader,
    admission: Admission,
    pace: Pace,
    finished: Callable[[RequestRecord], None] = lambda record: None,
) -> Generator[simpy.Event, Any, list[RequestRecord]]:
    """A SimPy process; returns the records of all turns, and calls `finished` with each as it ends.

    The first turn waits for the context; the others find it, and what was said so far, on the device. Decoding reads
    the whole KV for every token: nothing is evicted. Raises OutOfMemory.
    """
    env, context = machine.env, request.context
    arrival_s = env.now
    lease = yield from admission.enter(request.kv_bytes)
    yield from admission.begin_load()
    began_s = env.now
    load = ContextLoad(
        machine,
        context,
        request.problem,
        loader,
        request=request.request,
        outlook=request.outlook,
        pace=pace,
        loads=lambda: admission.loads,
        keep_paths=request.request * request.problem.units < MOST_UNIT_PATHS,
    )
    yield load.done
    admission.end_load()
    loaded_s = env.now
    came = load.arrivals
    values, all_values = came.values_by_level.total(), int(context.values.sum())
    records = []
    for turn in range(request.turns):
        if turn:
            yield env.timeout(request.think_s)
            arrival_s = began_s = env.now
        token_times_s = yield from _answered(machine, request, turn)
        record = RequestRecord(
            request=request.request + turn,
            arrival_s=arrival_s,
            context_tokens=request.known_tokens(turn),
            question_tokens=request.question_tokens,
            source=request.source,
            conversation=request.request,
            turn=turn,
            began_s=began_s,
            first_token_s=token_times_s[0],
            token_times_s=tuple(token_times_s),
        )
        if not turn:
            record = replace(
                record,
                loaded_s=loaded_s,
                units_computed=came.units_computed,
                units=tuple(came.paths or ()),
                units_streamed=came.units_streamed,
                streamed_bytes=came.streamed_bytes,
                wasted_bytes=came.wasted_bytes,
                streamed_bits_per_value=8 * came.streamed_bytes / values if values else None,
                shares_by_level={n: some / all_values for n, some in sorted(came.values_by_level.items())},
                link_down=None if came.link_down is None else str(came.link_down),
                units_unusable=came.units_unusable,
                unusable=None if came.unusable is None else str(came.unusable),
            )
        if turn == request.turns - 1:
            admission.leave(lease)
        records.append(record)
        finished(record)
    return records


def _answered(machine: Machine, request: ContextRequest, turn: int) -> Generator[simpy.Event, Any, list[float]]:
    """Reads a turn's question and answers it; returns when each token was there."""
    question, output, known = request.question_tokens, request.output_tokens, request.known_tokens(turn)
    token_times_s = []
    # The last token of the answer before has not been read yet: nothing came after it.
    step: Any = Prefill(question + 1, known - 1) if turn else Prefill(question, known)
    for n in range(output):
        # A question overtakes other requests' contexts: it is short, and a user waits for the answer.
        yield machine.submit(step, priority=-1, request=request.request)
        token_times_s.append(machine.env.now)
        step = DecodeStep(batch=1, context_tokens=known + question + n)
    return token_times_s

"""The context-reuse workload: requests, each over a stored context; what each weighs, and when it arrives."""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import simpy

from kvferry.backends.needs import ContextsInCloud, Needs
from kvferry.backends.world import NO_INPUTS, Inputs, World
from kvferry.machine.instant import at
from kvferry.machine.machine import Machine
from kvferry.machine.ops import Op
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.reuse import Admission, ContextRequest, context_reuse
from kvferry.pipelines.loading.stage import LoadingStage, price_s
from kvferry.pipelines.loading.systems import SYSTEMS, LoadingSystem
from kvferry.pipelines.record import RequestRecord
from kvferry.pipelines.tally import Totals
from kvferry.pipelines.workload import Flow, Left, Process, Progress, System
from kvferry.policies.loading.bound import clairvoyant_bound_s, column_labels, frontier
from kvferry.policies.loading.loader import DISCIPLINES
from kvferry.policies.loading.problem import LoadProblem
from kvferry.scenarios.resolve import Complaint
from kvferry.specs.errors import InputError
from kvferry.specs.machine import DEVICE
from kvferry.specs.scenario import Scenario
from kvferry.specs.workload import MOST_CHUNKS_PER_RUN, MOST_TOKENS_PER_RUN, MOST_UNITS_PER_REQUEST
from kvferry.system.array_memo import ArrayMemo
from kvferry.traces.chunks import ChunkTrace
from kvferry.traces.rate import RateTrace
from kvferry.traces.request import Request
from kvferry.traces.requests import ContextRequests, context_requests
from kvferry.traces.resolve import link_trace
from kvferry.traces.stored import StoredContext

# Remembers labels, as the systems of a comparison load the same contexts one after the other; those of larger problems
# are not kept.
_LABELS, _MOST_LABELS = ArrayMemo(64), 1 << 17


def remembered_labels(problem: LoadProblem) -> np.ndarray:
    """Returns the ``column_labels`` of a problem, worked out once for equal ones; not to be written to."""
    if problem.units > _MOST_LABELS:
        return column_labels(problem)
    costs = np.stack((problem.compute_s, problem.stream_bytes))
    return _LABELS.of(costs, make=lambda: column_labels(problem))


def delivered_bytes(link: RateTrace, rtt_s: float, arrival_s: float, elapsed_s: float, placing_s: float) -> float:
    """The most bytes that the link can have brought so early that `elapsed_s` after a load's arrival they are in place.

    Proof. The load's last transfer holds a unit or more, and is decoded once all of it has come, hence in place no
    sooner than `placing_s` after its last byte; no transfer's last byte comes behind that one. A load to which the link
    brings nothing needs none of these bytes.
    """
    # A request takes half the round trip to the bottleneck, its bytes the other half from there.
    from_s, until_s = arrival_s + rtt_s / 2, arrival_s + elapsed_s - placing_s - rtt_s / 2
    # Years behind the clock's start, less than its last digit may lie between them.
    return link.amount(from_s, until_s) if until_s > from_s else 0.0


def load_bound_s(
    true_problem: LoadProblem,
    intake_s: np.ndarray,
    link: RateTrace,
    rtt_s: float,
    processor: RateTrace,
    arrival_s: float,
    processor_from_s: float = 0.0,
    placing_s: float = 0.0,
) -> float:
    """A lower bound, in seconds after arrival, on when any schedule has the KV complete.

    The request has the device and the link for itself, knows the future, and uses the system's smallest encoding. The
    processor computes nothing before it has started, at `processor_from_s`. What is streamed comes over the link and is
    decoded and copied (`intake_s` of each unit [T, L, C]): there is a bound for either, and the larger one is returned.
    `placing_s`: what the last transfer takes behind the link. Left out, so that it stays a lower bound: other requests,
    contention, token dependencies.
    """

    def brought_bytes(elapsed_s: float) -> float:
        return delivered_bytes(link, rtt_s, arrival_s, elapsed_s, placing_s)

    def computed_s(elapsed_s: float) -> float:
        from_s = max(arrival_s, processor_from_s)
        return processor.amount(from_s, max(from_s, arrival_s + elapsed_s))

    smallest_scale = min(true_problem.level_scale)
    over_the_link_s = clairvoyant_bound_s(
        frontier(true_problem, smallest_scale, remembered_labels), brought_bytes, computed_s
    )
    if intake_s.sum() * link.mean() < smallest_scale * true_problem.stream_bytes.sum():
        return over_the_link_s  # the link is the slower one
    taken_in = replace(true_problem, stream_bytes=intake_s, level_scale=(1.0,))
    return max(
        over_the_link_s,
        clairvoyant_bound_s(frontier(taken_in, labels_of=remembered_labels), lambda s: max(s - rtt_s, 0.0), computed_s),
    )


class ContextReuse:
    """A WorkloadKind."""

    headline = "ttft_s"

    def of_many_machines(self, scenario: Scenario) -> bool:
        return False

    @property
    def systems(self) -> Mapping[str, System]:
        return SYSTEMS

    def faults(self, scenario: Scenario, system: System) -> Iterator[Complaint]:
        if scenario.model.latent is not None:
            what = "has a latent cache (model.latent), and contexts are stored as keys and values of heads"
            yield Complaint(("model",), f"{scenario.model.name} {what}; kind: decode, or a model without it would do")
        if scenario.context_reuse.workload.chunks is not None:
            try:
                _check_chunks(scenario)
            except InputError as error:
                yield Complaint(("workload", "chunks"), str(error))
        if scenario.context_reuse.workload.trace is not None:
            try:
                _check_trace(scenario)
            except InputError as error:
                yield Complaint(("workload", "trace"), str(error).removeprefix("workload.trace: "))

    def medium(self, scenario: Scenario) -> str:
        mean_mbit_per_s = link_trace(scenario.link).mean() * 8 / 1e6
        return f"link {scenario.link.trace or 'constant'} ({mean_mbit_per_s:.0f} Mbit/s)"

    def remark(self, scenario: Scenario) -> str | None:
        return None

    def flow(self, scenario: Scenario, system: System, progress: Progress, inputs: Inputs = NO_INPUTS) -> Flow:
        assert isinstance(system, LoadingSystem)
        return ContextReuseFlow(scenario, system, progress, inputs)


class ContextReuseFlow:
    """A Flow of requests over stored contexts."""

    def __init__(self, scenario: Scenario, system: LoadingSystem, progress: Progress, inputs: Inputs) -> None:
        self._scenario, self._system, self._progress = scenario, system, progress
        workload = scenario.context_reuse.workload
        self._asked = context_requests(workload, scenario.seed).as_they_came(inputs.arrivals)
        self._wanted = len(self._asked.requests) * workload.turns
        self._requests: Requests | None = None
        self._records: list[RequestRecord] = []

    @property
    def needs(self) -> Needs:
        codec = self._system.codec
        return {} if codec is None else {DEVICE: ContextsInCloud(codec=codec)}

    def run(self, world: World, totals: Callable[[], Totals]) -> Process:
        estimate_s = price_s(self._scenario, self._scenario.costs.estimate)
        self._requests = Requests(
            self._scenario,
            self._system,
            world.rates.link.mean(),
            estimate_s,
            world.content.stored,
            self._asked,
            world.rates.available.rate_at,
        )
        yield from self._requests.run(world.machine, self._finished, world.content.arrived.append)

    def left(self, world: World, end: Totals) -> Left:
        records = sorted(self._with_bounds(world), key=lambda record: record.request)
        codec = self._system.codec
        coded = [one if one.loaded_s is None else replace(one, codec=codec) for one in records]
        return Left(requests=coded, notes=self._asked.notes)

    def kept(self) -> str:
        return f"{len(self._records):,} of {self._wanted:,} requests"

    def _finished(self, record: RequestRecord) -> None:
        self._records.append(record)
        self._progress(len(self._records), self._wanted)

    def _with_bounds(self, world: World) -> list[RequestRecord]:
        """Each record of a load with the bound that no schedule beats, under the costs that the world obeyed."""
        if self._requests is None:
            return []
        truth_s, turns = (
            price_s(self._scenario, self._scenario.costs.truth),
            self._scenario.context_reuse.workload.turns,
        )
        return [
            record
            if record.loaded_s is None
            else replace(
                record,
                bound_s=load_bound_s(
                    (context := self._requests.context(record.request // turns)).problem(truth_s),
                    self._requests.stage.intake_s(context),
                    world.rates.link,
                    self._scenario.link.rtt_s,
                    world.rates.available,
                    record.arrival_s,
                    self._requests.stage.processor_from_s,
                    self._requests.stage.placing_s(context),
                ),
            )
            for record in self._records
        ]


class Requests:
    """A scenario's conversations, made when they arrive: thousands of contexts need not be held at once.

    `stored` gives a context as it lies in the cloud, by its number; `estimate_s` prices ops for planners; `asked` are
    the conversations, those of the scenario by default; `available` tells the share of the main processor that
    background load leaves at a time, and `processor_from_s` when it can begin, once the first conversation has come.
    """

    def __init__(
        self,
        scenario: Scenario,
        system: LoadingSystem,
        planned_bytes_per_s: float,
        estimate_s: Callable[[Op], Any],
        stored: Callable[[int], StoredContext],
        asked: ContextRequests | None = None,
        available: Callable[[float], float] = lambda now_s: 1.0,
        processor_from_s: float = 0.0,
    ) -> None:
        self.asked = asked or context_requests(scenario.context_reuse.workload, scenario.seed)
        self._scenario, self._system, self._stored = scenario, system, stored
        self.stage = LoadingStage(scenario, system, planned_bytes_per_s, estimate_s, available, processor_from_s)

    def context(self, n: int) -> Context:
        """The stored context that conversation `n` is about. Raises InputError."""
        source = self.asked.requests[n].source
        return self.stage.context(self._stored(source), source)

    def request(self, n: int) -> ContextRequest:
        """Conversation `n`. Raises InputError."""
        context, asked, workload = self.context(n), self.asked.requests[n], self._scenario.context_reuse.workload
        return ContextRequest(
            request=n * workload.turns,
            context=context,
            problem=context.problem(self.stage.estimate_s),
            question_tokens=asked.question,
            output_tokens=asked.output,
            turns=workload.turns,
            think_s=workload.think_s,
            source=asked.source,
            outlook=self.stage.outlook(context),
        )

    def run(
        self,
        machine: Machine,
        finished: Callable[[RequestRecord], None],
        arrived: Callable[[Request], None] = lambda request: None,
    ) -> Process:
        """A SimPy process: starts every conversation at its time, and calls `finished` with each request that ends.
        Unless each waits for the one before, calls `arrived` with every conversation's first, at the time when it came.
        """
        env = machine.env
        admission, began_s = Admission(machine, DISCIPLINES[self._system.serving]), env.now
        pace = self.stage.pace

        def one(n: int) -> Generator[simpy.Event, Any, None]:
            if n == 0:
                self.stage.processor_from_s = env.now + machine.observe(pace.window_s).starting_s
            yield from context_reuse(machine, self.request(n), self._system.new_loader(), admission, pace, finished)

        under_way = []
        for n, asked in enumerate(self.asked.requests):
            if self.asked.closed:
                yield env.process(one(n))
                continue
            if began_s + asked.arrival_s > env.now:
                yield at(env, began_s + asked.arrival_s)
            arrived(replace(asked, arrival_s=env.now))
            under_way.append(env.process(one(n)))
        yield env.all_of(under_way)


def _check_trace(scenario: Scenario) -> None:
    """Recorded requests must stay within what a run may have, as described ones must. Raises InputError."""
    workload, model = scenario.context_reuse.workload, scenario.model
    asked = context_requests(workload, scenario.seed)
    chunks = [-(-one.context // workload.chunk_tokens) * model.layers * model.kv_heads for one in asked.requests]
    heads = 1 if scenario.coupling == "per_head" else model.kv_heads
    tokens = sum(one.output for one in asked.requests) * workload.turns
    for what, came, most in (
        ("units in one request", max(chunks) // heads, MOST_UNITS_PER_REQUEST),
        ("chunks", sum(chunks), MOST_CHUNKS_PER_RUN),
        ("tokens to answer", tokens, MOST_TOKENS_PER_RUN),
    ):
        if came > most:
            raise InputError(f"makes {came:,} {what}, at most {most:,} will do; take fewer with workload.requests")


def _check_chunks(scenario: Scenario) -> None:
    """Recorded chunks must be those of this model and context: they would override both. Raises InputError."""
    workload, model = scenario.context_reuse.workload, scenario.model
    recorded = ChunkTrace.load(Path(str(workload.chunks)))
    _, layers, heads = recorded.shape
    if (layers, heads) != (model.layers, model.kv_heads):
        raise InputError(
            f"recorded with {layers} layers and {heads} KV heads, {model.name} has {model.layers} and"
            f" {model.kv_heads}; record it with this model"
        )
    tokens = int(recorded.tokens.sum())
    if tokens != workload.context:
        raise InputError(f"holds {tokens:,} tokens, workload.context says {workload.context:,}; make them equal")
    longest = int(recorded.tokens.max())
    if longest != min(workload.chunk_tokens, tokens) or np.any(recorded.tokens[:-1] != longest):
        what = f"its token chunks hold up to {longest:,} tokens"
        raise InputError(f"{what}, workload.chunk_tokens says {workload.chunk_tokens:,}; make them equal")

"""From a scenario to its requests: what each one's context weighs, and when it arrives."""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from kvferry.machine.machine import Machine
from kvferry.machine.ops import Op
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.load import Pace
from kvferry.pipelines.loading.reuse import Admission, ContextRequest, context_reuse
from kvferry.pipelines.loading.systems import System
from kvferry.pipelines.record import RequestRecord
from kvferry.specs.scenario import Scenario
from kvferry.traces.stored import StoredContext

# Each source of chance has its own generator, seeded with (seed, source).
_ARRIVALS = 1


class Workload:
    """A scenario's requests, made when they arrive: thousands of contexts need not be held at once.

    `stored` tells what the context of each lies in the cloud as; `estimate_s` prices ops for planners.
    """

    def __init__(
        self,
        scenario: Scenario,
        system: System,
        planned_bytes_per_s: float,
        estimate_s: Callable[[Op], Any],
        stored: Callable[[int], StoredContext],
    ) -> None:
        self._scenario, self._system = scenario, system
        # A link that is down for good is planned with as one that is hopelessly slow: planners divide by it.
        self._planned_bytes_per_s = max(planned_bytes_per_s, 1.0)
        self._estimate_s = estimate_s
        self._stored = stored
        self.pace = Pace()

    def context(self, n: int) -> Context:
        """The stored context of request `n`. Raises InputError."""
        stored = self._stored(n)
        return Context(
            sequence=n,
            model=self._scenario.model,
            coupling=self._scenario.coupling,
            tokens=stored.tokens,
            active_blocks=stored.active_blocks,
            encoded_bytes=stored.encoding.encoded_bytes,
            level_scale=stored.encoding.level_scale,
            entropy_coded=stored.encoding.entropy_coded,
        )

    def request(self, n: int) -> ContextRequest:
        context = self.context(n)
        return ContextRequest(
            request=n,
            context=context,
            problem=context.problem(self._estimate_s),
            question_tokens=self._scenario.workload.question,
            output_tokens=self._scenario.workload.output,
            planned_bytes_per_s=self._planned_bytes_per_s,
            rtt_s=self._scenario.link.rtt_s,
        )

    def run(self, machine: Machine, finished: Callable[[RequestRecord], None]) -> Generator[simpy.Event, Any, None]:
        """A SimPy process: start every request at its time, tell each one that finishes."""
        env = machine.env
        admission = Admission(machine)

        def one(n: int) -> Generator[simpy.Event, Any, None]:
            loader = self._system.new_loader()
            record = yield from context_reuse(machine, self.request(n), loader, admission, self.pace)
            finished(record)

        arrivals = self._scenario.workload.arrivals
        under_way = []
        rng = np.random.default_rng([self._scenario.seed, _ARRIVALS])
        for n in range(self._scenario.workload.requests):
            if arrivals is None:
                yield env.process(one(n))
                continue
            if n > 0:
                gap_s = rng.exponential(1 / arrivals.rate_hz) if arrivals.rate_hz else arrivals.every_s
                yield env.timeout(gap_s)
            under_way.append(env.process(one(n)))
        yield env.all_of(under_way)

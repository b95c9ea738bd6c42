"""Requests that decode together with all KV in memory, and come and go at any time (vLLM)."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import simpy

from kvferry.machine.instant import at
from kvferry.machine.machine import Lease, Machine, Refused
from kvferry.pipelines.decoding.passes import Passes
from kvferry.policies.decode.batcher import Batcher, Turn
from kvferry.specs.errors import OutOfMemory
from kvferry.traces.request import Request

Process = Generator[simpy.Event, Any, None]


class ContinuousDecode:
    """Carries out a batcher's turns, one after the other. ``run`` is a SimPy process.

    Every request must fit the batcher's pages, of `page_bytes` each; a turn takes `workspace_bytes` besides, and goes
    through the layers as `passes` has it. Calls `on_turn` after each turn, and `on_arrival` with each request as it
    comes, at the time when it really does.
    """

    def __init__(
        self,
        machine: Machine,
        passes: Passes,
        requests: Sequence[Request],
        batcher: Batcher,
        *,
        page_bytes: float,
        workspace_bytes: Callable[[Turn], float] = lambda turn: 0.0,
        on_turn: Callable[[], None] = lambda: None,
        on_arrival: Callable[[Request], None] = lambda request: None,
    ) -> None:
        self.machine, self._passes, self._on_turn, self._on_arrival = machine, passes, on_turn, on_arrival
        self.requests, self.batcher = requests, batcher
        self._workspace_bytes = workspace_bytes
        # When each token was there, request by request.
        self.token_times_s: list[list[float]] = [[] for _ in requests]
        # When each first began to be prefilled.
        self.began_s: dict[int, float] = {}
        # Sequences of every decode step, and its seconds.
        self.steps: list[tuple[int, float]] = []
        # Over all decode steps and their sequences, the tokens that attention took in and the tokens there were.
        self.attended = self.attendable = 0
        self._arrived: simpy.Event | None = None
        # Memory of as many pages as were ever in use together.
        self._page_bytes, self._held_pages = page_bytes, 0
        self._leases: list[Lease] = []

    def run(self) -> Process:
        """Raises OutOfMemory when the machine lacks memory for a page that the batcher has, or for a turn."""
        env, left = self.machine.env, len(self.requests)
        env.process(self._arrivals())
        while left:
            turn = self.batcher.turn()
            if turn is None:
                self._arrived = env.event()
                yield self._arrived
                continue
            self._hold_pages()
            began_s, workspace = env.now, self._workspace(turn)
            for sequence in turn.sequences:
                self.began_s.setdefault(sequence, began_s)
            yield self._passes.submit(turn)
            if workspace is not None:
                workspace.release()
            # Read once: a wall clock goes on meanwhile.
            now_s = env.now
            if turn.kind == "decode":
                self.steps.append((len(turn.sequences), now_s - began_s))
                self.attended += sum(turn.tokens)
                self.attendable += sum(self._stored(sequence) for sequence in turn.sequences)
            for sequence in turn.sequences:
                self.token_times_s[sequence].append(now_s)
            left -= len(self.batcher.done(turn))
            self._on_turn()
        for lease in self._leases:
            lease.release()

    def _stored(self, sequence: int) -> int:
        """Returns tokens of a sequence whose KV was made so far: its prompt, and all of its answer that it was given
        back."""
        return self.requests[sequence].context + len(self.token_times_s[sequence])

    def _hold_pages(self) -> None:
        more = self.batcher.pages.peak_pages - self._held_pages
        if more:
            lease = self.machine.memory.reserve(more * self._page_bytes, "kv")
            if isinstance(lease, Refused):
                raise OutOfMemory(str(lease))
            self._leases.append(lease)
            self._held_pages += more

    def _workspace(self, turn: Turn) -> Lease | None:
        n_bytes = self._workspace_bytes(turn)
        lease = self.machine.memory.reserve(n_bytes, "workspace: attention") if n_bytes else None
        if isinstance(lease, Refused):
            raise OutOfMemory(f"{turn.kind} of {len(turn.sequences)} sequences: {lease}")
        return lease

    def _arrivals(self) -> Process:
        env = self.machine.env
        due_s = came_s = 0.0
        for sequence, request in enumerate(self.requests):
            if request.arrival_s > due_s:
                # Requests of one time come together, however late a wall clock reaches it.
                yield at(env, request.arrival_s)
                due_s, came_s = request.arrival_s, env.now
            self.batcher.arrive(sequence, request.context, request.output)
            self._on_arrival(replace(request, arrival_s=came_s))
            if self._arrived is not None and not self._arrived.triggered:
                self._arrived.succeed()

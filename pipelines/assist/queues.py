"""Requests that wait for their devices."""

from collections import deque
from collections.abc import Callable

from kvferry.backends.world import World
from kvferry.machine.instant import at
from kvferry.pipelines.workload import Process
from kvferry.traces.assisted import AssistedRequests
from kvferry.traces.request import Request


class Queues:
    """Has each device answer one request at a time, by number; the ones that come meanwhile wait for it. ``all_done``
    fires when all are answered."""

    def __init__(self, world: World, requests: AssistedRequests, answer: Callable[[int], Process]) -> None:
        self._world, self._requests, self._answer = world, requests, answer
        self.all_done = world.machine.env.event()
        # By device that is busy.
        self._waiting: dict[int, deque[int]] = {}
        self._left = len(requests)

    def arrive(self) -> Process:
        """Requests come as the trace says."""
        env, requests = self._world.machine.env, self._requests
        for n, (arrival_s, device) in enumerate(
            zip(requests.arrivals_s.tolist(), requests.devices.tolist(), strict=True)
        ):
            if arrival_s > env.now:
                yield at(env, arrival_s)
            if not requests.closed:
                prompt, output = int(requests.prompts[n]), int(requests.outputs[n])
                self._world.content.arrived.append(Request(env.now, prompt, output, source=device))
            if device in self._waiting:
                self._waiting[device].append(n)
            else:
                self._waiting[device] = deque([n])
                env.process(self._one_by_one(device))

    def _one_by_one(self, device: int) -> Process:
        waiting = self._waiting[device]
        while waiting:
            yield from self._answer(waiting.popleft())
            self._left -= 1
        del self._waiting[device]
        if not self._left:
            self.all_done.succeed()

"""A replayed link in wall-clock time: how fast a server may send bytes, and for which transfer next.

The model is that of ``sim.link``: one bottleneck with half the RTT before and behind it; transfers of one flow are
served in order, flows share the rate. Here they share it in turns, slice by slice.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Hashable

from kvferry.specs.errors import LinkDown
from kvferry.traces.rate import RateTrace

# One slice is what the link carries in this time.
_SLICE_S = 0.004
_LEAST_SLICE_BYTES = 2048
# The first slice of a transfer is small, so that its receiver sees when it began.
_FIRST_SLICE_BYTES = 1024


class Transfer:
    """One transfer of a flow. ``due`` lists (when they arrive, how many) for the bytes that have been served so far."""

    def __init__(self, flow: Hashable, n_bytes: int, enters_s: float) -> None:
        self.flow = flow
        self.n_bytes = n_bytes
        self.enters_s = enters_s
        self.unserved_bytes = n_bytes
        self.due: deque[tuple[float, int]] = deque()
        self.news = asyncio.Event()
        self.down: LinkDown | None = None


class Bottleneck:
    """The arithmetic of the link; callers pass the time in seconds. Served bytes follow the trace's integral exactly,
    however late `serve` is called; capacity that no transfer uses is lost, as on any link."""

    def __init__(self, trace: RateTrace, rtt_s: float = 0.0) -> None:
        self.trace = trace
        self._half_rtt_s = rtt_s / 2
        # When the replay began; None before the first transfer.
        self._began_s: float | None = None
        self._served_until_s = -math.inf
        # The flows with a transfer to serve, in the order of their turns.
        self._flows: OrderedDict[Hashable, deque[Transfer]] = OrderedDict()

    def restart(self, now_s: float) -> None:
        """Restart the trace, now."""
        self._began_s = now_s
        self._served_until_s = min(self._served_until_s, now_s)

    def enter(self, flow: Hashable, n_bytes: int, now_s: float) -> Transfer:
        """Add a transfer to its flow. Calls of `serve` then fill its `due`."""
        if self._began_s is None:
            self._began_s = now_s
        transfer = Transfer(flow, n_bytes, now_s + self._half_rtt_s)
        self._flows.setdefault(flow, deque()).append(transfer)
        return transfer

    def leave(self, transfer: Transfer) -> None:
        """Give up the rest of a transfer."""
        queue = self._flows.get(transfer.flow)
        if queue and transfer in queue:
            queue.remove(transfer)
            if not queue:
                del self._flows[transfer.flow]

    def serve(self, now_s: float) -> float | None:
        """Serve every slice that could begin by now. Returns when to call it again; None: after the next `enter`."""
        while self._flows:
            begin_s = max(self._served_until_s, min(queue[0].enters_s for queue in self._flows.values()))
            if begin_s > now_s:
                return begin_s
            flow = next(flow for flow, queue in self._flows.items() if queue[0].enters_s <= begin_s)
            self._serve_slice(self._flows[flow][0], begin_s)
            self._flows.move_to_end(flow)
            if not self._flows[flow][0].unserved_bytes:
                self.leave(self._flows[flow][0])
        return None

    def check(self, now_s: float) -> None:
        """Raises LinkDown when the trace has ended and nothing will be served again."""
        at_s = 0.0 if self._began_s is None else max(self._served_until_s, now_s) - self._began_s
        if self.trace.finish_s(at_s, 1) == math.inf:
            raise self._down()

    def _down(self) -> LinkDown:
        return LinkDown(f"the link's trace has ended, at {self.trace.duration_s:g} s")

    def _serve_slice(self, transfer: Transfer, begin_s: float) -> None:
        assert self._began_s is not None
        at_s = max(0.0, begin_s - self._began_s)
        if transfer.unserved_bytes == transfer.n_bytes:
            wanted = _FIRST_SLICE_BYTES
        else:
            wanted = max(_LEAST_SLICE_BYTES, int(self.trace.amount(at_s, at_s + _SLICE_S)))
        n_bytes = min(wanted, transfer.unserved_bytes)
        took_s = self.trace.finish_s(at_s, n_bytes) - at_s
        if took_s == math.inf:
            transfer.down = self._down()
            transfer.unserved_bytes = 0
        else:
            transfer.unserved_bytes -= n_bytes
            self._served_until_s = begin_s + took_s
            transfer.due.append((self._served_until_s + self._half_rtt_s, n_bytes))
        transfer.news.set()


class PacedLink:
    """A bottleneck in an event loop, in which `run` must be running as a task."""

    def __init__(self, trace: RateTrace, rtt_s: float = 0.0, clock: Callable[[], float] = time.perf_counter) -> None:
        self.bottleneck = Bottleneck(trace, rtt_s)
        self._clock = clock
        self._entered = asyncio.Event()

    async def run(self) -> None:
        """Serve transfers until cancelled."""
        while True:
            again_s = self.bottleneck.serve(self._clock())
            self._entered.clear()
            if again_s is None:
                await self._entered.wait()
                continue
            try:
                # A transfer that enters meanwhile may be served sooner.
                async with asyncio.timeout(max(0.0, again_s - self._clock())):
                    await self._entered.wait()
            except TimeoutError:
                pass

    def restart(self) -> None:
        """Restart the trace, now."""
        self.bottleneck.restart(self._clock())

    def check(self) -> None:
        """Raises LinkDown when the trace has ended and nothing will be served again."""
        self.bottleneck.check(self._clock())

    async def portions(self, flow: Hashable, n_bytes: int) -> AsyncGenerator[int, None]:
        """Yields how many bytes to send, each time when they are due, until all have been sent.

        Closing the iterator gives up the rest. Raises LinkDown when the link will never carry them.
        """
        transfer = self.bottleneck.enter(flow, n_bytes, self._clock())
        self._entered.set()
        try:
            left = n_bytes
            while left:
                while not transfer.due:
                    if transfer.down:
                        raise transfer.down
                    transfer.news.clear()
                    await transfer.news.wait()
                await asyncio.sleep(max(0.0, transfer.due[0][0] - self._clock()))
                now_s, portion = self._clock(), 0
                while transfer.due and transfer.due[0][0] <= now_s:
                    portion += transfer.due.popleft()[1]
                left -= portion
                if portion:
                    yield portion
        finally:
            self.bottleneck.leave(transfer)

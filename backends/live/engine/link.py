"""The way to the cloud: fetches of one request are a flow, delivered in order; flows run beside each other."""

from array import array
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.thread_work import LiveWork, Moving
from kvferry.backends.live.engine.worker import Worker
from kvferry.machine.busy import Busy
from kvferry.machine.ops import Chunks
from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.specs.errors import LinkDown

# Fetches under way at once, of all flows: each has a thread and, most likely, a connection.
_FETCHES = 64
# And of one flow. What is asked for must cover the round trip: with two units of a megabyte each, a link of 20 ms and
# 100 MB/s idles a third of the time.
FETCHES_AHEAD = 8


class Fetcher(Protocol):
    """A client of the cloud. Several threads call it at once."""

    def fetch(self, chunks: Chunks, request: int | None, moving: Moving) -> bytes | memoryview:
        """Returns the encoded chunks. Calls `moving.moved` for every piece that arrives, and returns at once when
        `moving` is set. `moving.moved(0)` means that the first bytes are on their way."""
        ...


@dataclass(frozen=True, slots=True)
class Fetched:
    """The value of a fetch's ticket. Only the machine's decompressor looks inside it."""

    chunks: Chunks
    payload: bytes | memoryview


class LiveLink(Worker):
    """Up to `ahead` fetches of a flow are under way at once, so that a flow in a row pays the round trip once.

    The link is busy while bytes arrive: from a transfer's first byte to its last, without the round trip before it.
    """

    def __init__(self, env: WallClockEnvironment, fetcher: Fetcher, tell: Tell, ahead: int = FETCHES_AHEAD) -> None:
        super().__init__(env, "link", tell, _FETCHES)
        self._fetcher = fetcher
        self._ahead = ahead
        # Requests, numbered as they come: their fetches are a lane each.
        self._flows: dict[int | None, int] = {}
        self._under_way: defaultdict[int, deque[LiveWork]] = defaultdict(deque)
        # Done, and waiting for the fetches before them.
        self._held: dict[LiveWork, tuple[Any, BaseException | None]] = {}
        self._flowing: set[Moving] = set()
        self._busy_flowing = Busy()
        # All bytes that had arrived by then while the link was busy.
        self._times_s, self._totals_bytes = array("d", [0.0]), array("d", [0.0])

    def fetch(self, chunks: Chunks, after: Iterable[Ticket] = (), request: int | None = None) -> LiveWork:
        """The ticket fires with `Fetched`, after all earlier fetches of the same request."""
        moving = Moving(self._arrived)

        def call(_: object) -> Fetched:
            payload = self._fetcher.fetch(chunks, request, moving)
            if moving.bytes_done < len(payload):
                moving.moved(len(payload) - moving.bytes_done)
            return Fetched(chunks, payload)

        with self.env.lock:
            flow = self._flows.setdefault(request, len(self._flows))
        return self.do(call, after, flow, n_bytes=chunks.n_bytes, label="Fetch", request=request, moving=moving)

    def stop(self) -> None:
        with self.env.lock:
            for flow in self._under_way.values():
                for work in flow:
                    assert work.moving is not None
                    work.moving.set()
        super().stop()

    # --- holding the lock ----------------------------------------------------------------------------------------

    def observe(self, window_s: float) -> tuple[float | None, float]:
        """Bytes that arrived in the last `window_s` over the time in which the link was busy, None when nothing came;
        and the share of that time (of the time since the start, when that is less) when bytes arrived."""
        now = self.env.now
        busy_s = self._busy_flowing.busy_s(now - window_s, now)
        before = self._totals_bytes[bisect_right(self._times_s, now - window_s) - 1] if window_s < now else 0.0
        goodput_bytes_per_s = (self._totals_bytes[-1] - before) / busy_s if busy_s else None
        return goodput_bytes_per_s, self._busy_flowing.utilisation(max(self._born_s, now - window_s), now)

    def left(self, work: LiveWork) -> list[LiveWork]:
        assert work.moving is not None
        flow = self._flows[work.request]
        self._dry(work.moving)
        self._under_way[flow].remove(work)
        self._held.pop(work, None)
        ended = self._release(flow)
        self._serve()
        return ended

    def _next(self) -> LiveWork | None:
        """The next of the first flow that has room for it."""
        for flow, lane in self._lanes.items():
            while lane and not lane[0].queued:
                lane.popleft()
            under_way = self._under_way[flow]
            if lane and not lane[0].awaited and len(under_way) < self._ahead and not self._closed:
                work = lane.popleft()
                under_way.append(work)
                return work
        return None

    def _conclude(self, work: LiveWork, result: Any, error: BaseException | None) -> list[LiveWork]:
        moving = work.moving
        assert moving is not None
        self._dry(moving)
        if isinstance(error, LinkDown):
            error.bytes_done = moving.bytes_done
        work.end_s = self.env.now
        if moving.first_s is not None and moving.last_s is not None and moving.first_s < moving.last_s:
            work.start_s, work.end_s = moving.first_s, moving.last_s
        self._held[work] = result, error
        return self._release(self._flows[work.request])

    def _release(self, flow: int) -> list[LiveWork]:
        """End what is done and was waited for by nothing before it."""
        ended: list[LiveWork] = []
        under_way = self._under_way[flow]
        while under_way and under_way[0] in self._held:
            work = under_way.popleft()
            ended += work.end(*self._held.pop(work))
        return ended

    def _dry(self, moving: Moving) -> None:
        """Nothing more arrives of this transfer."""
        if moving in self._flowing:
            self._flowing.remove(moving)
            if not self._flowing:
                self._busy_flowing.end(self._times_s[-1])

    # --- in the threads ------------------------------------------------------------------------------------------

    def _arrived(self, moving: Moving, n_bytes: float) -> None:
        with self.env.lock:
            if moving.is_set():
                return
            moving.last_s = now = self.env.now
            moving.bytes_done += n_bytes
            if moving.first_s is None:
                moving.first_s = now
                if not self._flowing:
                    self._busy_flowing.begin(now)
                    n_bytes = 0.0  # they were on their way before, for a time unknown
                self._flowing.add(moving)
            self._times_s.append(now)
            self._totals_bytes.append(self._totals_bytes[-1] + n_bytes)

    def tell(self, work: LiveWork) -> None:
        assert work.moving is not None
        work.n_bytes = work.moving.bytes_done
        super().tell(work)

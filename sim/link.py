"""The link between cloud and device: replays a trace, shared fairly among flows."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

import simpy

from kvferry.machine.busy import Busy
from kvferry.machine.span import Span, Tell
from kvferry.machine.ticket import Ticket
from kvferry.machine.work import Work
from kvferry.sim.alarm import Alarm
from kvferry.specs.errors import LinkDown
from kvferry.traces.rate import RateTrace


class Flow:
    """Transfers in the order they were handed over: one being served, the others behind it."""

    __slots__ = ("serving", "waiting")

    def __init__(self) -> None:
        self.serving: Transfer | None = None
        self.waiting: deque[Transfer] = deque()


class Transfer(Work):
    flow: Flow
    # On the way to the bottleneck, and from there.
    before_s: float
    behind_s: float
    # When it reaches the bottleneck; infinite while it waits for other tickets.
    enters_s: float
    # The link's `_share` at which its last byte is served; set when its service starts.
    until_share: float


class Link:
    """One bottleneck with half the RTT before and behind it.

    A transfer requested at x reaches the bottleneck at x + RTT/2, is served after the earlier transfers of its flow,
    and has arrived RTT/2 after its last byte was served: back-to-back transfers pay the RTT once. At every
    instant the flows that have something to send share the trace's rate equally. Left out: slow start, losses
    and header bytes (a trace of goodput has them inside).

    `busy` covers the times when some flow had something to send, outages included. Bytes count as delivered
    when the bottleneck has served them.

    Transfers that can never finish, because the trace has ended, fail with LinkDown when it does.
    """

    # Exact, without an event per sample of the trace or per change of the share: `_share` counts the bytes that a
    # flow would have been served had it been active throughout. A transfer of n bytes that starts at share s ends
    # at share s + n, whichever flows join or leave; only the time at which that share is reached changes.

    def __init__(
        self, env: simpy.Environment, trace: RateTrace, rtt_s: float, tell: Tell, resource: str = "link"
    ) -> None:
        self.env = env
        self.resource = resource
        self.trace = trace
        self._half_rtt_s = rtt_s / 2
        self.busy = Busy()
        # Transfers handed over and not begun.
        self.queued = 0
        self._tell = tell
        self._born_s = env.now
        self._flows: dict[Any, Flow] = {}
        # Heap of (until_share, order, transfer): one for each active flow.
        self._serving: list[tuple[float, int, Transfer]] = []
        self._order = count()
        self._share = 0.0
        self._share_at_s = env.now
        self._served_bytes = 0.0  # by transfers no longer in service
        self._alarm = Alarm(env, self._ring)
        self._never = False  # nothing in service can finish: the alarm is set to the trace's end

    def transfer(
        self,
        flow_id: Any,
        n_bytes: float,
        after: Iterable[Ticket] = (),
        label: str = "",
        request: int | None = None,
        result: Any = None,
        before_s: float | None = None,
        behind_s: float | None = None,
    ) -> Ticket:
        """Transfer bytes after all earlier transfers of this flow; the ticket fires with `result`.

        `before_s` is the way to the bottleneck, `behind_s` the way from there: half the RTT each, unless given.

        Cancelling takes effect at the bottleneck at once; bytes that have passed it still arrive.
        """
        assert 0 <= n_bytes < math.inf, n_bytes
        flow = self._flows.get(flow_id)
        if flow is None:
            flow = self._flows[flow_id] = Flow()
        transfer = Transfer(self.env, self, n_bytes, label, request, result)
        transfer.flow = flow
        transfer.before_s = self._half_rtt_s if before_s is None else before_s
        transfer.behind_s = self._half_rtt_s if behind_s is None else behind_s
        transfer.enters_s = math.inf
        flow.waiting.append(transfer)
        self.queued += 1
        if after:
            transfer.wait_for(after)
        else:
            self.ready(transfer)
        return transfer

    def served_s(self, enters_s: Sequence[float], n_bytes: float, label: str) -> list[float]:
        """When the last byte of each of these transfers is served that come to the bottleneck at these times, one
        behind the other, as if nothing else were served; `busy` does not know of it. They are told as one span, as
        long as their bytes take. Raises LinkDown."""
        found = self.queued_s(enters_s, n_bytes)
        served_s, took_s = 0.0, 0.0
        for enter_s, end_s in zip(enters_s, found, strict=True):
            took_s += end_s - (enter_s if enter_s > served_s else served_s)
            served_s = end_s
        if served_s == math.inf:
            raise LinkDown(f"the link's trace ends at {self.trace.duration_s:g} s, with a stream still to come")
        if found:
            self._tell(Span(self.resource, label, served_s - took_s, served_s, n_bytes * len(found)))
        return found

    def queued_s(self, enters_s: Sequence[float], n_bytes: float, behind_s: float = 0.0) -> list[float]:
        """When the last byte of each of these transfers would be served, behind one that is at `behind_s`; never, where
        the trace ends before."""
        return self.trace.finish_in_turn_s(enters_s, n_bytes, behind_s)

    @property
    def delivered_bytes(self) -> float:
        """All bytes served until now, those of cancelled and unfinished transfers included."""
        self._advance()
        return self._served_bytes + math.fsum(self._done(transfer) for _, _, transfer in self._serving)

    def goodput_bytes_per_s(self, window_s: float) -> float | None:
        """Bytes delivered over time busy, of the last `window_s`; None when idle throughout."""
        return self.observe(window_s)[0]

    def utilisation(self, window_s: float) -> float:
        """Share of the last `window_s` (of the time since the start, when that is less) that was busy."""
        return self.observe(window_s)[1]

    def observe(self, window_s: float) -> tuple[float | None, float]:
        """Both in one look."""
        from_s, now = self._window(window_s)
        busy = list(self.busy.intervals(from_s, now))
        busy_s = math.fsum([until_s - since_s for since_s, until_s in busy])
        if not busy_s:
            return None, 0.0
        # While busy, the link delivers all that the trace offers.
        offered_bytes = math.fsum([self.trace.amount(since_s, until_s) for since_s, until_s in busy])
        return offered_bytes / busy_s, busy_s / (now - from_s) if now > from_s else 0.0

    def check(self) -> None:
        """Every byte that the trace offered while the link was busy went to one transfer."""
        offered = self._offered_bytes(self._born_s, self.env.now)
        assert math.isclose(self.delivered_bytes, offered, rel_tol=1e-9, abs_tol=1e-3), (self.delivered_bytes, offered)
        assert len(self._serving) == sum(flow.serving is not None for flow in self._flows.values())

    # --- asked by transfers ------------------------------------------------------------------------------------

    def ready(self, transfer: Transfer) -> None:
        transfer.enters_s = self.env.now + transfer.before_s
        flow = transfer.flow
        if flow.serving is None and flow.waiting[0] is transfer:
            self._come(flow)

    def withdraw(self, transfer: Transfer) -> float | None:
        flow = transfer.flow
        if transfer.queued:
            transfer.queued = False
            self.queued -= 1
            self._come(flow)
            return 0.0
        if transfer is flow.serving:
            now = self._advance()
            done = self._done(transfer)
            self._serving = [entry for entry in self._serving if entry[2] is not transfer]
            heapify(self._serving)
            self._leave(transfer, done, now)
            self._begin(flow, now)
            self._plan(now)
            return done
        return None

    # --- the bottleneck ----------------------------------------------------------------------------------------

    def _come(self, flow: Flow) -> None:
        """The flow's next transfer may have come to the bottleneck, and its turn too."""
        if flow.serving is None:
            now = self._advance()
            if self._begin(flow, now):
                self._plan(now)

    def _begin(self, flow: Flow, now: float) -> bool:
        """Start to serve the flow's next transfer if it has reached the bottleneck; returns whether it has."""
        waiting = flow.waiting
        while waiting and not waiting[0].queued:
            waiting.popleft()
        if not waiting:
            return False
        transfer = waiting[0]
        if transfer.enters_s > now:
            if transfer.enters_s < math.inf:
                self._expect(flow, transfer.enters_s, now)
            return False
        waiting.popleft()
        transfer.queued = False
        self.queued -= 1
        transfer.start_s = now
        transfer.until_share = until_share = self._share + transfer.n_bytes
        flow.serving = transfer
        if not self._serving:
            self.busy.begin(now)
        heappush(self._serving, (until_share, next(self._order), transfer))
        return True

    def _expect(self, flow: Flow, enters_s: float, now: float) -> None:
        """The flow's next transfer comes to the bottleneck then."""
        self.env.timeout(enters_s - now).callbacks.append(lambda _: self._come(flow))

    def _ring(self, _: simpy.Event) -> None:
        """The first transfer in service is done, or all of them fail because the trace has ended."""
        serving = self._serving
        if self._never:
            now = self._advance()
            given_up = [entry[2] for entry in sorted(serving)]
            serving.clear()
            for transfer in given_up:
                done = self._done(transfer)
                self._leave(transfer, done, now)
                transfer.fail(self._down(transfer, done))
                self._begin(transfer.flow, now)
        else:
            # What was planned, rather than integrated again: nothing is lost to rounding.
            self._share, self._share_at_s = share, now = serving[0][0], self.env.now
            while serving and serving[0][0] <= share:
                transfer = heappop(serving)[2]
                self._leave(transfer, transfer.n_bytes, now)
                transfer.fire_in(transfer.behind_s)
                self._begin(transfer.flow, now)
        self._plan(now)

    def _plan(self, now: float) -> None:
        """Set the alarm to the next end of a service."""
        serving = self._serving
        if not serving:
            self._alarm.clear()
            self.busy.end(now)
            self._share = 0.0  # keeps the numbers small, hence precise
            return
        left = (serving[0][0] - self._share) * len(serving)
        end_s = self.trace.finish_s(now, left if left > 0 else 0.0)
        self._never = end_s == math.inf
        self._alarm.set(max(now, self.trace.duration_s) if self._never else end_s, now)

    def _advance(self) -> float:
        """Bring `_share` up to now, and return that."""
        now = self.env.now
        if self._serving and now > self._share_at_s:
            self._share += self.trace.amount(self._share_at_s, now) / len(self._serving)
        self._share_at_s = now
        return now

    def _done(self, transfer: Transfer) -> float:
        """Bytes of a transfer in service that were served until the last advance."""
        left = transfer.until_share - self._share
        return min(max(0.0, transfer.n_bytes - left), transfer.n_bytes)

    def _leave(self, transfer: Transfer, n_bytes: float, now: float) -> None:
        """End the transfer's service after this number of bytes."""
        assert transfer.start_s is not None
        transfer.flow.serving = None
        self._served_bytes += n_bytes
        self._tell(Span(self.resource, transfer.label, transfer.start_s, now, n_bytes, transfer.request))

    def _down(self, transfer: Transfer, done: float) -> LinkDown:
        # One argument: SimPy rebuilds the error from its args as it crosses processes.
        down = LinkDown(
            f"the link's trace ends at {self.trace.duration_s:g} s, with {transfer.n_bytes - done:,.0f} bytes "
            f"of {transfer.label or 'a transfer'} still to come; a looping trace would go on"
        )
        down.bytes_done = done
        return down

    def _window(self, window_s: float) -> tuple[float, float]:
        now = self.env.now
        return max(self._born_s, now - window_s), now

    def _offered_bytes(self, from_s: float, until_s: float) -> float:
        return math.fsum(self.trace.amount(a, b) for a, b in self.busy.intervals(from_s, until_s))

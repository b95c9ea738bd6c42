"""The bottleneck of a link: a rate that changes over time, shared fairly among flows.

Exact, without an event per sample of the trace or per change of the share: `_share` counts the bytes that a flow would
have been served had it been active throughout. A transfer of n bytes that starts at share s ends at share s + n,
whichever flows join or leave; only the time at which that share is reached changes.
"""

import math
from collections import defaultdict
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

import simpy

from kvferry.machine.busy import Busy
from kvferry.sim.alarm import Alarm
from kvferry.sim.flow import Flow, Transfer
from kvferry.traces.rate import RateTrace


class Bottleneck:
    """Serves the transfers of a flow one after the other. At every instant the flows that have something to send share
    the trace's rate equally. `busy` covers the times when some flow had something to send, outages included. Bytes
    count as delivered when they have been served. Transfers that can never finish, because the trace has ended, fail
    with LinkDown when it does.
    """

    def __init__(self, env: simpy.Environment, trace: RateTrace) -> None:
        self.env, self.trace, self.busy = env, trace, Busy()
        self.flows: defaultdict[Any, Flow] = defaultdict(Flow)
        # Heap of (until_share, order, transfer): one for each active flow.
        self._serving: list[tuple[float, int, Any]] = []
        self._order = count()
        self._share, self._share_at_s = 0.0, env.now
        self._served_bytes = 0.0  # by transfers no longer in service
        self._alarm = Alarm(env, self._ring)
        self._never = False  # nothing in service can finish: the alarm is set to the trace's end

    @property
    def delivered_bytes(self) -> float:
        """All bytes served until now, those of cancelled and unfinished transfers included."""
        self.advance(self.env.now)
        return self._served_bytes + math.fsum(self._done(transfer) for _, _, transfer in self._serving)

    def check(self) -> None:
        """Every byte that the trace offered while it was busy went to one transfer."""
        offered = math.fsum(self.trace.amount(a, b) for a, b in self.busy.intervals(-math.inf, self.env.now))
        assert math.isclose(self.delivered_bytes, offered, rel_tol=1e-9, abs_tol=1e-3), (self.delivered_bytes, offered)
        assert len(self._serving) == sum(flow.serving is not None for flow in self.flows.values())

    def ready(self, transfer: Transfer) -> None:
        transfer.enters_s = self.env.now + transfer.before_s
        if transfer.flow.waiting[0] is transfer:
            self._come(transfer.flow)

    def withdraw(self, transfer: Transfer) -> float | None:
        flow = transfer.flow
        if transfer.queued:
            transfer.queued = False
            transfer.link.queued -= 1
            self._come(flow)
            return 0.0
        if transfer is flow.serving:
            now = self.env.now
            self.advance(now)
            done = self._done(transfer)
            self._serving = [entry for entry in self._serving if entry[2] is not transfer]
            heapify(self._serving)
            self._leave(transfer, done, now)
            self._begin(flow, now)
            self._plan(now)
            return done
        return None

    def advance(self, now: float) -> None:
        """Bring `_share` up to now."""
        if self._serving and now > self._share_at_s:
            self._share += self.trace.amount(self._share_at_s, now) / len(self._serving)
        self._share_at_s = now

    def _come(self, flow: Flow) -> None:
        """The flow's next transfer may have come to the bottleneck, and its turn too."""
        if flow.serving is None:
            now = self.env.now
            self.advance(now)
            if flow.serving is None and self._begin(flow, now):  # an air that goes on to now may have begun it
                self._plan(now)

    def _begin(self, flow: Flow, now: float) -> bool:
        """Start to serve the flow's next transfer if it has reached the bottleneck; returns whether it has."""
        waiting = flow.waiting
        while waiting and not waiting[0].queued:
            waiting.popleft()
        if not waiting or waiting[0].enters_s > now:
            if waiting and waiting[0].enters_s < math.inf:
                self._expect(flow, waiting[0].enters_s, now)
            return False
        transfer = waiting.popleft()
        transfer.queued = False
        transfer.link.queued -= 1
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
        now = self.env.now
        if self._never:
            self.advance(now)
            self._give_up(now)
        else:
            self._end_first(now)
        self._plan(now)

    def _end_first(self, now: float) -> None:
        serving = self._serving
        # What was planned, rather than integrated again: nothing is lost to rounding.
        share = self._share = serving[0][0]
        self._share_at_s = now
        while serving and serving[0][0] <= share:
            transfer = heappop(serving)[2]
            self._leave(transfer, transfer.n_bytes, now)
            transfer.fire_in(transfer.behind_s)
            self._begin(transfer.flow, now)

    def _give_up(self, now: float) -> None:
        """The trace has ended: all in service fail, in the order in which they would have been done."""
        given_up, self._serving = sorted(self._serving), []
        for _, _, transfer in given_up:
            done = self._done(transfer)
            self._leave(transfer, done, now)
            transfer.cut_off(done, self.trace.duration_s)
            self._begin(transfer.flow, now)

    def _plan(self, now: float) -> None:
        """Set the alarm to the next end of a service."""
        end_s = self._next_end_s(now)
        if not self._serving:
            self._alarm.clear()
            self.busy.end(now)
            return
        self._never = end_s == math.inf
        self._alarm.set(max(now, self.trace.duration_s) if self._never else end_s, now)

    def _next_end_s(self, now: float) -> float:
        serving = self._serving
        if not serving:
            self._share = 0.0  # keeps the numbers small, hence precise
            return math.inf
        left = (serving[0][0] - self._share) * len(serving)
        return self.trace.finish_s(now, left if left > 0 else 0.0)

    def _done(self, transfer: Transfer) -> float:
        """Bytes of a transfer in service that were served until the last advance."""
        left = transfer.until_share - self._share
        return min(max(0.0, transfer.n_bytes - left), transfer.n_bytes)

    def _leave(self, transfer: Transfer, n_bytes: float, now: float) -> None:
        """End the transfer's service after this number of bytes."""
        transfer.flow.serving = None
        self._served_bytes += n_bytes
        transfer.link.left(transfer, n_bytes, now)

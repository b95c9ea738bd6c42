"""The link between cloud and device: a bottleneck that replays a trace, and the way to it and from it."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import simpy

from kvferry.machine.span import Span, Tell
from kvferry.machine.ticket import Ticket
from kvferry.sim.bottleneck import Bottleneck
from kvferry.sim.flow import Transfer
from kvferry.specs.errors import LinkDown
from kvferry.traces.rate import RateTrace


class Link:
    """One bottleneck with half the RTT before and behind it, of its own if none is given.

    A transfer requested at x reaches the bottleneck at x + RTT/2, is served after the earlier transfers of its flow,
    and has arrived RTT/2 after its last byte was served: back-to-back transfers pay the RTT once. Left out: slow start,
    losses and header bytes (a trace of goodput has them inside).
    """

    def __init__(
        self,
        env: simpy.Environment,
        trace: RateTrace,
        rtt_s: float,
        tell: Tell,
        resource: str = "link",
        bottleneck: Bottleneck | None = None,
    ) -> None:
        self.env, self.trace, self.resource, self._tell = env, trace, resource, tell
        self._half_rtt_s, self._born_s = rtt_s / 2, env.now
        self.bottleneck = bottleneck or Bottleneck(env, trace)
        self.busy = self.bottleneck.busy
        # Transfers handed over and not begun.
        self.queued = 0

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
        transfer = Transfer(self.env, self.bottleneck, n_bytes, label, request, result)
        transfer.link = self
        transfer.flow = flow = self.bottleneck.flows[flow_id]
        transfer.before_s = self._half_rtt_s if before_s is None else before_s
        transfer.behind_s = self._half_rtt_s if behind_s is None else behind_s
        transfer.enters_s = math.inf
        flow.waiting.append(transfer)
        self.queued += 1
        if after:
            transfer.wait_for(after)
        else:
            self.bottleneck.ready(transfer)
        return transfer

    def left(self, transfer: Transfer, n_bytes: float, now_s: float) -> None:
        assert transfer.start_s is not None
        self._tell(Span(self.resource, transfer.label, transfer.start_s, now_s, n_bytes, transfer.request))

    def served_s(self, enters_s: Sequence[float], n_bytes: float, label: str) -> list[float]:
        """When the last byte of each of these transfers is served that come to the bottleneck at these times, one
        behind the other, as if nothing else were served; `busy` does not know of it. They are told as one span, as
        long as their bytes take. Raises LinkDown."""
        found = self.trace.finish_in_turn_s(enters_s, n_bytes)
        served_s, took_s = 0.0, 0.0
        for enter_s, end_s in zip(enters_s, found, strict=True):
            took_s += end_s - (enter_s if enter_s > served_s else served_s)
            served_s = end_s
        if served_s == math.inf:
            raise LinkDown(f"the link's trace ends at {self.trace.duration_s:g} s, with a stream still to come")
        if found:
            self._tell(Span(self.resource, label, served_s - took_s, served_s, n_bytes * len(found)))
        return found

    def observe(self, window_s: float) -> tuple[float | None, float]:
        """Bytes delivered over time busy, of the last `window_s`, None when idle throughout; and the share of that time
        (of the time since the start, when that is less) that was busy."""
        now = self.env.now
        from_s = max(self._born_s, now - window_s)
        if not self.busy.any_since(from_s):
            return None, 0.0
        busy = list(self.busy.intervals(from_s, now))
        busy_s = math.fsum([until_s - since_s for since_s, until_s in busy])
        if not busy_s:
            return None, 0.0
        # While busy, the link delivers all that the trace offers.
        offered_bytes = math.fsum([self.trace.amount(since_s, until_s) for since_s, until_s in busy])
        return offered_bytes / busy_s, busy_s / (now - from_s) if now > from_s else 0.0

"""How messages between machines cross: over the sender's uplink and the receiver's downlink."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import simpy

from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.sim.air import Air, InAir, StreamInAir
from kvferry.sim.link import Link
from kvferry.specs.device import NetworkInterfaceSpec
from kvferry.traces.rate import RateTrace

# Draws by how many seconds this many messages are longer under way, one way, than half the round trip; float[n].
Late = Callable[[int], np.ndarray]


@dataclass(frozen=True)
class Access:
    """A machine's way to the network: the bottleneck of either direction, and half the round trip on the far side.

    What it sends passes `up` and arrives half the RTT later; what is sent to it reaches `down` half the RTT after it
    was sent. A message up and its answer down take one RTT, besides their bytes, and what `late` draws for each.
    Messages share `down` fairly with the machine's fetches, as one flow for each sender.
    """

    up: Link
    down: Link
    rtt_s: float = 0.0
    late: Late | None = None

    def way_s(self) -> float:
        """What a message has to go beside the bottleneck."""
        return self.rtt_s / 2 + (0.0 if self.late is None else float(self.late(1)[0]))

    def ways_s(self, sent_s: Sequence[float]) -> Sequence[float]:
        """When messages that were sent at these times have gone it."""
        half_s = self.rtt_s / 2
        if self.late is None:
            return [time_s + half_s for time_s in sent_s]
        found: list[float] = (np.asarray(sent_s) + half_s + self.late(len(sent_s))).tolist()
        return found


def access_over(
    env: simpy.Environment,
    down: RateTrace,
    up: RateTrace | None,
    rtt_s: float,
    network: NetworkInterfaceSpec,
    tell: Tell,
    late: Late | None = None,
) -> Access:
    """A device's access over a link; spans name its resources link and uplink. `up` None: it sends as fast as it
    receives, on another way. Each transfer down takes the time that the network interface adds to a fetch."""
    if network.bytes_per_s is not None:
        down = down.with_rates(np.minimum(down.rates, network.bytes_per_s))
    return Access(
        up=Link(env, down if up is None else up, 0.0, tell, "uplink"),
        down=Link(env, down, rtt_s + network.request_s, tell),
        rtt_s=rtt_s,
        late=late,
    )


class Cell:
    """The air that devices share, either way; each has an access of its own to it. Left out: what the network interface
    of one device adds or could not carry. `up` None: they send as fast as they receive, on another way."""

    def __init__(
        self, env: simpy.Environment, down: RateTrace, up: RateTrace | None, rtt_s: float, late: Late | None
    ) -> None:
        self._up, self._down = Air(env, down if up is None else up), Air(env, down)
        self._rtt_s, self._late = rtt_s, late

    def access(self, tell: Tell) -> Access:
        """Of one more device."""
        return Access(InAir(self._up, tell, "uplink"), InAir(self._down, tell, "link"), self._rtt_s, self._late)

    def check(self) -> None:
        """Asserts that every byte which the air offered while it was busy went to one message or part."""
        self._up.check()
        self._down.check()


class Accesses:
    """The `carry` of a switchboard for machines by name, in virtual or wall time.

    A machine without an access, a cloud say, costs nothing. Messages of one direction arrive in the order in which they
    were sent. Left out: the inside of the network, and header bytes.
    """

    def __init__(self, env: simpy.Environment, machines: Mapping[str, Access] | None = None) -> None:
        self._env = env
        self._machines = dict(machines or {})
        # By sender and receiver: what went last over an uplink whose messages differ, and how long it is under way
        # from there.
        self._sent: dict[tuple[str, str], tuple[Ticket, float]] = {}

    def connect(self, name: str, access: Access) -> None:
        """Give a machine its access."""
        self._machines[name] = access

    def __call__(self, sender: str, receiver: str, n_bytes: float) -> Ticket:
        """Fires when a message of this many bytes has arrived; fails with LinkDown when a trace ends before."""
        here, there = self._machines.get(sender), self._machines.get(receiver)
        flow, label = ("message", sender, receiver), "Message"
        if here is None and there is None:
            arrived = Ticket(self._env)
            arrived.settle(None, self._env.now, self._env.now)
            return arrived
        if there is None:
            assert here is not None
            return self._up(here, flow, n_bytes, label)
        # Handed to `down` at once: it serves a flow in the order in which it was handed over.
        after = () if here is None else (self._up(here, flow, n_bytes, label),)
        return there.down.transfer(flow, n_bytes, after, label=label, before_s=there.way_s(), behind_s=0.0)

    def _up(self, here: Access, flow: tuple[str, str, str], n_bytes: float, label: str) -> Ticket:
        way_s = here.way_s()
        if here.late is None:
            return here.up.transfer(flow, n_bytes, label=label, before_s=0.0, behind_s=way_s)
        between = flow[1], flow[2]
        before = self._sent.get(between)
        if before is not None and not before[0].triggered:
            # None overtakes the one before it.
            way_s = max(way_s, before[1])
        sent = here.up.transfer(flow, n_bytes, label=label, before_s=0.0, behind_s=way_s)
        self._sent[between] = sent, way_s
        return sent

    def stream(self, sender: str, receiver: str, n_bytes: float) -> StreamInAir | None:
        """Parts that share the air of the receiver's cell with what others receive; None: it is in none."""
        here, there = self._machines.get(sender), self._machines.get(receiver)
        if there is None or not isinstance(there.down, InAir):
            return None

        def way_s() -> float:
            now = self._env.now
            up_s = 0.0 if here is None else here.ways_s(here.up.trace.finish_in_turn_s([now], n_bytes))[0] - now
            return up_s + there.way_s()

        return there.down.stream(("message", sender, receiver), n_bytes, way_s)

    def arrivals_s(self, sender: str, receiver: str, sent_s: Sequence[float], n_bytes: float) -> Sequence[float]:
        """When messages of this many bytes each arrive that were sent one after the other at these times, by
        arithmetic: as if no other message or fetch were under way meanwhile."""
        here, there = self._machines.get(sender), self._machines.get(receiver)
        times_s = sent_s
        if here is not None:
            times_s = here.ways_s(here.up.served_s(times_s, n_bytes, "Message"))
            times_s = np.maximum.accumulate(times_s).tolist() if here.late is not None else times_s
        if there is not None:
            times_s = there.down.served_s(there.ways_s(times_s), n_bytes, "Message")
        return times_s

    def expected_s(
        self, sender: str, receiver: str, sent_s: Sequence[float], n_bytes: float, behind_s: float
    ) -> Sequence[float]:
        """The same without jitter, behind a message that arrives at `behind_s`; no span is told."""
        here, there = self._machines.get(sender), self._machines.get(receiver)
        times_s = sent_s
        if here is not None:
            half_s = here.rtt_s / 2
            times_s = [
                time_s + half_s for time_s in here.up.trace.finish_in_turn_s(times_s, n_bytes, behind_s - half_s)
            ]
        if there is not None:
            half_s = there.rtt_s / 2
            times_s = there.down.trace.finish_in_turn_s([time_s + half_s for time_s in times_s], n_bytes, behind_s)
        return times_s

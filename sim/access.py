"""How messages between machines cross: over the sender's uplink and the receiver's downlink."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import simpy

from kvferry.machine.span import Tell
from kvferry.machine.ticket import Ticket
from kvferry.sim.link import Link
from kvferry.specs.device import NetworkInterfaceSpec
from kvferry.traces.rate import RateTrace


@dataclass(frozen=True)
class Access:
    """A machine's way to the network: the bottleneck of either direction, and half the round trip on the far side.

    What it sends passes `up` and arrives half the RTT later; what is sent to it reaches `down` half the RTT after it
    was sent. A message up and its answer down take one RTT, besides their bytes. Messages share `down` fairly with the
    machine's fetches, as one flow for each sender.
    """

    up: Link
    down: Link
    rtt_s: float = 0.0


def access_over(
    env: simpy.Environment,
    down: RateTrace,
    up: RateTrace | None,
    rtt_s: float,
    network: NetworkInterfaceSpec,
    tell: Tell,
) -> Access:
    """A device's access over a link; spans name its resources link and uplink. `up` None: it sends as fast as it
    receives, on another way. Each transfer down takes the time that the network interface adds to a fetch."""
    if network.bytes_per_s is not None:
        down = down.capped(network.bytes_per_s)
    return Access(
        up=Link(env, down if up is None else up, 0.0, tell, "uplink"),
        down=Link(env, down, rtt_s + network.request_s, tell),
        rtt_s=rtt_s,
    )


class Accesses:
    """The `carry` of a switchboard for machines by name, in virtual or wall time.

    A machine without an access, a cloud say, costs nothing. Messages of one direction arrive in the order in which they
    were sent. Left out: the inside of the network, and header bytes.
    """

    def __init__(self, env: simpy.Environment, machines: Mapping[str, Access] | None = None) -> None:
        self._env = env
        self._machines = dict(machines or {})

    def connect(self, name: str, access: Access) -> None:
        """Give a machine its access."""
        self._machines[name] = access

    def __call__(self, sender: str, receiver: str, n_bytes: float) -> Ticket:
        """Fires when a message of so many bytes has arrived; fails with LinkDown when a trace ends before."""
        here, there = self._machines.get(sender), self._machines.get(receiver)
        flow, label = ("message", sender, receiver), "Message"
        if here is None and there is None:
            arrived = Ticket(self._env)
            arrived.settle(None, self._env.now, self._env.now)
            return arrived
        if there is None:
            assert here is not None
            return here.up.transfer(flow, n_bytes, label=label, before_s=0.0, behind_s=here.rtt_s / 2)
        # Handed to `down` at once: it serves a flow in the order in which it was handed over.
        after = (
            ()
            if here is None
            else (here.up.transfer(flow, n_bytes, label=label, before_s=0.0, behind_s=here.rtt_s / 2),)
        )
        return there.down.transfer(flow, n_bytes, after, label=label, before_s=there.rtt_s / 2, behind_s=0.0)

    def arrivals_s(self, sender: str, receiver: str, sent_s: Sequence[float], n_bytes: float) -> Sequence[float]:
        """When messages of so many bytes each arrive that were sent one after the other at these times, by arithmetic:
        as if no other message or fetch were under way meanwhile."""
        here, there = self._machines.get(sender), self._machines.get(receiver)
        times_s = sent_s
        if here is not None:
            times_s = [time_s + here.rtt_s / 2 for time_s in here.up.served_s(times_s, n_bytes, "Message")]
        if there is not None:
            half_s = there.rtt_s / 2
            times_s = there.down.served_s([time_s + half_s for time_s in times_s], n_bytes, "Message")
        return times_s

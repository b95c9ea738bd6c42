"""The cloud: instances that prefill, decode, or both, and slots that requests hold (P/D-Device 3.1, 3.2)."""

from collections.abc import Callable, Sequence

from kvferry.cloud.asked import Served
from kvferry.machine.channel import Channel
from kvferry.machine.instant import at
from kvferry.machine.machine import Machine
from kvferry.pipelines.assist.admission import Admission
from kvferry.pipelines.assist.balance import Balance
from kvferry.pipelines.assist.instance import Instance
from kvferry.pipelines.workload import Process
from kvferry.policies.assist.serving import Serving
from kvferry.specs.assist import AssistSpec
from kvferry.specs.machine import DownSpec


class Cloud:
    """All instances behind one name. Those of `prefilling` prefill, those of `decoding` decode: the same ones, or none
    of the others.

    A prompt goes to the instance with the fewest tokens in hand. When its KV is there, it waits, first come, first
    served, until an instance that decodes has a free slot, has memory for it, and keeps its time per token with one
    request more. KV moves from there over the copy path of the instance that has prefilled, whose memory holds it until
    then. Where instances do both, one that has a slot and memory prefills. A slot is held until the last token: early
    termination frees it. Who wants no token behind the first needs none.

    A device that shows tokens at a pace says which in its request. The cloud answers with the time per token that it
    keeps itself, and sends the first token no sooner than the others can follow it at the larger of the two. Where one
    without a pace asks for it, the first token waits for the KV to move alone. It waits for the mask as well, unless
    the device wants that in a message of its own.

    What a device has asked for ends with its channel: its prompt behind the piece that is under way, its turn behind
    the step.

    An instance that is down loses what it has in hand: devices are told, and go on by themselves. Others get its
    requests meanwhile; the load balancer stays up.

    Left out: preemption.
    """

    def __init__(
        self,
        front: Machine,
        prefilling: Sequence[Instance],
        decoding: Sequence[Instance],
        serving: Serving,
        workload: AssistSpec,
        numbers: Callable[[int], int],
        serves: Served,
    ) -> None:
        """`numbers`: what a device's request is called here, where devices of several runs number theirs alike.
        `serves`: what it takes from devices that it does not know."""
        self.front, self.prefilling, self.decoding = front, prefilling, decoding
        self.workload, self.serving, self.numbers, self.serves = workload, serving, numbers, serves
        self.balance, self.admission = Balance(prefilling), Admission(front.env, decoding, serving)
        # Whether KV moves from those that prefill to those that decode.
        self.apart = not set(prefilling) & set(decoding)
        # Seconds that slots were held, all together; requests that were served, and when the last one left.
        self.held_s, self.served, self.served_by_s = 0.0, 0, 0.0
        # Tokens of all prompts, and of them those whose KV was there already.
        self.prompt_tokens = self.known_tokens = 0
        # The workload's fault, where that breaks answers off; and whether the cloud has died of it.
        fault = workload.fault
        self.breaks = fault if fault is not None and fault.what in ("dies", "stalls") else None
        self.gone = False

    def die(self, channel: Channel) -> None:
        """Stops serving: closes this channel, and accepts no further requests."""
        self.gone = True
        channel.close()

    def figures(self, since_s: float) -> dict[str, float]:
        """Returns the cloud's metrics since `since_s`, when its first request came; empty if it has served none.
        ``cloud_batch``: requests that decoded together, in the mean over all steps; 0 without any."""
        if not self.served:
            return {}
        took_s, steps = self.served_by_s - since_s, sum(one.turns.steps for one in self.decoding)
        figures = {
            "cloud_throughput_requests_per_s": self.served / took_s,
            "slot_occupancy": self.held_s / (self.admission.slots.all * took_s),
            "cloud_batch": sum(one.turns.decoded for one in self.decoding) / steps if steps else 0.0,
            "cloud_latency_s": self.held_s / self.served,
        }
        if self.serving.prefix_caching:
            figures["cloud_prefix_share"] = self.known_tokens / self.prompt_tokens
        return figures

    def goes_down(self, instance: Instance, outages: Sequence[DownSpec]) -> Process:
        """Has an instance be down when `outages` say so, which are in order."""
        for one in outages:
            until_s = one.start_s + one.duration_s
            yield at(self.front.env, one.start_s)
            instance.go_down(until_s)
            self.balance.look()
            yield at(self.front.env, until_s)
            instance.come_up()
            self.balance.look()
            self.admission.admit()

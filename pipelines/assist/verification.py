"""What a cloud makes of a device's drafts: several tokens in one pass (P/D-Device 2.2.1)."""

import math
from collections.abc import Generator
from typing import Any

import simpy

from kvferry.cloud.asked import drafts_of
from kvferry.cloud.messages import BadMessage, Message
from kvferry.machine.channel import Channel
from kvferry.machine.instant import at
from kvferry.machine.ops import Prefill
from kvferry.pipelines.assist.cloud import Cloud
from kvferry.pipelines.workload import Process

# A share of whole tokens is whole up to so much.
_ROUNDING = 1e-9
# A device that drafts has this long from one round of drafts to the next, and for its own prefill before the first one.
# Where others wait, its slot is theirs once it has been silent for so long, until it drafts again; its KV, where memory
# is lacking, once it has been so before the first round, and behind each.
_DRAFTS_S, _SLOT_S, _FIRST_DRAFTS_S, _NEXT_DRAFTS_S = 300.0, 1.0, 60.0, 10.0


class Verification:
    """Of what the device of this channel drafts, by the instance whose place was `granted`. ``parked_s``: seconds in
    which others had its slot."""

    def __init__(self, cloud: Cloud, channel: Channel, granted: simpy.Event, request: int, asked: Message) -> None:
        self._cloud, self._channel, self._granted = cloud, channel, granted
        self._request, self._asked = request, asked
        self.parked_s = 0.0

    def rounds(self, context: int) -> Process:
        """Looks at drafts behind so much context until the device drafts no more, or not for long. In the modelled
        world the same share of each round stands, in whole tokens that add up to it."""
        cloud, channel, asked, breaks = self._cloud, self._channel, self._asked, self._cloud.breaks
        machine, n_bytes = self._granted.value.instance.machine, cloud.workload.handling.answer_token_bytes
        stood, drafted_before = 0, 0
        while True:
            message = yield from self._drafts(_NEXT_DRAFTS_S if drafted_before else _FIRST_DRAFTS_S)
            found = None if message is None else drafts_of(message, asked)
            if found is None:
                return
            if breaks is not None and stood + 1 >= breaks.tokens:
                if breaks.what == "dies":
                    cloud.die(channel)
                else:
                    # Until the device leaves, or has been waiting too long.
                    yield cloud.front.env.timeout(_DRAFTS_S)
                    channel.hang_up()
                return
            drafted, drafts = found
            if drafts is not None and len(drafts[0]) < stood:
                # Each round goes on behind the last one: an answer has an end, and with it the slot.
                raise BadMessage(f"what the device has drafted was looked at before: {stood:,} tokens stand")
            # What a real model says of them: the ones that stand, and what it says instead of the first that does not.
            said = yield machine.submit(Prefill(drafted, context + 1 + stood, drafts), request=self._request)
            drafted_before += drafted
            stands = math.floor(drafted_before * asked["accepted"] + _ROUNDING) - stood if said is None else len(said)
            stood += stands
            channel.send({"request": asked["request"], "stands": stands, "said": said}, n_bytes)

    def _drafts(self, undisturbed_s: float) -> Generator[simpy.Event, Any, Message | None]:
        """Returns what the device says next, once it has a slot to be looked at in; None where it says nothing for too
        long: that ends its channel."""
        env, admission, granted = self._cloud.front.env, self._cloud.admission, self._granted
        heard, silent_s, parked_s = self._channel.receive(), env.now, None
        yield heard | env.timeout(_SLOT_S)
        if not heard.triggered:
            needed = admission.idle(granted)
            yield heard | needed | at(env, silent_s + _DRAFTS_S)
            admission.busy(granted)
            if needed.triggered and not heard.triggered:
                admission.park(granted)
                parked_s = env.now
                yield heard | at(env, silent_s + undisturbed_s)
        if parked_s is not None:
            if not heard.triggered:
                yield heard | admission.idle(granted) | at(env, silent_s + _DRAFTS_S)
                admission.busy(granted)
            if heard.triggered and heard.ok:
                yield admission.back(granted)
            self.parked_s += env.now - parked_s
        if heard.triggered and heard.ok:
            message: Message | None = heard.value
            return message
        heard.defused = True
        self._channel.hang_up()
        return None

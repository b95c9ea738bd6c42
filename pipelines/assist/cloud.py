"""The cloud's role: instances that prefill, decode, or both, and slots that requests hold (P/D-Device 3.1, 3.2)."""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import simpy

from kvferry.cloud.asked import Served, asked_of, drafts_of
from kvferry.cloud.messages import (
    BadMessage,
    Message,
    comes_apart,
    failure,
    first_answer,
    mask_behind,
    spoil_mask,
    spoil_tokenizer,
)
from kvferry.machine.channel import Channel, ChannelBroken
from kvferry.machine.handling import FORGET, Refine, TakeIn, TakenIn
from kvferry.machine.instant import at
from kvferry.machine.machine import Machine
from kvferry.machine.ops import Extents, Prefill
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.admission import Admission, Place
from kvferry.pipelines.assist.balance import Balance
from kvferry.pipelines.assist.in_hand import Down, Prompt, Turn
from kvferry.pipelines.assist.instance import Instance
from kvferry.pipelines.assist.rest import Mask, say_rest
from kvferry.pipelines.workload import Process
from kvferry.policies.assist.refiner import content_tokens
from kvferry.policies.assist.serving import Serving, Slots
from kvferry.specs.assist import AssistSpec
from kvferry.specs.machine import DownSpec

# Called with the seconds that a request waited for a slot, and those of its prefill and refinement.
Tell = Callable[[float, float, float], None]
# A share of whole tokens is whole up to so much.
_ROUNDING = 1e-9
# A device that drafts has this long from one round of drafts to the next, and for its own prefill before the first one.
# Where others wait, its slot is theirs once it has been silent for so long, until it drafts again; its KV, where memory
# is lacking, once it has been so before the first round, and behind each.
_DRAFTS_S, _SLOT_S, _FIRST_DRAFTS_S, _NEXT_DRAFTS_S = 300.0, 1.0, 60.0, 10.0


@dataclass(slots=True)
class _Held:
    """What a request holds in the cloud."""

    # What it is called here, once its prompt has been taken in.
    request: int | None = None
    # Its prompt, with memory of the instance that prefills where that is not the one that decodes.
    prompt: Prompt | None = None
    # What fires with its place with an instance that decodes, and its turn there.
    granted: simpy.Event | None = None
    turn: Turn | None = None
    # Seconds in which others had its slot.
    parked_s: float = 0.0


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
        numbers: Callable[[int], int] = int,
        serves: Served | None = None,
    ) -> None:
        self._front, self._prefilling, self._decoding = front, prefilling, decoding
        self._balance = Balance(prefilling)
        self._apart = not set(prefilling) & set(decoding)
        self._admission = Admission(front.env, decoding, serving)
        self._workload, self._serving = workload, serving
        # What a device's request is called here, where devices of several runs number theirs alike.
        self._numbers = numbers
        # What it takes from devices that it does not know.
        self._serves = serves or Served()
        # Seconds that slots were held, all together; requests that were served, and when the last one left.
        self.held_s = 0.0
        self.served = 0
        self.served_by_s = 0.0
        # Tokens of all prompts, and of them those whose KV was there already.
        self.prompt_tokens = self.known_tokens = 0
        # It has died, as the workload's fault has it.
        self._gone = False

    @property
    def slots(self) -> Slots:
        return self._admission.slots

    def figures(self, since_s: float) -> dict[str, float]:
        """Returns what is said of a cloud that has been asked since then; nothing of one that has served nobody.
        ``cloud_batch``: requests that decoded together, in the mean over all steps; 0 without any."""
        if not self.served:
            return {}
        took_s, steps = self.served_by_s - since_s, sum(one.turns.steps for one in self._decoding)
        figures = {
            "cloud_throughput_requests_per_s": self.served / took_s,
            "slot_occupancy": self.held_s / (self.slots.all * took_s),
            "cloud_batch": sum(one.turns.decoded for one in self._decoding) / steps if steps else 0.0,
            "cloud_latency_s": self.held_s / self.served,
        }
        if self._serving.prefix_caching:
            figures["cloud_prefix_share"] = self.known_tokens / self.prompt_tokens
        return figures

    def goes_down(self, instance: Instance, outages: Sequence[DownSpec]) -> Process:
        """Has an instance be down when `outages` say so, which are in order."""
        for one in outages:
            until_s = one.start_s + one.duration_s
            yield at(self._front.env, one.start_s)
            instance.go_down(until_s)
            self._balance.look()
            yield at(self._front.env, until_s)
            instance.come_up()
            self._balance.look()
            self._admission.admit()

    def serve(self, device: str, tell: Tell) -> Generator[simpy.Event, Any, bool]:
        """One request of a device, from its prompt to the last token that it is to get. Returns whether there was one:
        False once the device has ended its channel or is gone. Whatever goes wrong with the request gives back what it
        held, and the device is told; then it is raised: BadMessage for what is no request, OutOfMemory for one that
        fits nowhere."""
        channel, fault = self._front.outside.open(device), self._workload.fault
        if self._gone or (fault is not None and fault.what == "unreachable"):
            channel.close()
            return False
        held, message = _Held(), None
        serving = self._front.env.active_process
        assert serving is not None

        def end(_: simpy.Event) -> None:
            # What it waits for may fail yet, and nobody is left to hear of that.
            serving.target.defused = True
            serving.interrupt()

        # Once it has fired, receiving fails.
        watched = [] if channel.gone.callbacks is None else channel.gone.callbacks
        watched.append(end)
        try:
            message = yield channel.receive()
            if message is not None:
                yield from self._served(channel, asked_of(message, self._serves), held, tell)
        except (ChannelBroken, simpy.Interrupt):
            # Nobody is left to hear of it.
            return False
        except Exception as error:
            with suppress(RuntimeError):
                channel.send(failure(message, error), self._workload.handling.answer_token_bytes)
            if not isinstance(error, Down):
                raise
        finally:
            watched.remove(end)
            self._give_back(held)
        return message is not None

    def _served(self, channel: Channel, asked: Message, held: "_Held", tell: Tell) -> Process:
        """Leaves in `held` what is to be given back."""
        fault = self._workload.fault
        env, handling, request = self._front.env, self._workload.handling, self._numbers(asked["request"])
        held.request = request
        taken: TakenIn = yield self._front.outside.handle(
            TakeIn(
                seconds=handling.forward_s,
                expects=TakenIn(asked["prompt"], None),
                text=asked["text"],
                # What it says itself, or looks at.
                answer=asked["answer" if asked["drafts"] else "tokens"],
                refined=asked["ratio"] < 1,
            ),
            request=request,
        )
        prompt, tokens, came_s = taken.tokens, asked["tokens"], env.now
        context = asked.get("known", 0) + prompt
        needs_slot = tokens > 1 or asked["drafts"]
        if not prompt:
            raise BadMessage("what the device has sent is no request: its text is empty")
        self._serves.check(prompt=prompt)
        place: Place | None = None
        if needs_slot and not self._apart:
            held.granted = self._admission.wanted(context + tokens)
            place = yield held.granted
        began_s = env.now
        first = yield from self._prefilled(asked, held, prompt, place)
        there_s = env.now
        assert held.prompt is not None
        # Which the host does, whether or not there is a slot yet.
        refining = self._refined(asked, request, prompt) if asked["ratio"] < 1 else None
        if needs_slot and place is None:
            held.granted = self._admission.wanted(context + tokens)
            place = yield held.granted
        placed_s = began_s if place is None or not self._apart else env.now
        moved = self._moved(held.prompt, context, place)
        apart = comes_apart(asked)
        mask: str | None = None if refining is None or apart else (yield refining)
        if place is not None and held.prompt.is_lost and (moved is None or not moved.processed):
            raise Down("an instance has been down, and the prompt's KV is lost")
        turn, kept_s = None, self._decoding[0].holders.kept_s(context + tokens)
        paced = asked["pace_s"] is not None and not asked["drafts"]
        if moved is not None and (paced or asked.get("moved")):
            yield moved
        if place is not None and paced:
            paced_s = max(asked["pace_s"], kept_s)
            turn = held.turn = place.instance.decode(request, context, tokens - 1, paced_s)
            if turn.sends_s > env.now:
                yield at(env, turn.sends_s)
        waited_s = placed_s - there_s if self._apart and place is not None else began_s - came_s
        tell(waited_s, there_s - began_s, env.now - max(there_s, placed_s))
        answer = first_answer(self._workload, asked, prompt, first, mask, taken.tokenizer, kept_s)
        if fault is not None:
            spoil_tokenizer(answer, fault)
            if not apart:
                spoil_mask(answer, fault)
        channel.send(answer, answer["bytes"])
        if turn is None and moved is not None:
            yield moved
        if asked["drafts"]:
            assert place is not None
            yield from self._verify(channel, place, held, asked, context)
        else:
            if place is not None:
                turn = held.turn = turn or place.instance.decode(request, context, tokens - 1, None)
            breaks = fault if fault is not None and fault.what in ("dies", "stalls") else None

            def masked(text: str | None) -> None:
                message = mask_behind(self._workload, asked, prompt, text)
                tell(waited_s, there_s - began_s, env.now - max(there_s, placed_s))
                if fault is not None:
                    spoil_mask(message, fault)
                channel.send(message, message["bytes"])

            between = None if refining is None or not apart else Mask(refining, masked)
            silent_behind = None if breaks is None else breaks.tokens - 1
            whole = yield from say_rest(channel, handling.answer_token_bytes, turn, between, silent_behind)
            if not whole and breaks is not None and breaks.what == "dies":
                self._gone = True
                channel.close()
            if turn is not None:
                yield turn.done
        if place is not None:
            self.held_s += env.now - placed_s - held.parked_s
        self.served += 1
        self.served_by_s = env.now

    def _give_back(self, held: "_Held") -> None:
        """All that a request holds, once no work on it is under way."""
        for work in (held.prompt, held.turn):
            if work is not None and not work.done.triggered:
                assert work.done.callbacks is not None
                work.done.callbacks.append(lambda _: self._give_back(held))
                work.instance.drop(work)
                return
        if held.request is not None:
            self._front.outside.handle(FORGET, request=held.request)
        if held.prompt is not None:
            held.prompt.free()
        if held.granted is not None:
            self._admission.forgo(held.granted)

    def _prefilled(
        self, asked: Message, held: "_Held", prompt: int, place: Place | None
    ) -> Generator[simpy.Event, Any, str | None]:
        """Returns the first token, once the prompt's KV is there. `place`: where there is memory for it already."""
        instance = self._balance.least() if place is None else place.instance
        assert held.request is not None
        self._balance.add(instance, prompt)
        try:
            if (lora := instance.lora(asked["scene"], self._workload.lora_bytes)) is not None:
                yield lora
            known, scene, beginning = asked.get("known", 0), asked["scene"], self._workload.beginning
            caches = self._serving.prefix_caching and beginning > 0 and not known
            shared = beginning if caches and instance.kv.has_beginning(scene) else 0
            held.prompt = instance.prefill(
                held.request, prompt - shared, has_memory=place is not None, before=known + shared
            )
            first: str | None = yield held.prompt.done
            if caches:
                instance.kv.keep_beginning(scene, beginning)
            self.prompt_tokens, self.known_tokens = self.prompt_tokens + prompt, self.known_tokens + shared
        finally:
            self._balance.add(instance, -prompt)
        return first

    def _refined(self, asked: Message, request: int, prompt: int) -> simpy.Event:
        """Fires with the mask as text; None: a modelled one."""
        kept = content_tokens(prompt, self._workload.fixed, asked["ratio"])
        seconds = self._workload.handling.refine_token_s * prompt
        refine = Refine(seconds=seconds, tokens=kept, refiner=asked["refiner"])
        refining = self._front.outside.handle(refine, request=request)
        # The device may be gone before anybody waits for it.
        refining.defused = True
        return refining

    def _moved(self, prefilled: Prompt, prompt: int, place: Place | None) -> Ticket | None:
        """Fires when the instance that decodes has the prompt's KV, which the other gives up then; None: it has made
        it, or none decodes."""
        if place is None or place.instance is prefilled.instance:
            return None
        moved = prefilled.instance.machine.move(
            Extents([0], [round(prefilled.instance.kv.n_bytes(prompt))]), "device", "host"
        )
        assert moved.callbacks is not None
        moved.callbacks.append(lambda _: prefilled.free())
        return moved

    def _verify(self, channel: Channel, place: Place, held: "_Held", asked: Message, prompt: int) -> Process:
        """Looks at what the device drafts, several tokens in one pass, until it drafts no more, or not for long. In the
        modelled world the same share of each round stands, in whole tokens that add up to it."""
        stood, drafted_before, n_bytes = 0, 0, self._workload.handling.answer_token_bytes
        fault = self._workload.fault
        breaks = fault if fault is not None and fault.what in ("dies", "stalls") else None
        while True:
            message = yield from self._drafts(channel, held, _NEXT_DRAFTS_S if drafted_before else _FIRST_DRAFTS_S)
            found = None if message is None else drafts_of(message, asked)
            if found is None:
                return
            if breaks is not None and stood + 1 >= breaks.tokens:
                if breaks.what == "dies":
                    self._gone = True
                    channel.close()
                else:
                    # Until the device leaves, or has been waiting too long.
                    yield self._front.env.timeout(_DRAFTS_S)
                    channel.hang_up()
                return
            drafted, drafts = found
            if drafts is not None and len(drafts[0]) < stood:
                # Each round goes on behind the last one: an answer has an end, and with it the slot.
                raise BadMessage(f"what the device has drafted was looked at before: {stood:,} tokens stand")
            # What a real model says of them: the ones that stand, and what it says instead of the first that does not.
            op = Prefill(drafted, prompt + 1 + stood, drafts)
            said = yield place.instance.machine.submit(op, request=held.request)
            drafted_before += drafted
            stands = math.floor(drafted_before * asked["accepted"] + _ROUNDING) - stood if said is None else len(said)
            stood += stands
            channel.send({"request": asked["request"], "stands": stands, "said": said}, n_bytes)

    def _drafts(
        self, channel: Channel, held: "_Held", undisturbed_s: float
    ) -> Generator[simpy.Event, Any, Message | None]:
        """Returns what the device says next, once it has a slot to be looked at in; None where it says nothing for too
        long: that ends its channel."""
        env, heard, admission = self._front.env, channel.receive(), self._admission
        silent_s, granted, parked_s = env.now, held.granted, None
        assert granted is not None
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
            held.parked_s += env.now - parked_s
        if heard.triggered and heard.ok:
            message: Message | None = heard.value
            return message
        heard.defused = True
        channel.hang_up()
        return None

"""The cloud's role: instances that prefill, decode, or both, and slots that requests hold (P/D-Device 3.1, 3.2)."""

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import simpy

from kvferry.machine.channel import Channel, ChannelBroken
from kvferry.machine.handling import Forget, Refine, TakeIn, TakenIn
from kvferry.machine.instant import at
from kvferry.machine.machine import Lease, Machine, Refused
from kvferry.machine.ops import Extents, Prefill
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.asked import Served, asked_of, drafts_of
from kvferry.pipelines.assist.instance import Instance, Turn
from kvferry.pipelines.assist.messages import BadMessage, Message, failure, first_answer, spoil
from kvferry.pipelines.workload import OutOfMemory, Process
from kvferry.policies.assist.refiner import content_tokens
from kvferry.policies.assist.serving import Serving, Slots
from kvferry.specs.assist import AssistSpec
from kvferry.specs.model import ModelSpec

# Called with the seconds that a request waited for a slot, and those of its prefill and refinement.
Tell = Callable[[float, float, float], None]
# A share of whole tokens is whole up to so much.
_ROUNDING = 1e-9


@dataclass(slots=True)
class _Held:
    """What a request holds in the cloud."""

    # What it is called here, once its prompt has been taken in.
    request: int | None = None
    # An instance's number, its memory, and tokens.
    slot: tuple[int, Lease, int] | None = None
    # Whether the instance awaits it, and its turn there.
    comes: bool = False
    turn: Turn | None = None


class Cloud:
    """All instances behind one name. Those of `prefilling` prefill, those of `decoding` decode; one may do both.

    A slot of an instance that decodes is held from admission until the last token: early termination frees it. A
    request waits, first come first served, until one is free, the instance has memory for its KV, and steps with it
    would not take longer than every request is promised. Prefill goes to the instance with the fewest tokens in hand;
    KV moves from there over the instance's copy path, where the two differ.

    A device that shows tokens at a pace says which in its request. The cloud answers with the time per token that it
    keeps itself, and sends the first token no sooner than the others can follow it at the larger of the two.

    Left out: preemption, and prefixes shared between requests.
    """

    def __init__(
        self,
        front: Machine,
        prefilling: Sequence[Instance],
        decoding: Sequence[Instance],
        serving: Serving,
        model: ModelSpec,
        workload: AssistSpec,
        numbers: Callable[[int], int] = int,
        serves: Served | None = None,
    ) -> None:
        self._front, self._prefilling, self._decoding = front, prefilling, decoding
        self.slots = Slots(len(decoding), serving)
        self._model, self._workload = model, workload
        # What a device's request is called here, where devices of several runs number theirs alike.
        self._numbers = numbers
        # What it takes from devices that it does not know.
        self._serves = serves or Served()
        self._waiting: deque[tuple[int, simpy.Event]] = deque()
        # Seconds that slots were held, all together; requests that were served, and when the last one left.
        self.held_s = 0.0
        self.served = 0
        self.served_by_s = 0.0
        # It has died, as the workload's fault has it.
        self._gone = False

    @property
    def batch(self) -> float:
        """Requests that decoded together, in the mean over all steps; 0 without any."""
        steps = sum(one.steps for one in self._decoding)
        return sum(one.decoded for one in self._decoding) / steps if steps else 0.0

    def serve(self, device: str, tell: Tell) -> Generator[simpy.Event, Any, bool]:
        """One request of a device, from its prompt to the last token that it is to get. Returns whether there was one:
        False once the device has ended its channel. Whatever goes wrong with the request gives back what it held, and
        the device is told; then it is raised: BadMessage for what is no request, OutOfMemory for one that fits
        nowhere."""
        channel, fault = self._front.open(device), self._workload.fault
        if self._gone or (fault is not None and fault.what == "unreachable"):
            channel.close()
            return False
        message = yield channel.receive()
        if message is None:
            return False
        held = _Held()
        try:
            yield from self._served(channel, asked_of(message, self._serves), held, tell)
        except Exception as error:
            if held.turn is None or held.turn.done.triggered:
                self._give_back(held)
            else:
                # It is in the midst of a batch.
                held.turn.done.callbacks.append(lambda _: self._give_back(held))
            if not isinstance(error, ChannelBroken):
                with suppress(RuntimeError):
                    channel.send(failure(message, error), self._workload.handling.answer_token_bytes)
            raise
        return True

    def _served(self, channel: Channel, asked: Message, held: "_Held", tell: Tell) -> Process:
        """Leaves in `held` what is to be given back if this raises."""
        fault = self._workload.fault
        env, handling, request = self._front.env, self._workload.handling, self._numbers(asked["request"])
        held.request = request
        taken: TakenIn = yield self._front.handle(
            TakeIn(
                seconds=handling.forward_s,
                expects=TakenIn(asked["prompt"], None),
                text=asked["text"],
                # What it says itself, or looks at.
                answer=asked["answer" if asked["drafts"] else "tokens"],
            ),
            request=request,
        )
        prompt, tokens, came_s = taken.tokens, asked["tokens"], env.now
        if not prompt:
            raise BadMessage("what the device has sent is no request: its text is empty")
        self._serves.check(prompt=prompt)
        place, lease = yield self._admitted(prompt + tokens)
        began_s, decoding = env.now, self._decoding[place]
        held.slot = place, lease, prompt + tokens
        kept_s = decoding.kept_s(prompt + tokens)
        paced_s = None if asked["pace_s"] is None else max(asked["pace_s"], kept_s)
        prefilled, first = yield from self._prefill(asked, request, prompt, decoding if paced_s is not None else None)
        held.comes = paced_s is not None and prefilled is decoding
        there_s = env.now
        # KV moves while the prompt is refined, which the host does.
        moved = self._moved(prompt, prefilled, decoding) if tokens > 1 else None
        mask = (yield from self._refined(asked, request, prompt)) if asked["ratio"] < 1 else None
        turn = None
        if paced_s is not None:
            if moved is not None:
                yield moved
            turn = decoding.decode(request, prompt, tokens - 1, paced_s, came=held.comes)
            held.turn, held.comes = turn, False
            if turn.sends_s > env.now:
                yield at(env, turn.sends_s)
        tell(began_s - came_s, there_s - began_s, env.now - there_s)
        answer = first_answer(self._workload, asked, prompt, first, mask, taken.tokenizer, kept_s)
        breaks = fault if fault is not None and fault.what in ("dies", "stalls") else None
        if fault is not None:
            spoil(answer, fault)
        channel.send(answer, answer["bytes"])
        if turn is None and moved is not None:
            yield moved
        if asked["drafts"]:
            yield from self._verify(channel, decoding.machine, asked, request, prompt)
        elif tokens > 1:
            turn = held.turn = turn or decoding.decode(request, prompt, tokens - 1, None)
            stream = channel.stream(handling.answer_token_bytes)
            yield turn.into(stream, None if breaks is None else breaks.tokens - 1)
            if breaks is None or breaks.tokens >= tokens:
                stream.end()
            elif breaks.what == "dies":
                self._gone = True
                channel.close()
            yield turn.done
        self.held_s += env.now - began_s
        self.served += 1
        self.served_by_s = env.now
        self._give_back(held)

    def _give_back(self, held: "_Held") -> None:
        if held.request is not None:
            self._front.handle(Forget(), request=held.request)
        if held.slot is None:
            return
        place, lease, tokens = held.slot
        if held.comes:
            self._decoding[place].comes_not()
        self.slots.give_back(place)
        self._decoding[place].leave(tokens)
        lease.release()
        self._admit()

    def _refined(self, asked: Message, request: int, prompt: int) -> Generator[simpy.Event, Any, str | None]:
        """Returns the mask as text; None: a modelled one."""
        kept = content_tokens(prompt, self._workload.fixed, asked["ratio"])
        seconds = self._workload.handling.refine_token_s * prompt
        refine = Refine(seconds=seconds, tokens=kept, refiner=asked["refiner"])
        mask: str | None = yield self._front.handle(refine, request=request)
        return mask

    def _verify(self, channel: Channel, machine: Machine, asked: Message, request: int, prompt: int) -> Process:
        """Looks at what the device drafts, several tokens in one pass, until it drafts no more or is gone. In the
        modelled world the same share of each round stands, in whole tokens that add up to it."""
        stood, drafted_before, n_bytes = 0, 0, self._workload.handling.answer_token_bytes
        while True:
            try:
                message = yield channel.receive()
            except ChannelBroken:
                return
            found = None if message is None else drafts_of(message, asked)
            if found is None:
                return
            drafted, drafts = found
            # What a real model says of them: those that stand, and what it says instead of the first that does not.
            said = yield machine.submit(Prefill(drafted, prompt + 1 + stood, drafts), request=request)
            drafted_before += drafted
            stands = math.floor(drafted_before * asked["accepted"] + _ROUNDING) - stood if said is None else len(said)
            stood += stands
            channel.send({"request": asked["request"], "stands": stands, "said": said}, n_bytes)

    def _prefill(
        self, asked: Message, request: int, prompt: int, paced: Instance | None
    ) -> Generator[simpy.Event, Any, tuple[Instance, str | None]]:
        """Returns the instance that has the prompt's KV, and the first token. `paced`: the one that decodes at a pace
        then, if any."""
        instance, scene = min(self._prefilling, key=lambda one: one.prefilling), asked["scene"]
        instance.prefilling += prompt
        if instance.scene != scene:
            lora = Extents([0], [int(self._workload.lora_bytes)])
            instance.lora, instance.scene = instance.machine.copy(lora, "device"), scene
        if instance.lora is not None:
            yield instance.lora
        try:
            first = yield instance.prefill(request, prompt, comes=instance is paced)
        finally:
            instance.prefilling -= prompt
        return instance, first

    def _moved(self, prompt: int, prefilled: Instance, decoding: Instance) -> Ticket | None:
        """Fires when the instance that decodes has the prompt's KV; None: it has made it."""
        if prefilled is decoding:
            return None
        return prefilled.machine.copy(Extents([0], [round(prompt * self._model.kv_bytes_per_token)]), "host")

    def _admitted(self, tokens: int) -> simpy.Event:
        """Fires with the number of an instance and the lease of its memory for so many tokens, once there is a slot."""
        granted = self._front.env.event()
        self._waiting.append((tokens, granted))
        self._admit()
        return granted

    def _admit(self) -> None:
        while self._waiting:
            tokens, granted = self._waiting[0]
            leases: dict[int, Lease] = {}
            # Of instances that hold nothing else.
            never: list[Refused] = []

            def fits(
                place: int, tokens: int = tokens, leases: dict[int, Lease] = leases, never: list[Refused] = never
            ) -> bool:
                instance = self._decoding[place]
                if not instance.bears(tokens):
                    return False
                lease = instance.machine.memory.reserve(tokens * self._model.kv_bytes_per_token, "kv")
                if isinstance(lease, Refused):
                    if not self.slots.held[place]:
                        never.append(lease)
                    return False
                leases[place] = lease
                return True

            place = self.slots.take(fits)
            if place is None and not never:
                return
            self._waiting.popleft()
            if place is None:
                # It is told, not those behind it.
                granted.fail(OutOfMemory(f"an instance of the cloud: {never[0]}"))
                continue
            self._decoding[place].take(tokens)
            granted.succeed((place, leases[place]))

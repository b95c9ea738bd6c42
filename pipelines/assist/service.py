"""One request of a device in the cloud, from its prompt to the last token that it is to get."""

from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

import simpy

from kvferry.cloud.asked import asked_of
from kvferry.cloud.messages import BadMessage, Message, comes_apart, failure, first_answer, mask_behind, spoil
from kvferry.machine.channel import Channel, ChannelBroken
from kvferry.machine.handling import FORGET, Refine, TakeIn, TakenIn
from kvferry.machine.instant import at
from kvferry.machine.ops import Extents
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.admission import Place
from kvferry.pipelines.assist.cloud import Cloud
from kvferry.pipelines.assist.in_hand import Down, Prompt, Turn
from kvferry.pipelines.assist.rest import Mask, say_rest
from kvferry.pipelines.assist.verification import Verification
from kvferry.pipelines.workload import Process
from kvferry.policies.assist.refiner import content_tokens

# Called with the seconds that a request waited for a slot, and those of its prefill and refinement.
Tell = Callable[[float, float, float], None]


def serve_device(cloud: Cloud, device: str, tell: Tell) -> Generator[simpy.Event, Any, bool]:
    """Serves one request of a device. Returns whether there was one: False once the device has ended its channel or is
    gone. An error releases what the request held and is reported to the device. Raises BadMessage for a message that
    is no request, OutOfMemory for a request that fits nowhere."""
    channel, fault = cloud.front.outside.open(device), cloud.workload.fault
    if cloud.gone or (fault is not None and fault.what == "unreachable"):
        channel.close()
        return False
    service = message = None
    serving = cloud.front.env.active_process
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
            service = Service(cloud, channel, asked_of(message, cloud.serves), tell)
            yield from service.serve()
    except (ChannelBroken, simpy.Interrupt):
        # Nobody is left to hear of it.
        return False
    except Exception as error:
        with suppress(RuntimeError):
            channel.send(failure(message, error), cloud.workload.handling.answer_token_bytes)
        if not isinstance(error, Down):
            raise
    finally:
        watched.remove(end)
        if service is not None:
            service.give_back()
    return message is not None


class Service:
    """What a request holds in the cloud, and what is done with it."""

    def __init__(self, cloud: Cloud, channel: Channel, asked: Message, tell: Tell) -> None:
        self._cloud, self._channel, self._asked, self._tell = cloud, channel, asked, tell
        # What it is called here.
        self._request = cloud.numbers(asked["request"])
        # Its prompt, with memory of the instance that prefills where that is not the one that decodes.
        self._prompt: Prompt | None = None
        # What fires with its place with an instance that decodes, and its turn there.
        self._granted: simpy.Event | None = None
        self._turn: Turn | None = None

    def serve(self) -> Process:
        cloud, channel, asked, request = self._cloud, self._channel, self._asked, self._request
        env, workload, handling = cloud.front.env, cloud.workload, cloud.workload.handling
        taken: TakenIn = yield cloud.front.outside.handle(
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
        cloud.serves.check(prompt=prompt)
        place: Place | None = None
        if needs_slot and not cloud.apart:
            self._granted = cloud.admission.wanted(context + tokens)
            place = yield self._granted
        began_s = env.now
        first, prefilled = yield from self._prefilled(prompt, place)
        there_s = env.now
        # Which the host does, whether or not there is a slot yet.
        refining = self._refined(prompt) if asked["ratio"] < 1 else None
        if needs_slot and place is None:
            self._granted = cloud.admission.wanted(context + tokens)
            place = yield self._granted
        placed_s = began_s if place is None or not cloud.apart else env.now
        moved = self._moved(prefilled, context, place)
        apart = comes_apart(asked)
        mask: str | None = None if refining is None or apart else (yield refining)
        if place is not None and prefilled.is_lost and (moved is None or not moved.processed):
            raise Down("an instance has been down, and the prompt's KV is lost")
        turn, kept_s = None, cloud.decoding[0].holders.kept_s(context + tokens)
        paced = asked["pace_s"] is not None and not asked["drafts"]
        if moved is not None and (paced or asked.get("moved")):
            yield moved
        if place is not None and paced:
            paced_s = max(asked["pace_s"], kept_s)
            turn = self._turn = place.instance.decode(request, context, tokens - 1, paced_s)
            if turn.sends_s > env.now:
                yield at(env, turn.sends_s)
        waited_s = placed_s - there_s if cloud.apart and place is not None else began_s - came_s
        self._tell(waited_s, there_s - began_s, env.now - max(there_s, placed_s))
        answer = first_answer(workload, asked, prompt, first, mask, taken.tokenizer, kept_s)
        spoil(answer, workload.fault, has_mask=not apart)
        channel.send(answer, answer["bytes"])
        if turn is None and moved is not None:
            yield moved
        parked_s = 0.0
        if asked["drafts"]:
            assert self._granted is not None
            verification = Verification(cloud, channel, self._granted, request, asked)
            yield from verification.rounds(context)
            parked_s = verification.parked_s
        else:
            if place is not None:
                turn = self._turn = turn or place.instance.decode(request, context, tokens - 1, None)

            def masked(text: str | None) -> None:
                message = mask_behind(workload, asked, prompt, text)
                self._tell(waited_s, there_s - began_s, env.now - max(there_s, placed_s))
                spoil(message, workload.fault, has_mask=True)
                channel.send(message, message["bytes"])

            between = None if refining is None or not apart else Mask(refining, masked)
            silent_behind = None if cloud.breaks is None else cloud.breaks.tokens - 1
            whole = yield from say_rest(channel, handling.answer_token_bytes, turn, between, silent_behind)
            if not whole and cloud.breaks is not None and cloud.breaks.what == "dies":
                cloud.die(channel)
            if turn is not None:
                yield turn.done
        if place is not None:
            cloud.held_s += env.now - placed_s - parked_s
        cloud.served, cloud.served_by_s = cloud.served + 1, env.now

    def give_back(self) -> None:
        """All that a request holds, once no work on it is under way."""
        for work in (self._prompt, self._turn):
            if work is not None and not work.done.triggered:
                assert work.done.callbacks is not None
                work.done.callbacks.append(lambda _: self.give_back())
                work.instance.drop(work)
                return
        self._cloud.front.outside.handle(FORGET, request=self._request)
        if self._prompt is not None:
            self._prompt.free()
        if self._granted is not None:
            self._cloud.admission.forgo(self._granted)

    def _prefilled(self, prompt: int, place: Place | None) -> Generator[simpy.Event, Any, tuple[str | None, Prompt]]:
        """Returns the first token, once the prompt's KV is there. `place`: where there is memory for it already."""
        cloud, scene, known = self._cloud, self._asked["scene"], self._asked.get("known", 0)
        instance = cloud.balance.least() if place is None else place.instance
        cloud.balance.add(instance, prompt)
        try:
            if (lora := instance.lora(scene, cloud.workload.lora_bytes)) is not None:
                yield lora
            beginning = 0 if known or not cloud.serving.prefix_caching else cloud.workload.beginning
            shared = beginning if beginning and instance.kv.has_beginning(scene) else 0
            prefilled = self._prompt = instance.prefill(
                self._request, prompt - shared, has_memory=place is not None, before=known + shared
            )
            first: str | None = yield prefilled.done
            if beginning:
                instance.kv.keep_beginning(scene, beginning)
            cloud.prompt_tokens, cloud.known_tokens = cloud.prompt_tokens + prompt, cloud.known_tokens + shared
        finally:
            cloud.balance.add(instance, -prompt)
        return first, prefilled

    def _refined(self, prompt: int) -> simpy.Event:
        """Fires with the mask as text; None: a modelled one."""
        workload, asked = self._cloud.workload, self._asked
        kept = content_tokens(prompt, workload.fixed, asked["ratio"])
        refine = Refine(seconds=workload.handling.refine_token_s * prompt, tokens=kept, refiner=asked["refiner"])
        refining = self._cloud.front.outside.handle(refine, request=self._request)
        # The device may be gone before anybody waits for it.
        refining.defused = True
        return refining

    def _moved(self, prefilled: Prompt, context: int, place: Place | None) -> Ticket | None:
        """Fires when the instance that decodes has the prompt's KV, which the other gives up then; None: it has made
        it, or none decodes."""
        instance = prefilled.instance
        if place is None or place.instance is instance:
            return None
        moved = instance.machine.move(Extents([0], [round(instance.kv.n_bytes(context))]), "device", "host")
        assert moved.callbacks is not None
        moved.callbacks.append(lambda _: prefilled.free())
        return moved

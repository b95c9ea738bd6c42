"""The cloud's role: instances that prefill, decode, or both, and slots that requests hold (P/D-Device 3.1, 3.2)."""

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

import simpy

from kvferry.machine.channel import Channel, MessageStream
from kvferry.machine.machine import Lease, Machine, Refused
from kvferry.machine.ops import DecodeStep, Extents, Prefill
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.messages import response_bytes
from kvferry.pipelines.workload import OutOfMemory, Process
from kvferry.policies.assist.serving import Serving, Slots
from kvferry.specs.assist import AssistSpec
from kvferry.specs.model import ModelSpec

# Called with the seconds that a request waited for a slot, and those of its prefill and refinement.
Tell = Callable[[float, float, float], None]
# A share of whole tokens is whole up to so much.
_ROUNDING = 1e-9
# A step's mean context is rounded to so many tokens, by which its price changes by some ten-thousandths.
_CONTEXT_STEP = 16


class _Decoding:
    """A request that an instance decodes for, until its step of that number."""

    __slots__ = ("context", "done", "stream", "tokens", "until")

    def __init__(self, context: int, tokens: int, stream: MessageStream, done: simpy.Event, step: int) -> None:
        self.context, self.tokens, self.stream, self.done = context, tokens, stream, done
        self.until = step + tokens


class Instance:
    """One instance on its own machine. Requests join and leave at any step (continuous batching)."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        # Tokens of prompts that it has in hand.
        self.prefilling = 0
        # Whose LoRA it has.
        self.scene = 0
        self._running: list[_Decoding] = []
        # Those who join with the next step: context, tokens, stream, and what fires behind the last one.
        self._joining: list[tuple[int, int, MessageStream, simpy.Event]] = []
        self._idle = True
        # Tokens in the KV of those that run.
        self._context = 0
        # Steps, and tokens of all of them.
        self.steps = 0
        self.decoded = 0

    def decode(self, context: int, tokens: int, stream: MessageStream) -> simpy.Event:
        """Decode so many tokens into a stream; fires when the last one is there."""
        done = self.machine.env.event()
        # A step under way is not the first one of those that join.
        self._joining.append((context, tokens, stream, done))
        if self._idle:
            self._idle = False
            self.machine.env.process(self._decode())
        return done

    def _decode(self) -> Process:
        machine, running = self.machine, self._running
        while True:
            for context, tokens, stream, done in self._joining:
                running.append(_Decoding(context, tokens, stream, done, self.steps))
                self._context += context
            self._joining.clear()
            n = len(running)
            if not n:
                break
            mean = _CONTEXT_STEP * round(self._context / (n * _CONTEXT_STEP))
            yield machine.submit(DecodeStep(n, mean))
            self.steps += 1
            self.decoded += n
            self._context += n
            ended = False
            for one in running:
                one.stream.put()
                ended |= one.until == self.steps
            if ended:
                self._leave()
        self._idle = True

    def _leave(self) -> None:
        for one in [one for one in self._running if one.until == self.steps]:
            self._running.remove(one)
            self._context -= one.context + one.tokens
            one.done.succeed()


class Cloud:
    """All instances behind one name. Those of `prefilling` prefill, those of `decoding` decode; one may do both.

    A slot of an instance that decodes is held from admission until the last token: early termination frees it. A
    request waits, first come first served, until one is free and the instance has memory for its KV. Prefill goes to
    the instance with the fewest tokens in hand; KV moves from there over the instance's copy path, where the two
    differ.

    Left out: chunked prefill beside decoding, preemption, and prefixes shared between requests.
    """

    def __init__(
        self,
        front: Machine,
        prefilling: Sequence[Instance],
        decoding: Sequence[Instance],
        serving: Serving,
        model: ModelSpec,
        workload: AssistSpec,
    ) -> None:
        self._front, self._prefilling, self._decoding = front, prefilling, decoding
        self.slots = Slots(len(decoding), serving)
        self._model, self._workload = model, workload
        self._waiting: deque[tuple[float, simpy.Event]] = deque()
        # Seconds that slots were held, all together; requests that were served, and when the last one left.
        self.held_s = 0.0
        self.served = 0
        self.served_by_s = 0.0

    @property
    def batch(self) -> float:
        """Requests that decoded together, in the mean over all steps; 0 without any."""
        steps = sum(one.steps for one in self._decoding)
        return sum(one.decoded for one in self._decoding) / steps if steps else 0.0

    def serve(self, device: str, tell: Tell) -> Process:
        """One request of a device, from its prompt to the last token that it is to get."""
        channel = self._front.open(device)
        asked = yield channel.receive()
        if asked is None:
            return
        env, handling = self._front.env, self._workload.handling
        yield env.timeout(handling.forward_s)
        prompt, tokens = asked["prompt"], asked["tokens"]
        came_s = env.now
        place, lease = yield self._admitted((prompt + tokens) * self._model.kv_bytes_per_token)
        began_s, decoding = env.now, self._decoding[place]
        prefilled = yield from self._prefill(prompt, asked["scene"])
        there_s = env.now
        # KV moves while the prompt is refined, which the host does.
        moved = self._moved(prompt, prefilled, decoding) if tokens > 1 else None
        if asked["ratio"] < 1:
            yield env.timeout(handling.refine_token_s * prompt)
        tell(began_s - came_s, there_s - began_s, env.now - there_s)
        n_bytes = response_bytes(self._workload, prompt, asked["ratio"])
        channel.send({"tokens": tokens, "bytes": n_bytes}, n_bytes)
        if moved is not None:
            yield moved
        if asked["drafts"]:
            yield from self._verify(channel, decoding.machine, prompt, asked["accepted"])
        elif tokens > 1:
            stream = channel.stream(handling.answer_token_bytes)
            yield decoding.decode(prompt, tokens - 1, stream)
            stream.end()
        self.slots.give_back(place)
        lease.release()
        self.held_s += env.now - began_s
        self.served += 1
        self.served_by_s = env.now
        self._admit()

    def _verify(self, channel: Channel, machine: Machine, prompt: int, accepted: float) -> Process:
        """Looks at what the device drafts, several tokens in one pass, until it drafts no more. Of each round the same
        share stands, in whole tokens that add up to it."""
        stood, drafted_before, n_bytes = 0, 0, self._workload.handling.answer_token_bytes
        while drafted := (yield channel.receive())["drafted"]:
            yield machine.submit(Prefill(drafted, prompt + 1 + stood))
            drafted_before += drafted
            stands = math.floor(drafted_before * accepted + _ROUNDING) - stood
            stood += stands
            channel.send({"stands": stands}, n_bytes)

    def _prefill(self, prompt: int, scene: int) -> Generator[simpy.Event, Any, Instance]:
        """Returns the instance that has the prompt's KV."""
        instance = min(self._prefilling, key=lambda one: one.prefilling)
        instance.prefilling += prompt
        after: tuple[Ticket, ...] = ()
        if instance.scene != scene:
            lora = Extents([0], [int(self._workload.lora_bytes)])
            after, instance.scene = (instance.machine.copy(lora, "device"),), scene
        yield instance.machine.submit(Prefill(prompt, 0), after=after)
        instance.prefilling -= prompt
        return instance

    def _moved(self, prompt: int, prefilled: Instance, decoding: Instance) -> Ticket | None:
        """Fires when the instance that decodes has the prompt's KV; None: it has made it."""
        if prefilled is decoding:
            return None
        return prefilled.machine.copy(Extents([0], [round(prompt * self._model.kv_bytes_per_token)]), "host")

    def _admitted(self, kv_bytes: float) -> simpy.Event:
        """Fires with the number of an instance and the lease of its memory, once there is a slot."""
        granted = self._front.env.event()
        self._waiting.append((kv_bytes, granted))
        self._admit()
        return granted

    def _admit(self) -> None:
        while self._waiting:
            kv_bytes, granted = self._waiting[0]
            leases: dict[int, Lease] = {}

            def fits(place: int, kv_bytes: float = kv_bytes, leases: dict[int, Lease] = leases) -> bool:
                lease = self._decoding[place].machine.memory.reserve(kv_bytes, "kv")
                if isinstance(lease, Refused):
                    if not self.slots.held[place]:
                        raise OutOfMemory(f"an instance of the cloud: {lease}")
                    return False
                leases[place] = lease
                return True

            place = self.slots.take(fits)
            if place is None:
                return
            self._waiting.popleft()
            granted.succeed((place, leases[place]))

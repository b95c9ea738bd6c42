"""The device's role: it asks, shows what comes at a steady pace, and catches up by itself (P/D-Device 3.3)."""

from collections.abc import Generator
from typing import Any, TypeVar

import numpy as np
import simpy

from kvferry.machine.channel import Channel, Streamed
from kvferry.machine.machine import Lease, Machine, Refused
from kvferry.machine.ops import DecodeRun, Extents
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.estimates import Estimates, pieces, start_bytes, window_of
from kvferry.pipelines.assist.messages import ask, refined_tokens
from kvferry.pipelines.assist.story import Story
from kvferry.pipelines.assist.systems import Help
from kvferry.pipelines.workload import OutOfMemory, Process
from kvferry.policies.assist.speed_controller import shown_times_s
from kvferry.specs.scenario import Scenario

Returned = TypeVar("Returned")
# A part of a SimPy process, and what it returns.
Steps = Generator[simpy.Event, Any, Returned]


class Device:
    """What every device of a scenario does with a request; `front` is the cloud's name.

    A model that is not resident is loaded when a request comes, with the LoRA of what it is about, beside what is sent
    and awaited. Prefill of the prompt's fixed beginning does not wait for the mask either.
    """

    def __init__(self, scenario: Scenario, estimates: Estimates, front: str, wanted: Help) -> None:
        self._scenario, self._estimates, self._front = scenario, estimates, front
        self._workload, self._model = scenario.assist.workload, scenario.model
        self._window, self._help = window_of(scenario.device), wanted
        self._start_bytes = start_bytes(scenario)

    def alone(self, machine: Machine, story: Story) -> Process:
        """Answers a request without the cloud."""
        env, lease = machine.env, self._hold(machine, story.prompt + story.output)
        yield self._prefill(machine, story.prompt, 0, self._started(machine))
        story.first_s = story.own_first_s = env.now
        story.shown_s = np.array([env.now, *(yield from self._decoded(machine, story.output, story.prompt))])
        story.end_s = env.now
        lease.release()

    def through_the_cloud(self, machine: Machine, story: Story) -> Process:
        """Has the cloud answer, and shows its tokens as they come."""
        channel = yield from self._asked(machine, story)
        answer = yield channel.receive()
        story.first_s, story.response_bytes = machine.env.now, answer["bytes"]
        story.shown_s = yield from self._arrived(channel, story)
        story.end_s = machine.env.now

    def in_turns(self, machine: Machine, story: Story) -> Process:
        """Drafts some tokens at a time, which the cloud looks at before they are shown; both have prefilled the prompt
        (speculative decoding between edge and cloud, 2.2.1). The first token is its own."""
        env, wanted = machine.env, self._help
        lease = self._hold(machine, story.prompt + story.output)
        channel = yield from self._asked(machine, story, drafts=True)
        yield self._prefill(machine, story.prompt, 0, self._started(machine))
        story.first_s = story.own_first_s = env.now
        shown_s = [env.now]
        story.response_bytes = (yield channel.receive())["bytes"]
        while len(shown_s) < story.output:
            drafted, context = min(wanted.draft, story.output - len(shown_s)), story.prompt + len(shown_s)
            yield machine.submit(DecodeRun(drafted, self._seen(context)))
            channel.send({"drafted": drafted}, drafted * self._workload.handling.answer_token_bytes)
            shown_s += (yield channel.receive())["stands"] * [env.now]
        channel.send({"drafted": 0}, 0.0)
        story.shown_s, story.end_s = np.array(shown_s), env.now
        lease.release()

    def helped(self, machine: Machine, story: Story) -> Process:
        """Has the cloud help with so many tokens and such a part of the prompt as the story says."""
        env, workload = machine.env, self._workload
        refined = refined_tokens(workload, story.prompt, story.ratio)
        # Without a mask to wait for, nothing of the prompt waits.
        beginning = refined if story.ratio >= 1 else workload.beginning
        rest = refined - beginning
        lease = self._hold(machine, refined + story.output)
        channel = yield from self._asked(machine, story, self._least_pace_s(story, refined, rest, beginning))
        ready_s = env.now + self._estimates.start_s + (self._estimates.prefill_s(beginning) if beginning else 0.0)
        before = self._started(machine)
        if beginning:
            before = (self._prefill(machine, beginning, 0, before),)
        answer = yield channel.receive()
        story.first_s, story.response_bytes = env.now, answer["bytes"]
        if rest:
            yield env.timeout(workload.handling.unpack_token_s * story.prompt)
        story.unpacked_s = env.now
        expected_s = max(ready_s, env.now) + (self._estimates.prefill_s(rest, beginning) if rest else 0.0)
        story.pace_s = self._pace_s(story, refined, expected_s, answer["tpot_s"])
        yield self._prefill(machine, rest, beginning, before) if rest else before[0]
        story.own_first_s = env.now
        own_s: list[float] = []
        if story.output > story.tokens:
            # It decodes through the tokens that it was sent as well, and goes on from there (procedure 2).
            own_s = (yield from self._decoded(machine, story.output, refined))[story.tokens - 1 :]
        arrivals_s = yield from self._arrived(channel, story)
        story.shown_s = shown_times_s(arrivals_s, np.array(own_s), story.pace_s or 0.0)
        story.end_s = max(env.now, float(story.shown_s[-1]))
        lease.release()

    # --- parts of these ------------------------------------------------------------------------------------------

    def _asked(
        self, machine: Machine, story: Story, pace_s: float | None = None, drafts: bool = False
    ) -> Steps[Channel]:
        """Returns the channel over which the request has left."""
        workload = self._workload
        yield machine.env.timeout(workload.handling.prepare_s)
        channel = machine.open(self._front)
        message, n_bytes = ask(workload, story, pace_s=pace_s, drafts=drafts, accepted=self._help.accepted)
        channel.send(message, n_bytes)
        story.asked_s = machine.env.now
        return channel

    def _started(self, machine: Machine) -> tuple[Ticket, ...]:
        return (machine.read(Extents([0], [self._start_bytes])),) if self._start_bytes else ()

    def _prefill(self, machine: Machine, tokens: int, before: int, after: tuple[Ticket, ...]) -> Ticket:
        for piece in pieces(tokens, before, self._window):
            after = (machine.submit(piece, after=after),)
        return after[0]

    def _decoded(self, machine: Machine, tokens: int, context: int) -> Steps[list[float]]:
        """When the device has each token of its own behind the first; they come evenly."""
        if tokens < 2:
            return []
        run = machine.submit(DecodeRun(tokens - 1, self._seen(context + 1)))
        yield run
        assert run.start_s is not None and run.end_s is not None
        times_s: list[float] = np.linspace(run.start_s, run.end_s, tokens)[1:].tolist()
        return times_s

    def _seen(self, context: int) -> int:
        return context if self._window is None else min(context, self._window)

    def _arrived(self, channel: Channel, story: Story) -> Steps[np.ndarray]:
        """Returns when each token from the cloud arrived."""
        assert story.first_s is not None
        if story.tokens == 1:
            return np.array([story.first_s])
        streamed: Streamed = yield channel.receive()
        return np.array([story.first_s, *streamed.times_s])

    def _least_pace_s(self, story: Story, refined: int, rest: int, beginning: int) -> float | None:
        """What the pace of tokens from the cloud will be at least, before anything is measured; None where there is
        nothing to pace."""
        if story.tokens < 2:
            return None
        amortised_s = 0.0
        if rest and self._help.smoothing == "causal":
            unpack_s = self._workload.handling.unpack_token_s * story.prompt
            amortised_s = unpack_s + self._estimates.prefill_s(rest, beginning)
        return self._own_tpot_s(story, refined) + amortised_s / (story.tokens - 1)

    def _pace_s(self, story: Story, refined: int, expected_s: float, cloud_tpot_s: float) -> float | None:
        """The pace at which tokens from the cloud are shown (Eq. 4), where the device expects its own first token at
        `expected_s`, and never faster than the cloud promises them; None where there is nothing to pace. The paper
        lets prefill begin when the request is sent."""
        if story.tokens < 2:
            return None
        assert story.first_s is not None and story.asked_s is not None
        if self._help.smoothing == "paper":
            amortised_s = self._estimates.prefill_s(refined) - (story.first_s - story.asked_s)
        else:
            amortised_s = expected_s - story.first_s
        return max(cloud_tpot_s, self._own_tpot_s(story, refined) + max(0.0, amortised_s) / (story.tokens - 1))

    def _own_tpot_s(self, story: Story, refined: int) -> float:
        return self._estimates.tpot_s(refined + story.output / 2)

    def _hold(self, machine: Machine, tokens: int) -> Lease:
        """Memory for the KV of so many tokens, of which the device keeps no more than its window. Raises
        OutOfMemory."""
        kept = tokens if self._window is None else min(tokens, 2 * self._window)
        lease = machine.memory.reserve(kept * self._model.kv_bytes_per_token, "kv")
        if isinstance(lease, Refused):
            raise OutOfMemory(str(lease))
        return lease

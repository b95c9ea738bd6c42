"""A request on its device, whichever role the device plays in it."""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import simpy

from kvferry.cloud.messages import Message, ask, mask_apart, one_line
from kvferry.cloud.story import Story
from kvferry.machine.handling import FORGET, Prepare, Prepared, Unpack
from kvferry.machine.machine import Machine
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.answer import Answer
from kvferry.pipelines.assist.conversation import Conversation
from kvferry.pipelines.assist.estimates import Estimates
from kvferry.pipelines.assist.line import Line
from kvferry.pipelines.assist.own_model import OwnModel
from kvferry.pipelines.assist.pace import Pace
from kvferry.pipelines.workload import Process
from kvferry.policies.assist.help import Help, Patience
from kvferry.policies.assist.prompt_mask import BadMask, text_of_mask
from kvferry.specs.scenario import Scenario

# A mask that comes behind the first token is waited for as long as a refiner on a busy host might take, and at least
# so many times as long as it is expected to.
_MASK_S, _AT_LEAST_EXPECTED = 1.0, 2.0


class DeviceRequest:
    """``answer``: as it takes shape; ``own``: the device's model at work on it; ``pace``: of tokens from the cloud.
    ``help``: as the system wants it. `front` is the cloud's name."""

    def __init__(
        self,
        scenario: Scenario,
        estimates: Estimates,
        front: str,
        wanted: Help,
        own: Callable[[Scenario, Machine, Story, Answer], OwnModel],
        machine: Machine,
        story: Story,
    ) -> None:
        self.machine, self.story, self.estimates, self.help = machine, story, estimates, wanted
        self.workload, self._front = scenario.assist.workload, front
        self.answer = Answer(machine.outside.display())
        self.own = own(scenario, machine, story, self.answer)
        self.pace = Pace(self.workload, estimates, wanted, story, self.answer)

    @property
    def patience(self) -> Patience:
        story = self.story
        return self.estimates.patience(story.prompt, story.ratio, self.help, story.behind)

    @property
    def mask_patience_s(self) -> float:
        """How long a mask behind the first token is waited for: no longer than for any word of the cloud's."""
        wait_s, token_s = max(_MASK_S, _AT_LEAST_EXPECTED * self.pace.mask_s), self.patience.token_s
        return wait_s if token_s is None else min(wait_s, token_s)

    def prepared(self, seconds: float) -> Process:
        """Makes tokens of the prompt."""
        story = self.story
        prepare = Prepare(
            seconds=seconds,
            expects=Prepared(None, story.prompt, None),
            tokens=story.prompt,
            beginning=self.workload.beginning,
            question=self.workload.question,
            answer=story.output,
        )
        prepared: Prepared = yield self.machine.outside.handle(prepare, request=story.request)
        story.prompt, story.text, story.tokenizer = prepared.tokens, prepared.text, prepared.tokenizer
        story.wanted, story.vocabulary = prepared.wanted, prepared.vocabulary

    def asked(self, pace_s: float | None = None, drafts: bool = False) -> Generator[simpy.Event, Any, Conversation]:
        """Returns the conversation in which the request has left."""
        machine, story = self.machine, self.story
        yield from self.prepared(self.workload.handling.prepare_s)
        line = Line(machine.env, machine.outside.open(self._front), story, self._front)
        message, n_bytes = ask(self.workload, story, wanted=self.help, pace_s=pace_s, drafts=drafts)
        cloud = Conversation(line, apart=mask_apart(self.help, story.ratio))
        cloud.send(message, n_bytes)
        story.asked_s = machine.env.now
        story.hang_up = partial(cloud.break_off, "the device went offline")
        if story.is_offline:
            story.hang_up()
        return cloud

    def began(self, said: Message) -> None:
        """The cloud's first token is there."""
        story, now_s = self.story, self.machine.env.now
        story.first_s, story.response_bytes = now_s, said["bytes"]
        if said["tokenizer"] != story.tokenizer:
            named = one_line(str(said["tokenizer"]))
            story.happened = f"the cloud's tokenizer is another ({named}): its tokens are taken as text"
            self.answer.by_text = True
        self.answer.began(now_s, said["token"])

    def unpacked(self, said: Message | None, refined: int) -> Generator[simpy.Event, Any, int]:
        """Returns the tokens of the prompt that are to be prefilled: all of them, where the mask is of no use. `said`:
        has it; None: nothing has."""
        story = self.story
        if said is None:
            return story.prompt
        seconds = self.workload.handling.unpack_token_s * story.prompt
        try:
            if said["mask"] is not None and story.text is None:
                # Modelled masks have no text: what comes is damaged, or another prompt's.
                text_of_mask(said["mask"], ("", "", ""))
            unpack = Unpack(seconds=seconds, expects=refined, mask=said["mask"])
            tokens: int = yield self.machine.outside.handle(unpack, request=story.request)
        except BadMask as error:
            story.happened = f"{error}; the whole prompt is prefilled"
            return story.prompt
        return tokens

    def by_itself(
        self, prefilled: int, before: tuple[Ticket, ...], ready_s: float, cloud: Conversation | None = None
    ) -> Process:
        """Prefills what is left of the whole prompt, and goes on behind what came from the cloud. `cloud`: has not
        answered yet, or its next token is late; it is helpful as long as the device has no token of its own. `ready_s`:
        when the device is expected to have done what this comes after."""
        story, answer, env = self.story, self.answer, self.machine.env
        rest = story.prompt - prefilled
        own = self.own.prefill(rest, prefilled, before) if rest else before[0]
        expected_s = self.pace.expected_s(max(ready_s, env.now), rest, prefilled)
        if cloud is not None and not len(answer):
            said = yield from cloud.answer_before(own)
            if said is None:
                cloud = None
            else:
                self.began(said)
                cloud.tokens(answer)
                self.pace.show(story.prompt, expected_s, said["tpot_s"])
        if cloud is None:
            answer.following.end()
        first = yield own
        story.own_first_s = env.now
        if not len(answer):
            story.first_s = story.own_first_s
            answer.said(story.own_first_s, first)
        if len(answer) < story.output:
            yield from self.own.answer_whole(story.prompt, cloud)

    def ended(self) -> Process:
        story, machine = self.story, self.machine
        # What the machine asks next is another conversation.
        story.hang_up = None
        story.shown_s = yield self.answer.shown()
        story.end_s = max(machine.env.now, float(story.shown_s[-1]))
        story.came, story.answer = len(self.answer.came_s), self.answer.text
        machine.outside.handle(FORGET, request=story.request)
        self.own.release()

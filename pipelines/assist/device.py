"""The device's role: it asks, shows what comes at a steady pace, and catches up by itself (P/D-Device 3.3). Where the
cloud is gone, silent, or sends what cannot be used, it finishes the answer without it."""

from collections.abc import Generator
from functools import partial
from typing import Any, TypeVar

import numpy as np
import simpy

from kvferry.cloud.messages import Message, ask, mask_apart, one_line, refined_tokens
from kvferry.cloud.story import Story
from kvferry.machine.channel import Channel
from kvferry.machine.following import Following
from kvferry.machine.handles import Continued
from kvferry.machine.handling import FORGET, Prepare, Prepared, Unpack
from kvferry.machine.instant import at
from kvferry.machine.machine import Lease, Machine, Refused
from kvferry.machine.ops import DecodeRun, Extents, Prefill
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.answer import Answer
from kvferry.pipelines.assist.conversation import Conversation, behind_own
from kvferry.pipelines.assist.estimates import Estimates, pieces, start_bytes, window_of
from kvferry.pipelines.assist.pace import Pace
from kvferry.pipelines.workload import Process
from kvferry.policies.assist.help import Help, Patience, late_s
from kvferry.policies.assist.prompt_mask import BadMask, text_of_mask
from kvferry.policies.decode.attention_kernel import AttentionKernel
from kvferry.specs.errors import OutOfMemory
from kvferry.specs.scenario import Scenario

Returned = TypeVar("Returned")
# A mask that comes behind the first token is waited for as long as a refiner on a busy host might take, and at least
# so many times as long as it is expected to.
_MASK_S, _AT_LEAST_EXPECTED = 1.0, 2.0
# A part of a SimPy process, and what it returns.
Steps = Generator[simpy.Event, Any, Returned]


class Device:
    """What every device of a scenario does with a request; `front` is the cloud's name.

    A model that is not resident is loaded when a request comes, with the LoRA of what it is about, beside what is sent
    and awaited. Prefill of the prompt's fixed beginning does not wait for the mask either. ``kernel``: how it attends
    where it is modelled. ``keeps``: the KV of whole answers, so that tokens of the cloud's are read in any case.
    """

    kernel = AttentionKernel()
    keeps = False

    def __init__(self, scenario: Scenario, estimates: Estimates, front: str, wanted: Help) -> None:
        self._scenario, self._estimates, self._front = scenario, estimates, front
        self._workload, self._model = scenario.assist.workload, scenario.model
        self._window, self._help = window_of(scenario.device), wanted
        self._pace = Pace(self._workload, estimates, wanted)
        # By prompt, ratio, and what the prompt goes on from.
        self._waits: dict[tuple[int, float, int, int], Patience] = {}
        n_bytes = start_bytes(scenario)
        # What it reads before it can prefill; None: nothing.
        self._start = Extents(np.array([0]), np.array([n_bytes])) if n_bytes else None

    def alone(self, machine: Machine, story: Story) -> Process:
        """Answers a request without the cloud."""
        lease, answer = self._hold(machine, story.prompt + story.output), Answer(machine.outside.display())
        yield from self._prepared(machine, story, 0.0)
        yield from self._by_itself(machine, story, answer, 0, self._started(machine, story), 0.0)
        yield from self._ended(machine, story, answer, lease)

    def through_the_cloud(self, machine: Machine, story: Story) -> Process:
        """Has the cloud answer, and shows its tokens as they come."""
        answer, leases = Answer(machine.outside.display()), []
        cloud = yield from self._asked(machine, story)
        said = yield from cloud.answer(self._patience(story).answer_s)
        if said is not None:
            self._began(machine, story, answer, said)
            answer.paced(0.0)
            cloud.tokens(answer)
            promised_s = min(said["tpot_s"], self._workload.tolerable_tpot_s)
            yield from cloud.late(late_s(self._patience(story).token_s, promised_s))
        if len(answer) < story.output:
            leases.append(self._hold(machine, story.prompt + story.output))
            before, ready_s = self._started(machine, story), machine.env.now + self._estimates.start_s
            late = None if said is not None and cloud.coming.triggered else cloud
            yield from self._by_itself(machine, story, answer, 0, before, ready_s, late)
        yield from self._ended(machine, story, answer, *leases)
        yield from cloud.done()

    def in_turns(self, machine: Machine, story: Story) -> Process:
        """Drafts some tokens at a time, which the cloud looks at before they are shown; both have prefilled the prompt
        (speculative decoding between edge and cloud, 2.2.1). The first token is its own."""
        env, most, patience_s = machine.env, self._help.draft, self._patience(story).answer_s
        lease, answer = self._hold(machine, story.prompt + story.output), Answer(machine.outside.display())
        cloud = yield from self._asked(machine, story, drafts=True)
        first = yield self._prefill(machine, story, story.prompt, 0, self._started(machine, story))
        story.first_s = story.own_first_s = env.now
        answer.said(env.now, first)
        # It has all that it needs to go on by itself, and waits for nothing that is late.
        round_s, tolerable_s = self._estimates.round_s(most), self._workload.tolerable_tpot_s
        said = yield from cloud.answer(late_s(patience_s, round_s + tolerable_s))
        if said is not None and said["tokenizer"] != story.tokenizer:
            # Drafts are looked at token by token.
            cloud.send({"drafted": 0}, 0.0)
            story.happened = f"the cloud's tokenizer is another ({_named(said)}): it cannot look at drafts"
            said = None
        if said is not None:
            story.response_bytes = said["bytes"]
            promised_s = round_s + min(said["tpot_s"], tolerable_s)
        while said is not None and len(answer) < story.output:
            drafted, context = min(most, story.output - len(answer)), story.prompt + len(answer)
            stands = Continued(stands=tuple(answer.own))
            run = machine.submit(DecodeRun(drafted, context, stands, window_tokens=self._window), request=story.request)
            message = {"drafted": drafted, "before": tuple(answer.own), "said": (yield run)}
            cloud.send(message, drafted * self._workload.handling.answer_token_bytes)
            said = yield from cloud.verdict(drafted, late_s(patience_s, promised_s))
            if said is not None:
                answer.said_all(said["stands"] * [env.now], said["said"])
        if said is not None:
            cloud.send({"drafted": 0}, 0.0)
        else:
            # It may wait for drafts that never come, also where the answer is whole.
            cloud.leave()
            if len(answer) < story.output:
                yield from self._goes_on(machine, story, answer, story.behind.here + story.prompt, tuple(answer.own))
        yield from self._ended(machine, story, answer, lease)

    def helped(self, machine: Machine, story: Story) -> Process:
        """Has the cloud help with this many tokens and such a part of the prompt as the story says."""
        env, answer = machine.env, Answer(machine.outside.display())
        refined = refined_tokens(self._workload, story.prompt, story.ratio)
        # Without a mask to wait for, nothing of the prompt waits.
        beginning = refined if story.ratio >= 1 else self._workload.beginning
        leases = [self._hold(machine, refined + story.output)]
        least_s = self._pace.least_s(story, refined, refined - beginning, beginning)
        cloud = yield from self._asked(machine, story, least_s)
        here = story.behind.here
        ready_s = env.now + self._estimates.start_s + self._estimates.prefill_s(beginning, here)
        before = self._started(machine, story)
        if beginning:
            before = (self._prefill(machine, story, beginning, 0, before),)
        # Which of the two is there first is shown, where its own prefill is under way.
        own = before[0] if beginning == story.prompt else None
        said = yield from cloud.answer(self._patience(story).answer_s, own)
        if said is None:
            leases.append(self._hold(machine, story.prompt - refined))
            yield from self._by_itself(machine, story, answer, beginning, before, ready_s, cloud)
        else:
            self._began(machine, story, answer, said)
            coming = cloud.tokens(answer)
            if follows := cloud.mask_follows:
                self._promised(machine, story, answer, refined, beginning, ready_s, least_s, said)
            masked = yield from cloud.mask(self._mask_patience_s(story))
            if masked is not None and follows:
                story.response_bytes += masked["bytes"]
            if refined > beginning:
                expected, refined = refined, (yield from self._unpacked(machine, story, masked, refined))
                if refined > expected:
                    leases.append(self._hold(machine, refined - expected))
            rest = refined - beginning
            story.unpacked_s = env.now
            expected_s = self._expected_s(machine, ready_s, rest, here + beginning)
            if follows:
                self._kept(machine, story, answer, refined, expected_s)
            else:
                self._paced(story, answer, refined, expected_s, said)
            yield self._prefill(machine, story, rest, beginning, before) if rest else before[0]
            story.own_first_s = env.now
            if self._help.catch_up == "prefill" and answer.all_came and 1 < len(answer) < story.output:
                yield from self._caught_up(machine, story, refined, answer)
            elif self.keeps or not coming.triggered or len(answer) < story.output:
                # It decodes through the tokens that it was sent as well, and goes on from there (procedure 2).
                yield from self._decoded(machine, story, refined, answer, cloud)
        yield from self._ended(machine, story, answer, *leases)
        yield from cloud.done()

    # --- parts of these ------------------------------------------------------------------------------------------

    def _prepared(self, machine: Machine, story: Story, seconds: float) -> Steps[None]:
        prepare = Prepare(
            seconds=seconds,
            expects=Prepared(None, story.prompt, None),
            tokens=story.prompt,
            beginning=self._workload.beginning,
            question=self._workload.question,
            answer=story.output,
        )
        prepared: Prepared = yield machine.outside.handle(prepare, request=story.request)
        story.prompt, story.text, story.tokenizer = prepared.tokens, prepared.text, prepared.tokenizer
        story.wanted, story.vocabulary = prepared.wanted, prepared.vocabulary

    def _asked(
        self, machine: Machine, story: Story, pace_s: float | None = None, drafts: bool = False
    ) -> Steps[Conversation]:
        """Returns the conversation in which the request has left."""
        yield from self._prepared(machine, story, self._workload.handling.prepare_s)
        channel: Channel = machine.outside.open(self._front)
        message, n_bytes = ask(self._workload, story, wanted=self._help, pace_s=pace_s, drafts=drafts)
        cloud = Conversation(machine.env, channel, story, self._front, mask_apart(self._help, story.ratio))
        cloud.send(message, n_bytes)
        story.asked_s = machine.env.now
        story.hang_up = partial(cloud.break_off, "the device went offline")
        if story.is_offline:
            story.hang_up()
        return cloud

    def _patience(self, story: Story) -> Patience:
        said = self._help.patience_s
        if said is None or isinstance(said, float | int):
            return Patience(answer_s=said, token_s=said)
        key = story.prompt, story.ratio, story.behind.here, story.behind.there
        if key not in self._waits:
            self._waits[key] = self._estimates.patience(story.prompt, story.ratio, self._help, story.behind)
        return self._waits[key]

    def _began(self, machine: Machine, story: Story, answer: Answer, said: Message) -> None:
        """The cloud's first token is there."""
        story.first_s, story.response_bytes = machine.env.now, said["bytes"]
        if said["tokenizer"] != story.tokenizer:
            story.happened = f"the cloud's tokenizer is another ({_named(said)}): its tokens are taken as text"
            answer.by_text = True
        answer.began(machine.env.now, said["token"])

    def _mask_patience_s(self, story: Story) -> float:
        """How long a mask behind the first token is waited for: no longer than for any word of the cloud's."""
        wait_s, token_s = max(_MASK_S, _AT_LEAST_EXPECTED * self._pace.mask_s(story)), self._patience(story).token_s
        return wait_s if token_s is None else min(wait_s, token_s)

    def _unpacked(self, machine: Machine, story: Story, said: Message | None, refined: int) -> Steps[int]:
        """Returns the tokens of the prompt that are to be prefilled: all of them, where the mask is of no use. `said`:
        has it; None: nothing has."""
        if said is None:
            return story.prompt
        seconds = self._workload.handling.unpack_token_s * story.prompt
        try:
            if said["mask"] is not None and story.text is None:
                # Modelled masks have no text: what comes is damaged, or another prompt's.
                text_of_mask(said["mask"], ("", "", ""))
            tokens: int = yield machine.outside.handle(
                Unpack(seconds=seconds, expects=refined, mask=said["mask"]), request=story.request
            )
        except BadMask as error:
            story.happened = f"{error}; the whole prompt is prefilled"
            return story.prompt
        return tokens

    def _started(self, machine: Machine, story: Story) -> tuple[Ticket, ...]:
        if self._start is None:
            return ()
        return (machine.move(self._start, "storage", "device", request=story.request),)

    def _prefill(self, machine: Machine, story: Story, tokens: int, before: int, after: tuple[Ticket, ...]) -> Ticket:
        """Fires with the token that follows."""
        for piece in pieces(tokens, story.behind.here + before, self._window):
            after = (machine.submit(piece, after=after, request=story.request),)
        return after[0]

    def _by_itself(
        self,
        machine: Machine,
        story: Story,
        answer: Answer,
        prefilled: int,
        before: tuple[Ticket, ...],
        ready_s: float,
        cloud: Conversation | None = None,
    ) -> Process:
        """Prefills what is left of the whole prompt, and goes on behind what came from the cloud. `cloud`: has not
        answered yet, or its next token is late; it is helpful as long as the device has no token of its own. `ready_s`:
        when the device is expected to have done what this comes after."""
        rest = story.prompt - prefilled
        own = self._prefill(machine, story, rest, prefilled, before) if rest else before[0]
        expected_s = self._expected_s(machine, ready_s, rest, story.behind.here + prefilled)
        if cloud is not None and not len(answer):
            said = yield from cloud.answer_before(own)
            if said is None:
                cloud = None
            else:
                self._began(machine, story, answer, said)
                cloud.tokens(answer)
                self._paced(story, answer, story.prompt, expected_s, said)
        if cloud is None:
            answer.following.end()
        first = yield own
        story.own_first_s = machine.env.now
        if not len(answer):
            story.first_s = story.own_first_s
            answer.said(story.own_first_s, first)
        if len(answer) < story.output:
            yield from self._decoded(machine, story, story.prompt, answer, cloud)

    def _decoded(
        self, machine: Machine, story: Story, context: int, answer: Answer, cloud: Conversation | None = None
    ) -> Process:
        """Decodes the whole answer behind its first token, and shows what the cloud does not say in time."""
        if story.output < 2:
            return
        of = Continued(answer.following, answer.said, tuple(answer.own), answer.by_text)
        context += story.behind.here + 1
        run = machine.submit(
            DecodeRun(story.output - 1, context, of, window_tokens=self._window, kernel=self.kernel),
            request=story.request,
        )
        corrected: int | None = yield run
        story.corrected = corrected
        if corrected is None:
            # A modelled machine waits for no token: which of them were late is known when all are due.
            assert run.start_s is not None and run.end_s is not None
            if cloud is not None and not cloud.coming.triggered:
                yield cloud.coming | at(machine.env, answer.due_s(story.tokens - 1))
                if not cloud.coming.triggered:
                    cloud.leave()
                    yield cloud.coming
            answer.decoded(run.start_s, run.end_s, story.output, story.tokens)
        if (came := len(answer.came_s)) < story.tokens and story.happened is None:
            story.happened = behind_own(came, story.tokens)

    def _caught_up(self, machine: Machine, story: Story, refined: int, answer: Answer) -> Process:
        """Takes in all of the cloud's tokens but the last in one pass, and decodes from that one on."""
        stands, before = tuple(answer.following.pieces), story.behind.here + refined
        seen = before if self._window is None else min(before, self._window)
        machine.submit(Prefill(len(stands) - 1, seen, (stands[:-1], ())), request=story.request)
        yield from self._goes_on(machine, story, answer, before, stands)

    def _goes_on(self, machine: Machine, story: Story, answer: Answer, before: int, stands: tuple[Any, ...]) -> Process:
        """Decodes the rest of the answer behind `before` tokens and what `stands`, whose KV is there."""
        nothing, came = Following(), len(stands)
        nothing.end()
        of = Continued(nothing, answer.said, stands, read=came)
        run = machine.submit(
            DecodeRun(story.output - came, before + came, of, window_tokens=self._window, kernel=self.kernel),
            request=story.request,
        )
        if (yield run) is None:
            assert run.start_s is not None and run.end_s is not None
            answer.caught_up(run.start_s, run.end_s, story.output - came)

    def _ended(self, machine: Machine, story: Story, answer: Answer, *leases: Lease) -> Process:
        # What the machine asks next is another conversation.
        story.hang_up = None
        story.shown_s = yield answer.shown()
        story.end_s = max(machine.env.now, float(story.shown_s[-1]))
        story.came, story.answer = len(answer.came_s), answer.text
        machine.outside.handle(FORGET, request=story.request)
        for lease in leases:
            lease.release()

    def _expected_s(self, machine: Machine, ready_s: float, rest: int, before: int) -> float:
        """When the device's own first token is expected, where it can prefill the rest of a prompt from `ready_s`."""
        return max(ready_s, machine.env.now) + self._estimates.prefill_s(rest, before)

    def _paced(self, story: Story, answer: Answer, refined: int, expected_s: float, said: Message) -> None:
        """Show tokens at the pace of Eq. 4; as they come, where all are to come from the cloud."""
        story.pace_s = self._pace.of_s(story, refined, expected_s, said["tpot_s"])
        answer.paced(story.pace_s or 0.0)

    def _promised(
        self,
        machine: Machine,
        story: Story,
        answer: Answer,
        refined: int,
        beginning: int,
        ready_s: float,
        least_s: float | None,
        said: Message,
    ) -> None:
        """The same before the mask is there, no faster than the cloud was asked for."""
        unpacked_s = machine.env.now + self._pace.mask_s(story) + self._workload.handling.unpack_token_s * story.prompt
        rest, here = refined - beginning, story.behind.here
        expected_s = max(ready_s, unpacked_s) + self._estimates.prefill_s(rest, here + beginning)
        self._paced(story, answer, refined, expected_s, said)
        if story.pace_s is not None and least_s is not None and story.pace_s < least_s:
            story.pace_s = least_s
            answer.paced(least_s)

    def _kept(self, machine: Machine, story: Story, answer: Answer, refined: int, expected_s: float) -> None:
        """What is left of the cloud's tokens covers a first token of the device's own that is later than promised."""
        if story.pace_s is not None:
            place = answer.due_behind(machine.env.now)
            rest_s = self._pace.rest_s(story, refined, expected_s, place, answer.due_s(place - 1))
            if rest_s is not None:
                answer.put_off(place, rest_s)

    def _hold(self, machine: Machine, tokens: int) -> Lease:
        """Memory for the KV of this many tokens; the device keeps no more than its window. Raises
        OutOfMemory."""
        kept = tokens if self._window is None else min(tokens, 2 * self._window)
        lease = machine.memory.reserve(kept * self._model.kv_bytes_per_token, "kv")
        if isinstance(lease, Refused):
            raise OutOfMemory(str(lease))
        return lease


def _named(said: Message) -> str:
    """The cloud's tokenizer."""
    return one_line(str(said["tokenizer"]))

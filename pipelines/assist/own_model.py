"""A device's own model at work on a request."""

from typing import Any

import numpy as np

from kvferry.cloud.story import Story
from kvferry.machine.following import Following
from kvferry.machine.handles import Continued
from kvferry.machine.instant import at
from kvferry.machine.machine import Lease, Machine, Refused
from kvferry.machine.ops import DecodeRun, Extents, Prefill
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.answer import Answer
from kvferry.pipelines.assist.conversation import Conversation, behind_own
from kvferry.pipelines.assist.estimates import pieces, start_bytes, window_of
from kvferry.pipelines.workload import Process
from kvferry.policies.decode.attention_kernel import AttentionKernel
from kvferry.specs.errors import OutOfMemory
from kvferry.specs.scenario import Scenario


class OwnModel:
    """A model that is not resident is loaded when a request comes, with the LoRA of what it is about. ``kernel``: how
    it attends where it is modelled. ``keeps``: the KV of whole answers, so that tokens of the cloud's are read in any
    case."""

    kernel = AttentionKernel()
    keeps = False

    def __init__(self, scenario: Scenario, machine: Machine, story: Story, answer: Answer) -> None:
        self._scenario, self._machine, self._story, self._answer = scenario, machine, story, answer
        self._window = window_of(scenario.device)
        self._leases: list[Lease] = []

    def hold(self, tokens: int) -> None:
        """Reserves memory for the KV of this many tokens, which `release` gives back; the device keeps no more than its
        window. Raises OutOfMemory."""
        kept = tokens if self._window is None else min(tokens, 2 * self._window)
        lease = self._machine.memory.reserve(kept * self._scenario.model.kv_bytes_per_token, "kv")
        if isinstance(lease, Refused):
            raise OutOfMemory(str(lease))
        self._leases.append(lease)

    def release(self) -> None:
        for lease in self._leases:
            lease.release()

    def load(self) -> tuple[Ticket, ...]:
        """Fires when the model is in memory; nothing, where it is."""
        if not (n_bytes := start_bytes(self._scenario)):
            return ()
        read = Extents(np.array([0]), np.array([n_bytes]))
        return (self._machine.move(read, "storage", "device", request=self._story.request),)

    def prefill(self, tokens: int, before: int, after: tuple[Ticket, ...]) -> Ticket:
        """Fires with the token that follows so many of the prompt behind those `before`."""
        for piece in pieces(tokens, self._story.behind.here + before, self._window):
            after = (self._machine.submit(piece, after=after, request=self._story.request),)
        return after[0]

    def decode(self, tokens: int, context: int, of: Continued) -> Ticket:
        """Fires with this many tokens behind so much context."""
        run = DecodeRun(tokens, context, of, window_tokens=self._window, kernel=self.kernel)
        return self._machine.submit(run, request=self._story.request)

    def answer_whole(self, read: int, cloud: Conversation | None = None) -> Process:
        """Decodes the whole answer behind its first token and this much of the prompt, and shows what the cloud does
        not say in time."""
        story, answer = self._story, self._answer
        if story.output < 2:
            return
        of = Continued(answer.following, answer.said, tuple(answer.own), answer.by_text)
        run = self.decode(story.output - 1, story.behind.here + read + 1, of)
        corrected: int | None = yield run
        story.corrected = corrected
        if corrected is None:
            # A modelled machine waits for no token: which of them were late is known when all are due.
            assert run.start_s is not None and run.end_s is not None
            if cloud is not None and not cloud.coming.triggered:
                yield cloud.coming | at(self._machine.env, answer.due_s(story.tokens - 1))
                if not cloud.coming.triggered:
                    cloud.leave()
                    yield cloud.coming
            answer.decoded(run.start_s, run.end_s, story.output, story.tokens)
        if (came := len(answer.came_s)) < story.tokens and story.happened is None:
            story.happened = behind_own(came, story.tokens)

    def catch_up(self, read: int) -> Process:
        """Takes in all of the cloud's tokens but the last in one pass, and decodes from that one on."""
        stands, before = tuple(self._answer.following.pieces), self._story.behind.here + read
        seen = before if self._window is None else min(before, self._window)
        self._machine.submit(Prefill(len(stands) - 1, seen, (stands[:-1], ())), request=self._story.request)
        yield from self.go_on(before, stands)

    def go_on(self, before: int, stands: tuple[Any, ...]) -> Process:
        """Decodes the rest of the answer behind `before` tokens and what `stands`, whose KV is there."""
        nothing, came, tokens = Following(), len(stands), self._story.output - len(stands)
        nothing.end()
        run = self.decode(tokens, before + came, Continued(nothing, self._answer.said, stands, read=came))
        if (yield run) is None:
            assert run.start_s is not None and run.end_s is not None
            self._answer.caught_up(run.start_s, run.end_s, tokens)

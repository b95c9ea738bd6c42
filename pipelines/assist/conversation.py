"""What a device hears of a cloud about one request, and what it makes of silence and of a peer that is gone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import simpy
from simpy.events import AnyOf

from kvferry.cloud.messages import BadMessage, Message, failed_of
from kvferry.cloud.said import answer_of, verdict_of
from kvferry.cloud.story import Story
from kvferry.machine.channel import ChannelBroken
from kvferry.machine.instant import call_off
from kvferry.pipelines.assist.answer import Answer
from kvferry.pipelines.assist.line import Line
from kvferry.pipelines.assist.token_stream import TokenStream

# Instants are the same up to so much.
_ROUNDING_S = 1e-9

Steps = Generator[simpy.Event, Any, Message | None]


def behind_own(came: int, tokens: int) -> str:
    """Of a token that came too late, of this many."""
    return f"token {came + 1:,} of {tokens:,} was not there when the device had its own, with which it went on"


class Conversation:
    """Nothing here raises when the cloud fails: the story says what happened. What the device has not asked for does
    not count: neither as an answer nor as a sign of life.

    ``coming`` fires when the last of the tokens that were asked for is there, or when it is clear that no more will
    come. `apart`: a mask was asked for in a message of its own. Where something is waited for within so many seconds,
    None is as long as it takes. ``leave``: listen no longer, and let the cloud know."""

    def __init__(self, line: Line, *, apart: bool) -> None:
        self._line, self._apart = line, apart
        self.leave, self.coming = line.leave, line.env.event()
        self._first: simpy.Event | None = None
        # What comes behind the first response; None: nothing has been asked for.
        self._stream: TokenStream | None = None

    def send(self, message: Message, n_bytes: float) -> None:
        """It may be lost: then nothing comes back."""
        sent = self._line.channel.send(message, n_bytes)
        if not sent.processed:
            assert sent.callbacks is not None
            sent.callbacks.append(self._sent)

    def answer(self, within_s: float | None, ready: simpy.Event | None = None) -> Steps:
        """Returns the cloud's first response; None: there will be none, or none has come within so long, or before this
        event. Then it is still listened for."""
        self._first = _Awaited(self._line, answer_of).said
        return (yield from self._within(within_s, self._first, ready=ready))

    def answer_before(self, ready: simpy.Event) -> Steps:
        """Returns the first response where it comes before this event does; leaves the conversation where it does
        not."""
        assert self._first is not None
        if not self._first.triggered:
            yield self._first | ready
        if self._first.triggered and self._first.value is not None:
            return self._first.value
        self._line.happened(behind_own(0, self._line.story.tokens))
        self.leave()
        return None

    def mask(self, within_s: float) -> Steps:
        """Returns the message with the mask: the first response, or one behind it, for which `tokens` listens. None:
        there will be none, or none has come for so long."""
        assert self._first is not None and self._stream is not None
        said: Message | None = self._first.value
        return said if self._stream.mask is None else (yield from self._within(within_s, self._stream.mask, "no mask"))

    def verdict(self, drafted: int, within_s: float | None) -> Steps:
        """Returns what the cloud says of this many drafts; None: nothing any more, or not within so long."""
        verdict = _Awaited(self._line, partial(verdict_of, drafted=drafted)).said
        return (yield from self._within(within_s, verdict))

    def late(self, within_s: float | None) -> Generator[simpy.Event, Any, None]:
        """Ends once no further token has come for so long, or with ``coming``."""
        if within_s is None:
            yield self.coming
            return
        env, last_s = self._line.env, self._line.env.now
        while not self.coming.triggered and (left_s := last_s + within_s - env.now) > _ROUNDING_S:
            yield self.coming | env.timeout(left_s)
            last_s = max(last_s, self._line.channel.heard_s)

    @property
    def mask_follows(self) -> bool:
        """Whether the first response has come, and the mask in it is to come in a message of its own."""
        said: Message | None = None if self._first is None or not self._first.triggered else self._first.value
        return self._apart and said is not None and said["mask"] is None

    def tokens(self, answer: Answer) -> simpy.Event:
        """Has the answer told each further token, and listens for a mask that follows; returns ``coming``."""
        self._stream = TokenStream(self._line, answer, self.coming, follows=self.mask_follows)
        return self.coming

    def break_off(self, why: str) -> None:
        """Hang up, unless all that was asked for is there."""
        if not self.coming.triggered or (self._stream is not None and self._stream.lacks_mask):
            self._line.happened(why)
            self._line.channel.hang_up()

    def done(self) -> Generator[simpy.Event, Any, None]:
        """The answer is whole. A cloud that goes on all the same is left."""
        if self._stream is not None:
            yield from self._stream.done()

    def _within(
        self, patience_s: float | None, said: simpy.Event, missing: str = "nothing", ready: simpy.Event | None = None
    ) -> Steps:
        env = self._line.env
        over = None if patience_s is None else env.timeout(patience_s)
        yield AnyOf(env, [event for event in (said, over, ready) if event is not None])
        if over is not None and not over.processed:
            call_off(over)
        if said.triggered:
            return said.value
        if over is not None and over.processed:
            self._line.happened(f"{missing} has come from {self._line.peer} for {patience_s:g} s")
        return None

    def _sent(self, sent: simpy.Event) -> None:
        if not sent.ok:
            sent.defused = True
            # What a cloud says when it refuses: there will be no answer. Where it is gone, what is awaited tells.
            if type(sent.value) is ChannelBroken:
                self._line.happened(str(sent.value))
                self.leave()


class _Awaited:
    """The next message that is what was asked for, as `checked` finds. ``said`` fires with it; None: there will be
    none. An object, as functions that call each other would be garbage in a circle."""

    __slots__ = ("_checked", "_line", "_stray", "said")

    def __init__(self, line: Line, checked: Callable[[Any, Story], Message | None]) -> None:
        self._line, self._checked = line, checked
        self.said = line.env.event()
        self._stray = 0
        self._listen()

    def _listen(self) -> None:
        received = self._line.channel.receive(self._strayed)
        assert received.callbacks is not None
        received.callbacks.append(self._heard)

    def _strayed(self, _: Sequence[float], tokens: Sequence[Any]) -> None:
        self._stray += len(tokens)
        if self._stray > self._line.story.output:
            self._line.happened(f"{self._line.peer} sends tokens before its answer, more than an answer has")
            self._line.leave()

    def _heard(self, received: simpy.Event) -> None:
        found: Message | None = None
        story = self._line.story
        if not received.ok:
            received.defused = True
            if not isinstance(received.value, ChannelBroken):
                self.said.fail(received.value)
                return
            why: str | None = str(received.value)
        elif received.value is None:
            why = "the cloud has ended the conversation"
        else:
            why = failed_of(received.value, story.request)
            try:
                found = None if why else self._checked(received.value, story)
            except BadMessage as error:
                why = str(error)
        if why is not None:
            self._line.happened(why)
        if why is not None or found is not None:
            self.said.succeed(found)
        else:
            # What is left of an earlier request is passed over.
            self._listen()

"""What a device hears of a cloud about one request, and what it makes of silence and of a peer that is gone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any

import simpy
from simpy.events import AnyOf

from kvferry.cloud.messages import BadMessage, Message, failed_of
from kvferry.cloud.said import answer_of, mask_of, token_of, verdict_of
from kvferry.cloud.story import Story
from kvferry.machine.channel import Channel, ChannelBroken, Streamed
from kvferry.machine.instant import call_off
from kvferry.pipelines.assist.answer import Answer

# The end of a stream comes right behind its last token; the device has no use for it.
_END_S = 1.0
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
    come. `apart`: a mask was asked for in a message of its own, which comes before, between or behind them. Where
    something is waited for within so many seconds, None is as long as it takes."""

    def __init__(
        self,
        env: simpy.Environment,
        channel: Channel,
        story: Story,
        peer: str,
        apart: bool = False,
    ) -> None:
        self._env, self._channel, self._story, self._peer = env, channel, story, peer
        self._first: simpy.Event | None = None
        self._apart = apart
        # Fires with the mask's message, or with None where there will be none; None: nothing more has been asked for.
        self._mask: simpy.Event | None = None
        self.coming = env.event()
        # Fires with the end of the stream of tokens; None: there is none. And whether it has ended once, for the mask.
        self._ended: simpy.Event | None = None
        self._halted = False
        self._left = False

    def send(self, message: Message, n_bytes: float) -> None:
        """It may be lost: then nothing comes back."""
        sent = self._channel.send(message, n_bytes)
        if not sent.processed:
            assert sent.callbacks is not None
            sent.callbacks.append(self._sent)

    def answer(self, within_s: float | None, ready: simpy.Event | None = None) -> Steps:
        """Returns the cloud's first response; None: there will be none, or none has come within so long, or before this
        event. Then it is still listened for."""
        self._first = self._next(answer_of)
        return (yield from self._within(within_s, self._first, ready=ready))

    def answer_before(self, ready: simpy.Event) -> Steps:
        """Returns the first response where it comes before this event does; leaves the conversation where it does
        not."""
        assert self._first is not None
        if not self._first.triggered:
            yield self._first | ready
        if self._first.triggered and self._first.value is not None:
            return self._first.value
        self._happened(behind_own(0, self._story.tokens))
        self.leave()
        return None

    def mask(self, within_s: float) -> Steps:
        """Returns the message with the mask: the first response, or one behind it, for which `tokens` listens. None:
        there will be none, or none has come for so long."""
        assert self._first is not None
        said: Message | None = self._first.value
        return said if self._mask is None else (yield from self._within(within_s, self._mask, "no mask"))

    def verdict(self, drafted: int, within_s: float | None) -> Steps:
        """Returns what the cloud says of this many drafts; None: nothing any more, or not within so long."""
        verdict = self._next(partial(verdict_of, drafted=drafted))
        return (yield from self._within(within_s, verdict))

    def late(self, within_s: float | None) -> Generator[simpy.Event, Any, None]:
        """Ends once no further token has come for so long, or with ``coming``."""
        if within_s is None:
            yield self.coming
            return
        env, last_s = self._env, self._env.now
        while not self.coming.triggered and (left_s := last_s + within_s - env.now) > _ROUNDING_S:
            yield self.coming | env.timeout(left_s)
            last_s = max(last_s, self._channel.heard_s)

    @property
    def mask_follows(self) -> bool:
        """Whether the first response has come, and the mask in it is to come in a message of its own."""
        said: Message | None = None if self._first is None or not self._first.triggered else self._first.value
        return self._apart and said is not None and said["mask"] is None

    def tokens(self, answer: Answer) -> simpy.Event:
        """Has the answer told each further token, and listens for a mask that follows; returns ``coming``."""
        if self._story.tokens == 1:
            answer.ended(self._env.now, cut=False)
            self.coming.succeed()
        if self.mask_follows:
            self._mask = self._env.event()
        if not self.coming.triggered:
            self._ended = self._env.event()
        if self._mask is not None or not self.coming.triggered:
            self._listen(answer)
        return self.coming

    def break_off(self, why: str) -> None:
        """Hang up, unless all that was asked for is there."""
        if not self.coming.triggered or (self._mask is not None and not self._mask.triggered):
            self._happened(why)
            self._channel.hang_up()

    def leave(self) -> None:
        """Listen no longer, and let the cloud know."""
        self._left = True
        self._channel.hang_up()

    def done(self) -> Generator[simpy.Event, Any, None]:
        """The answer is whole. A cloud that goes on all the same is left."""
        if self._mask is not None and not self._mask.triggered:
            self.leave()
        if self._ended is not None and not self._ended.triggered:
            if self.coming.triggered:
                yield self._ended | self._env.timeout(_END_S)
            if not self._ended.triggered:
                self.leave()

    # --- parts of these ------------------------------------------------------------------------------------------

    def _listen(self, answer: Answer) -> None:
        """For a stream of tokens, or the mask."""

        def came(times_s: Sequence[float], tokens: Sequence[Any]) -> None:
            wanted = self._story.tokens - len(answer.came_s)
            known = self._story.text is None and not self.coming.triggered
            if known and len(tokens) <= wanted and tokens.count(None) == len(tokens):
                # Modelled tokens, which say nothing: none of them need be looked at.
                answer.came_all(times_s, tokens)
                if len(answer.came_s) == self._story.tokens:
                    self._ends(answer)
                return
            for time_s, token in zip(times_s, tokens, strict=True):
                came_one(time_s, token)

        def came_one(time_s: float, token: Any) -> None:
            if self.coming.triggered:
                # Nobody has asked for it; whatever follows would be kept until the stream ends.
                self.leave()
                return
            try:
                answer.came(time_s, token_of(token, self._story, answer.by_text))
            except BadMessage as error:
                self._ends(answer, str(error))
                self.leave()
            else:
                if len(answer.came_s) == self._story.tokens:
                    self._ends(answer)

        received = self._channel.receive(came)
        assert received.callbacks is not None
        received.callbacks.append(lambda received: self._received(received, answer))

    def _received(self, received: simpy.Event, answer: Answer) -> None:
        """A stream of tokens has ended, or broken off; or the mask is there, which may have cut the stream in two."""
        message = received.value
        if self._mask is None or self._mask.triggered or not received.ok or message is None:
            self._over(received, answer)
        elif isinstance(message, Streamed) and not self._halted:
            self._halted = True
            if self._ended is not None and self.coming.triggered:
                self._ended.succeed()
            self._listen(answer)
        elif isinstance(message, Streamed) or failed_of(message, self._story.request):
            self._over(received, answer)
        else:
            self._masked(message, self._mask, answer)

    def _masked(self, message: Any, mask: simpy.Event, answer: Answer) -> None:
        """Something has come that is no stream."""
        try:
            found = mask_of(message, self._story)
        except BadMessage as error:
            # What comes behind a message that is none is not listened to.
            self._happened(str(error))
            self._ends(answer)
            self.leave()
            mask.succeed(None)
            return
        if found is not None:
            mask.succeed(found)
        if found is None or (self._ended is not None and not self._ended.triggered):
            self._listen(answer)

    def _within(
        self,
        patience_s: float | None,
        said: simpy.Event,
        missing: str = "nothing",
        ready: simpy.Event | None = None,
    ) -> Steps:
        over = None if patience_s is None else self._env.timeout(patience_s)
        yield AnyOf(self._env, [event for event in (said, over, ready) if event is not None])
        if over is not None and not over.processed:
            call_off(over)
        if said.triggered:
            return said.value
        if over is not None and over.processed:
            self._happened(f"{missing} has come from {self._peer} for {patience_s:g} s")
        return None

    def _next(self, checked: Callable[[Any, Story], Message | None]) -> simpy.Event:
        """Fires with the next message that is what was asked for, as `checked` finds; None: there will be none."""
        return _Awaited(self._env, self._channel, self._story, checked, self._happened, self._flooded).said

    def _flooded(self) -> None:
        if not self._left:
            self._happened(f"{self._peer} sends tokens before its answer, more than an answer has")
            self.leave()

    def _over(self, received: simpy.Event, answer: Answer) -> None:
        """The stream of tokens has ended, or broken off."""
        if received.ok:
            why = failed_of(received.value, self._story.request) or "the cloud has ended the conversation"
        else:
            received.defused, why = True, str(received.value)
        self._ends(answer, why)
        if self._mask is not None and not self._mask.triggered:
            self._happened(why)
            self._mask.succeed(None)
        if self._ended is not None and not self._ended.triggered:
            self._ended.succeed()

    def _ends(self, answer: Answer, why: str | None = None) -> None:
        if self.coming.triggered:
            return
        came, all_of_it = len(answer.came_s), self._story.tokens
        if why is not None and came < all_of_it and not answer.following.ended:
            self._happened(f"{why}, behind token {came:,} of {all_of_it:,}")
        answer.ended(self._env.now, cut=came < all_of_it)
        self.coming.succeed()

    def _sent(self, sent: simpy.Event) -> None:
        if not sent.ok:
            sent.defused = True
            # What a cloud says when it refuses: there will be no answer. Where it is gone, what is awaited tells.
            if type(sent.value) is ChannelBroken:
                self._happened(str(sent.value))
                self.leave()

    def _happened(self, what: str) -> None:
        if not self._left and self._story.happened is None:
            self._story.happened = what


class _Awaited:
    """A message that is listened for. An object, as functions that call each other would be garbage in a circle."""

    __slots__ = ("_channel", "_checked", "_flooded", "_happened", "_story", "_stray", "said")

    def __init__(
        self,
        env: simpy.Environment,
        channel: Channel,
        story: Story,
        checked: Callable[[Any, Story], Message | None],
        happened: Callable[[str], None],
        flooded: Callable[[], None],
    ) -> None:
        self._channel, self._story, self._checked = channel, story, checked
        self._happened, self._flooded = happened, flooded
        self.said = env.event()
        self._stray = 0
        self._listen()

    def _listen(self) -> None:
        received = self._channel.receive(self._strayed)
        assert received.callbacks is not None
        received.callbacks.append(self._heard)

    def _strayed(self, _: Sequence[float], tokens: Sequence[Any]) -> None:
        self._stray += len(tokens)
        if self._stray > self._story.output:
            self._flooded()

    def _heard(self, received: simpy.Event) -> None:
        found: Message | None = None
        if not received.ok:
            received.defused = True
            if not isinstance(received.value, ChannelBroken):
                self.said.fail(received.value)
                return
            why: str | None = str(received.value)
        elif received.value is None:
            why = "the cloud has ended the conversation"
        else:
            why = failed_of(received.value, self._story.request)
            try:
                found = None if why else self._checked(received.value, self._story)
            except BadMessage as error:
                why = str(error)
        if why is not None:
            self._happened(why)
        if why is not None or found is not None:
            self.said.succeed(found)
        else:
            # What is left of an earlier request is passed over.
            self._listen()

"""What a device hears of a cloud behind the first response: tokens, and a mask."""

from collections.abc import Generator, Sequence
from typing import Any

import simpy

from kvferry.cloud.messages import BadMessage, failed_of
from kvferry.cloud.said import mask_of, token_of
from kvferry.machine.channel import Streamed
from kvferry.pipelines.assist.answer import Answer
from kvferry.pipelines.assist.line import Line

# The end of a stream comes right behind its last token; the device has no use for it.
_END_S = 1.0


class TokenStream:
    """Has the answer told each further token. A mask that `follows` comes in a message of its own before, between or
    behind them. `coming` is fired when the last of the tokens that were asked for is there, or when it is clear that no
    more will come; ``mask`` with the mask's message, or with None where there will be none; it is None where none
    follows."""

    def __init__(self, line: Line, answer: Answer, coming: simpy.Event, *, follows: bool) -> None:
        self._line, self._answer, self._coming = line, answer, coming
        if line.story.tokens == 1:
            self._over()
        self.mask = line.env.event() if follows else None
        # Fires with the end of the stream of tokens; None: there is none. And whether it has ended once, for the mask.
        self._ended = None if coming.triggered else line.env.event()
        self._halted = False
        if follows or not coming.triggered:
            self._listen()

    @property
    def lacks_mask(self) -> bool:
        return self.mask is not None and not self.mask.triggered

    def done(self) -> Generator[simpy.Event, Any, None]:
        """The answer is whole. A cloud that goes on all the same is left."""
        if self.lacks_mask:
            self._line.leave()
        if self._ended is not None and not self._ended.triggered:
            if self._coming.triggered:
                yield self._ended | self._line.env.timeout(_END_S)
            if not self._ended.triggered:
                self._line.leave()

    def _listen(self) -> None:
        """For a stream of tokens, or the mask."""
        received = self._line.channel.receive(self._came)
        assert received.callbacks is not None
        received.callbacks.append(self._received)

    def _came(self, times_s: Sequence[float], tokens: Sequence[Any]) -> None:
        story, answer = self._line.story, self._answer
        known = story.text is None and not self._coming.triggered
        if known and len(tokens) <= story.tokens - len(answer.came_s) and tokens.count(None) == len(tokens):
            # Modelled tokens, which say nothing: none of them need be looked at.
            answer.came_all(times_s, tokens)
            if len(answer.came_s) == story.tokens:
                self._over()
            return
        for time_s, token in zip(times_s, tokens, strict=True):
            if self._coming.triggered:
                # Nobody has asked for it; whatever follows would be kept until the stream ends.
                self._line.leave()
                continue
            try:
                answer.came(time_s, token_of(token, story, answer.by_text))
            except BadMessage as error:
                self._over(str(error))
                self._line.leave()
            else:
                if len(answer.came_s) == story.tokens:
                    self._over()

    def _received(self, received: simpy.Event) -> None:
        """A stream of tokens has ended, or broken off; or the mask is there, which may have cut the stream in two."""
        message, line = received.value, self._line
        if self.mask is None or self.mask.triggered or not received.ok or message is None:
            self._broken_off(received)
        elif isinstance(message, Streamed) and not self._halted:
            self._halted = True
            if self._ended is not None and self._coming.triggered:
                self._ended.succeed()
            self._listen()
        elif isinstance(message, Streamed) or failed_of(message, line.story.request):
            self._broken_off(received)
        else:
            self._masked(message, self.mask)

    def _masked(self, message: Any, mask: simpy.Event) -> None:
        """Something has come that is no stream."""
        try:
            found = mask_of(message, self._line.story)
        except BadMessage as error:
            # What comes behind a message that is none is not listened to.
            self._line.happened(str(error))
            self._over()
            self._line.leave()
            mask.succeed(None)
            return
        if found is not None:
            mask.succeed(found)
        if found is None or (self._ended is not None and not self._ended.triggered):
            self._listen()

    def _broken_off(self, received: simpy.Event) -> None:
        """The stream of tokens has ended, or broken off."""
        if received.ok:
            why = failed_of(received.value, self._line.story.request) or "the cloud has ended the conversation"
        else:
            received.defused, why = True, str(received.value)
        self._over(why)
        if self.mask is not None and not self.mask.triggered:
            self._line.happened(why)
            self.mask.succeed(None)
        if self._ended is not None and not self._ended.triggered:
            self._ended.succeed()

    def _over(self, why: str | None = None) -> None:
        """No further token counts."""
        if self._coming.triggered:
            return
        came, all_of_it = len(self._answer.came_s), self._line.story.tokens
        if why is not None and came < all_of_it and not self._answer.following.ended:
            self._line.happened(f"{why}, behind token {came:,} of {all_of_it:,}")
        self._answer.ended(self._line.env.now, cut=came < all_of_it)
        self._coming.succeed()

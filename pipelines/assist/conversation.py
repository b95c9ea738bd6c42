"""What a device hears of a cloud about one request, and what it makes of silence and of a peer that is gone."""

from collections.abc import Generator
from typing import Any

import simpy

from kvferry.machine.channel import Channel, ChannelBroken
from kvferry.pipelines.assist.answer import Answer
from kvferry.pipelines.assist.messages import BadMessage, Message, failed_of, of_request
from kvferry.pipelines.assist.story import Story
from kvferry.policies.assist.patience import Patience

_FIRST = ("token", "mask", "tokenizer", "bytes", "tpot_s")
_VERDICT = ("stands", "said")


class Conversation:
    """Nothing here raises when the cloud fails: the story says what happened."""

    def __init__(self, env: simpy.Environment, channel: Channel, story: Story, patience: Patience) -> None:
        self._env, self._channel, self._story, self._patience = env, channel, story, patience

    def send(self, message: Message, n_bytes: float) -> None:
        """It may be lost: then nothing comes back."""
        sent = self._channel.send(message, n_bytes)
        if not sent.processed:
            assert sent.callbacks is not None
            sent.callbacks.append(_forgive)

    def answer(self) -> Generator[simpy.Event, Any, Message | None]:
        """Returns the cloud's first response; None: there will be none."""
        return self._next(_FIRST)

    def verdict(self) -> Generator[simpy.Event, Any, Message | None]:
        """Returns what the cloud says of drafts; None: nothing any more."""
        return self._next(_VERDICT)

    def _next(self, keys: tuple[str, ...]) -> Generator[simpy.Event, Any, Message | None]:
        while True:
            try:
                message = yield self._channel.receive(patience_s=self._patience.answer_s)
                if (failed := failed_of(message, self._story.request)) is not None:
                    self._story.happened = failed
                    return None
                # What is left of an earlier request is passed over.
                said = None if message is None else of_request(message, self._story.request, keys)
            except (ChannelBroken, BadMessage) as error:
                self._story.happened = str(error)
                return None
            if message is None:
                self._story.happened = "the cloud has ended the conversation"
            if message is None or said is not None:
                return said

    def tokens(self, answer: Answer) -> simpy.Event:
        """Has the answer told each further token. Fires when all have come that will."""
        env = self._env
        ended = env.event()
        if self._story.tokens == 1:
            answer.ended(env.now, cut=False)
            return ended.succeed()
        received = self._channel.receive(answer.came, self._patience.token_s)

        def end(received: simpy.Event) -> None:
            missing = self._story.tokens - len(answer.came_s)
            if not received.ok:
                received.defused = True
                self._story.happened = str(received.value)
            elif missing > 0:
                failed = failed_of(received.value, self._story.request)
                self._story.happened = failed or "the cloud has ended the conversation"
            if missing > 0:
                came, all_of_it = len(answer.came_s), self._story.tokens
                self._story.happened = f"{self._story.happened}, behind token {came:,} of {all_of_it:,}"
            answer.ended(env.now, cut=missing > 0)
            ended.succeed()

        assert received.callbacks is not None
        received.callbacks.append(end)
        return ended


def _forgive(sent: simpy.Event) -> None:
    if not sent.ok:
        sent.defused = True

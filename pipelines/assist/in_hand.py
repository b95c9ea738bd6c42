"""What an instance of a cloud has in hand: prompts that it prefills, and turns of requests that it decodes for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import simpy

from kvferry.machine.channel import MessageStream
from kvferry.machine.machine import Lease
from kvferry.specs.errors import KvferryError

if TYPE_CHECKING:
    from kvferry.pipelines.assist.instance import Instance


class Down(KvferryError):
    """An instance is down, and what it had in hand is lost."""


class Turn:
    """A request that an instance decodes for. ``sends_s``: when the token before may be sent, so that these follow it
    at their pace. ``done`` fires when the last one is there."""

    __slots__ = (
        "_due_s",
        "_early",
        "_left",
        "_sent",
        "_stream",
        "context",
        "done",
        "instance",
        "pace_s",
        "put",
        "request",
        "sends_s",
        "tokens",
        "until",
    )

    def __init__(
        self, instance: Instance, request: int, context: int, tokens: int, pace_s: float | None, sends_s: float
    ) -> None:
        self.instance, self.request, self.context = instance, request, context
        self.tokens, self.sends_s = tokens, sends_s
        self.done: simpy.Event = instance.machine.env.event()
        # Without a pace that was asked for, tokens are never late.
        self.pace_s = math.inf if pace_s is None else pace_s
        # When a token is to be there, by its number, and that number.
        self._due_s = sends_s + self.pace_s, 0
        # The number of its last step, once it has joined.
        self.until = 0
        self._stream: MessageStream | None = None
        # Tokens that are there before their stream is.
        self._early: list[str | None] = []
        # Called with each further token that is there; None: a modelled one, which says nothing.
        self.put: Callable[[str | None], None] = self._early.append
        # Where not all are sent: how many are still to be, and what fires behind the last.
        self._left = 0
        self._sent: simpy.Event | None = None

    def into(self, stream: MessageStream, most: int | None = None) -> simpy.Event:
        """Send its tokens into this, or the first `most` of them; fires when the last one has been sent."""
        if most is not None and most < self.tokens:
            self._left, self._sent = most, self.done.env.event()
            if not most:
                self._sent.succeed()
        self.go_on_into(stream)
        for token in self._early:
            self.put(token)
        return self._sent or self.done

    def go_on_into(self, stream: MessageStream) -> None:
        """Send its further tokens into another stream, as many as of the first."""
        self._stream = stream
        self.put = stream.put if self._sent is None else self._send_first

    @property
    def due_s(self) -> float:
        """When the next token is to be there, once the turn has joined."""
        due_s, number = self._due_s
        there = self.tokens - (self.until - self.instance.turns.steps)
        for _ in range(number, there):
            due_s += self.pace_s
        self._due_s = due_s, there
        return due_s

    def _send_first(self, token: str | None) -> None:
        assert self._stream is not None and self._sent is not None
        if self._left:
            self._stream.put(token)
            self._left -= 1
            if not self._left:
                self._sent.succeed()

    def fail(self, error: Exception) -> None:
        """There will be no further tokens."""
        for event in (self.done, self._sent):
            if event is not None and not event.triggered:
                # Nobody may be waiting for it yet.
                event.fail(error)
                event.defused = True


class Prompt:
    """A prompt that an instance prefills. ``done`` fires with the token that follows, once its KV is there."""

    __slots__ = ("_outages", "before", "done", "has_memory", "instance", "lease", "left", "request")

    def __init__(self, instance: Instance, request: int, tokens: int, has_memory: bool, before: int) -> None:
        self.instance, self.request, self.before, self.left = instance, request, before, tokens
        self.done: simpy.Event = instance.machine.env.event()
        # Whether there is memory for its KV, and what of it is its own.
        self.has_memory = has_memory
        self.lease: Lease | None = None
        self._outages = instance.outages

    @property
    def is_lost(self) -> bool:
        """Whether its instance has been down since it was asked for."""
        return self.instance.outages > self._outages

    def free(self) -> None:
        """Its KV is no longer needed here. Freeing twice is harmless."""
        lease, self.lease = self.lease, None
        if lease is not None:
            self.instance.free(lease)

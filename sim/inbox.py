"""What has come to one end of a channel."""

from collections import deque
from typing import Any, Protocol

import simpy

from kvferry.machine.channel import ChannelCut, Streamed


class Coming(Protocol):
    """A stream that comes to an inbox. Both are long ago before there was a part."""

    @property
    def last_s(self) -> float:
        """When the last part was sent."""
        ...

    def heard_s(self, now_s: float) -> float:
        """When the last part that has arrived by now did."""
        ...

    def cut(self) -> None:
        """It has broken off, if it has not ended: who receives is told the parts that were sent."""
        ...


class Inbox:
    """What has arrived and was not received, and who waits: as simpy.Store, with one event for a message instead of
    two."""

    __slots__ = ("_env", "_messages", "_waiting", "broken_off", "gone", "stream")

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        # The last one that was opened towards this end, and what came of one that broke off.
        self.stream: Coming | None = None
        self.broken_off: Streamed | None = None
        # Fires when who receives here has learnt that the channel is broken.
        self.gone = env.event()
        self._messages: deque[Any] = deque()
        self._waiting: deque[simpy.Event] = deque()

    def put(self, message: Any) -> None:
        if self._waiting:
            self._waiting.popleft().succeed(message)
        else:
            self._messages.append(message)

    def get(self) -> simpy.Event:
        taken = self._env.event()
        if self._messages:
            taken.succeed(self._messages.popleft())
        elif self.gone.triggered:
            taken.fail(self.gone.value)
        else:
            self._waiting.append(taken)
        return taken

    def give_up(self, taken: simpy.Event) -> None:
        """Let nothing more come to who waits by this."""
        self._waiting.remove(taken)

    def drop_after(self, time_s: float) -> None:
        """Of a stream that broke off, what would have arrived later does not."""
        if self.broken_off is not None:
            times_s = self.broken_off.times_s
            there = sum(time <= time_s for time in times_s)
            self.broken_off = Streamed(times_s[:there], self.broken_off.values[:there])

    def cut(self, why: str) -> None:
        """Nothing more comes to anybody."""
        if not self.gone.triggered:
            # Its value is what every receiver fails with.
            self.gone.succeed(ChannelCut(why))
        for taken in self._waiting:
            taken.fail(ChannelCut(why))
            # Whoever waits for it gets its failure; it may be gone.
            taken.defused = True
        self._waiting.clear()

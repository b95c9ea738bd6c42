"""Requests that an instance decodes for together."""

from collections.abc import Sequence
from itertools import repeat

from kvferry.machine.handles import Batch
from kvferry.machine.ops import DecodeStep
from kvferry.pipelines.assist.estimates import CONTEXT_STEP
from kvferry.pipelines.assist.in_hand import Turn


class Turns:
    """Turns join and leave at any step (continuous batching); a step under way is not the first one of those who
    join."""

    def __init__(self) -> None:
        # Steps, and tokens of all of them.
        self.steps = self.decoded = 0
        self.running: list[Turn] = []
        self._joining: list[Turn] = []
        # Those who run, for a machine that really decodes; None: they have changed. Their last step, and the number of
        # the one with which the first of them ends.
        self._together: Batch | None = None
        self._step = DecodeStep(0, 0)
        self._until = 0
        # Tokens in the KV of the ones that run.
        self._context = 0

    def add(self, turn: Turn) -> None:
        """It joins with the next step."""
        self._joining.append(turn)

    def join(self) -> None:
        """Those who were added run from now on."""
        for turn in self._joining:
            turn.until = self.steps + turn.tokens
            self.running.append(turn)
            self._context += turn.context
            self._together = None
        self._joining.clear()

    def next_step(self) -> DecodeStep:
        """Returns the step of those who run."""
        n = len(self.running)
        mean = CONTEXT_STEP * round(self._context / (n * CONTEXT_STEP))
        if self._together is None:
            self._together = Batch(tuple([turn.request for turn in self.running]))
            self._until = min([turn.until for turn in self.running])
        if self._step.of is not self._together or self._step.context_tokens != mean:
            self._step = DecodeStep(n, mean, self._together)
        return self._step

    def stepped(self, said: Sequence[str] | None) -> None:
        """`said`: what those who run say; None: a modelled machine says nothing."""
        running = self.running
        self.steps += 1
        self.decoded += len(running)
        self._context += len(running)
        for turn, token in zip(running, said or repeat(None), strict=False):
            turn.put(token)
        if self._until == self.steps:
            for turn in [turn for turn in running if turn.until == self.steps]:
                self._leave(turn)
                turn.done.succeed()

    def fail(self, error: Exception) -> None:
        """There are no further steps for those who run."""
        failed, self.running = self.running, []
        self._together, self._context = None, 0
        for turn in failed:
            turn.fail(error)

    def drop(self, turn: Turn) -> None:
        if turn in self._joining:
            self._joining.remove(turn)
        else:
            self._leave(turn)

    def _leave(self, turn: Turn) -> None:
        self.running.remove(turn)
        self._together = None
        self._context -= turn.context + turn.tokens - (turn.until - self.steps)

"""One instance of a cloud: it prefills prompts and decodes for those that have been, on its own machine."""

import math
from collections import deque
from collections.abc import Sequence
from itertools import repeat

import simpy

from kvferry.machine.channel import MessageStream
from kvferry.machine.handles import Batch
from kvferry.machine.machine import Machine
from kvferry.machine.ops import DecodeStep, Prefill
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.estimates import CONTEXT_STEP, Prices
from kvferry.pipelines.workload import Process
from kvferry.policies.assist.serving import Serving


class Turn:
    """A request that an instance decodes for. ``sends_s``: when the token before may be sent, so that these follow it
    at their pace. ``done`` fires when the last one is there."""

    __slots__ = (
        "_early",
        "_left",
        "_sent",
        "_stream",
        "context",
        "done",
        "due_s",
        "pace_s",
        "request",
        "sends_s",
        "tokens",
        "until",
    )

    def __init__(
        self, request: int, context: int, tokens: int, pace_s: float | None, sends_s: float, done: simpy.Event
    ) -> None:
        self.request, self.context, self.tokens, self.sends_s, self.done = request, context, tokens, sends_s, done
        # Nobody is promised a pace that nobody asked for.
        self.pace_s = math.inf if pace_s is None else pace_s
        # When the next token is to be there.
        self.due_s = sends_s + self.pace_s
        # The number of its last step, once it has joined.
        self.until = 0
        self._stream: MessageStream | None = None
        # Tokens that are there before their stream is.
        self._early: list[str | None] = []
        # Where not all are sent: how many are still to be, and what fires behind the last.
        self._left = 0
        self._sent: simpy.Event | None = None

    def into(self, stream: MessageStream, most: int | None = None) -> simpy.Event:
        """Send its tokens into this, or the first `most` of them; fires when the last one has been sent."""
        self._stream = stream
        if most is not None and most < self.tokens:
            self._left, self._sent = most, self.done.env.event()
            if not most:
                self._sent.succeed()
        early, self._early = self._early, []
        for token in early:
            self._send(token)
        return self._sent or self.done

    def _send(self, token: str | None) -> None:
        assert self._stream is not None
        if self._sent is None:
            self._stream.put(token)
        elif self._left:
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

    def put(self, token: str | None) -> None:
        """Another token is there; None: a modelled one, which says nothing."""
        self.due_s += self.pace_s
        if self._stream is None:
            self._early.append(token)
        else:
            self._send(token)


class _Prompt:
    __slots__ = ("before", "comes", "done", "left", "request")

    def __init__(self, request: int, tokens: int, comes: bool, done: simpy.Event) -> None:
        self.request, self.before, self.left, self.comes, self.done = request, 0, tokens, comes, done


class Instance:
    """Requests join and leave at any step (continuous batching), and prompts are prefilled beside them piece by piece
    (policies/assist/serving.py).

    With `kept_tpot_s` as its time per token: a request is taken in when steps with all who hold a slot then take no
    longer, or when nobody holds one. No token of a request is later than its promise, as long as estimates are true.
    """

    def __init__(self, machine: Machine, prices: Prices, serving: Serving, kept_tpot_s: float) -> None:
        self.machine = machine
        # Tokens of prompts that it has in hand.
        self.prefilling = 0
        # Whose LoRA it has, and what brought it.
        self.scene = 0
        self.lora: Ticket | None = None
        # Steps, and tokens of all of them.
        self.steps = 0
        self.decoded = 0
        self._prices, self._serving, self._kept_tpot_s = prices, serving, kept_tpot_s
        # Requests that hold a slot, and the tokens that they end with.
        self._held, self._held_tokens = 0, 0
        self._prompts: deque[_Prompt] = deque()
        self._running: list[Turn] = []
        # Those who run, for a machine that really decodes; None: they have changed.
        self._together: Batch | None = None
        # Those who join with the next step.
        self._joining: list[Turn] = []
        # Tokens in the KV of those that run.
        self._context = 0
        # Requests whose prompts it has prefilled, and which it is going to decode for at a pace.
        self._coming = 0
        self._idle = True
        # What it does now, and since when.
        self._doing: tuple[Prefill | DecodeStep, float] | None = None

    # --- who holds a slot ----------------------------------------------------------------------------------------

    def kept_s(self, tokens: int) -> float:
        """The time per token that a request of so many, prompt and answer, is promised at least."""
        return max(self._kept_tpot_s, self._prices.most_step_s(1, tokens))

    def bears(self, tokens: int) -> bool:
        """Whether promises hold with another request of so many tokens."""
        n = self._held + 1
        return n == 1 or self._prices.most_step_s(n, self._held_tokens + tokens) <= self._kept_tpot_s

    def take(self, tokens: int) -> None:
        self._held, self._held_tokens = self._held + 1, self._held_tokens + tokens

    def leave(self, tokens: int) -> None:
        self._held, self._held_tokens = self._held - 1, self._held_tokens - tokens

    # --- work ----------------------------------------------------------------------------------------------------

    def prefill(self, request: int, tokens: int, *, comes: bool) -> simpy.Event:
        """Fires when the prompt's KV is there, with the token that follows. `comes`: it is going to decode for the
        request, at a pace."""
        done = self.machine.env.event()
        self._prompts.append(_Prompt(request, tokens, comes, done))
        self._wake()
        return done

    def decode(self, request: int, context: int, tokens: int, pace_s: float | None, *, came: bool = False) -> Turn:
        """Decode so many tokens, at least one every `pace_s` behind the one before; None: as they come. `came`: what
        `prefill` said of the request."""
        env = self.machine.env
        self._coming -= came
        sends_s = env.now
        if pace_s is not None and not self._idle:
            # What it does now is done first, and then a step.
            sends_s = max(env.now, self._until_s() + self._longest_step_s() - pace_s)
        turn = Turn(request, context, tokens, pace_s, sends_s, env.event())
        # A step under way is not the first one of those that join.
        self._joining.append(turn)
        self._wake()
        return turn

    def comes_not(self) -> None:
        """A request of which `prefill` said that it comes has ended before."""
        self._coming -= 1

    def _longest_step_s(self) -> float:
        """Of a step with any of those who hold a slot."""
        return max(self._kept_tpot_s, self._prices.most_step_s(self._held, self._held_tokens))

    def _wake(self) -> None:
        if self._idle:
            self._idle = False
            self.machine.env.process(self._work())

    def _work(self) -> Process:
        stepped = True
        while True:
            for turn in self._joining:
                turn.until = self.steps + turn.tokens
                self._running.append(turn)
                self._context += turn.context
                self._together = None
            self._joining.clear()
            piece = self._piece(stepped) if self._prompts else None
            if piece is not None:
                stepped = False
                try:
                    token = yield self._begun(piece, self._prompts[0].request)
                except Exception as error:
                    # The fault of one request is not the end of the others.
                    self._prompts.popleft().done.fail(error)
                else:
                    self._prefilled(int(piece.tokens), token)
            elif self._running:
                stepped = True
                n = len(self._running)
                mean = CONTEXT_STEP * round(self._context / (n * CONTEXT_STEP))
                if self._together is None:
                    self._together = Batch(tuple([turn.request for turn in self._running]))
                try:
                    said = yield self._begun(DecodeStep(n, mean, self._together), None)
                except Exception as error:
                    self._failed(error)
                else:
                    self._stepped(said)
            else:
                break
        self._idle = True

    def _begun(self, op: Prefill | DecodeStep, request: int | None) -> Ticket:
        self._doing = op, self.machine.env.now
        return self.machine.submit(op, request=request)

    def _until_s(self) -> float:
        """When what it does now ends."""
        if self._doing is None:
            return 0.0
        op, began_s = self._doing
        return began_s + self._prices.op_s(op)

    def _piece(self, stepped: bool) -> Prefill | None:
        """What to prefill before the next step; None: nothing."""
        first, running, serving = self._prompts[0], self._running, self._serving
        piece = Prefill(serving.piece_tokens(first.left, bool(running or self._coming)), first.before)
        if running and serving.chunk_tokens is not None:
            due_s = min(turn.due_s for turn in running)
            spare_s = due_s - self.machine.env.now - self._longest_step_s()
            if not serving.prefills(self._prices.op_s(piece), spare_s, stepped):
                return None
        elif running and not stepped:
            return None
        return piece

    def _prefilled(self, tokens: int, token: str | None) -> None:
        first = self._prompts[0]
        first.left, first.before = first.left - tokens, first.before + tokens
        if not first.left:
            self._coming += first.comes
            self._prompts.popleft().done.succeed(token)

    def _failed(self, error: Exception) -> None:
        """A step was carried out for none of those who run."""
        failed, self._running = self._running, []
        self._together, self._context = None, 0
        for turn in failed:
            turn.fail(error)

    def _stepped(self, said: Sequence[str] | None) -> None:
        """`said`: what those who run say; None: a modelled machine says nothing."""
        running = self._running
        self.steps += 1
        self.decoded += len(running)
        self._context += len(running)
        ended = False
        for turn, token in zip(running, said or repeat(None), strict=False):
            turn.put(token)
            ended |= turn.until == self.steps
        if ended:
            for turn in [turn for turn in running if turn.until == self.steps]:
                running.remove(turn)
                self._together = None
                self._context -= turn.context + turn.tokens
                turn.done.succeed()

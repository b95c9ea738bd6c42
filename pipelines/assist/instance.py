"""One instance of a cloud: it prefills prompts and decodes for the ones that have been, on its own machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import repeat

from kvferry.machine.handles import Batch
from kvferry.machine.machine import Lease, Machine, Refused
from kvferry.machine.ops import DecodeStep, Prefill
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.estimates import CONTEXT_STEP, Prices, piece_of
from kvferry.pipelines.assist.in_hand import Down, Prompt, Turn
from kvferry.pipelines.workload import Process
from kvferry.policies.assist.serving import Serving
from kvferry.specs.errors import OutOfMemory


class Instance:
    """Requests join and leave at any step (continuous batching), and prompts are prefilled beside them piece by piece
    (policies/assist/serving.py), which says whose comes next. A prompt without memory for its KV takes that when its
    prefill begins, and waits for it where there is none; no other then takes any before it.

    With `kept_tpot_s` as its time per token: a request is taken in when steps with all who hold a slot then take no
    longer, or when nobody holds one. No token of a request is later than its promise, as long as estimates are true.
    """

    def __init__(
        self, machine: Machine, prices: Prices, serving: Serving, kept_tpot_s: float, kv_bytes_per_token: float
    ) -> None:
        self.machine = machine
        # Tokens of prompts that it has in hand.
        self.prefilling = 0
        # Whose LoRA it has, and what brought it.
        self.scene = 0
        self.lora: Ticket | None = None
        # Steps, and tokens of all of them.
        self.steps = 0
        self.decoded = 0
        # Memory of the KV of beginnings that prompts share, by scene, the least recently used first.
        self._beginnings: dict[int, Lease] = {}
        # Whether it works, and how often it has gone down.
        self.is_up = True
        self.outages = 0
        self._prices, self._serving, self._kept_tpot_s = prices, serving, kept_tpot_s
        self._kv_bytes_per_token = kv_bytes_per_token
        # Requests whose KV is here, or is to be.
        self._leases = 0
        # Requests that hold a slot, and the tokens that they end with.
        self._held, self._held_tokens = 0, 0
        # Prompts that are not read to their end, in order of arrival, and the one that memory was lacking for.
        self._prompts: list[Prompt] = []
        self._lacking: Prompt | None = None
        # Whether the next piece goes by arrival, whatever is shorter.
        self._by_arrival = False
        self._running: list[Turn] = []
        # Those who run, for a machine that really decodes; None: they have changed. Their last step, and the number of
        # the one with which the first of them ends.
        self._together: Batch | None = None
        self._step = DecodeStep(0, 0)
        self._until = 0
        # Those who join with the next step, and those for whom there is nothing more to do.
        self._joining: list[Turn] = []
        self._dropped: list[Prompt | Turn] = []
        # Tokens in the KV of the ones that run.
        self._context = 0
        self._idle = True
        # What it does now, and since when.
        self._doing: tuple[Prefill | DecodeStep, float] | None = None

    # --- memory --------------------------------------------------------------------------------------------------

    def kv_bytes(self, tokens: int) -> float:
        return tokens * self._kv_bytes_per_token

    @property
    def holds(self) -> bool:
        """Whether it has KV of any request."""
        return self._leases > 0

    def reserve(self, tokens: int) -> Lease | Refused:
        """Memory for the KV of this many tokens, which `free` gives back. Beginnings that are kept make room."""
        lease = self.machine.memory.reserve(self.kv_bytes(tokens), "kv")
        while isinstance(lease, Refused) and self._beginnings:
            self._beginnings.pop(next(iter(self._beginnings))).release()
            lease = self.machine.memory.reserve(self.kv_bytes(tokens), "kv")
        self._leases += not isinstance(lease, Refused)
        return lease

    def free(self, lease: Lease) -> None:
        lease.release()
        self._leases -= 1
        if self._prompts:
            # One of them may have waited for it.
            self._wake()

    def has_beginning(self, scene: int) -> bool:
        """Whether the KV of what prompts of this scene begin with is here."""
        if (lease := self._beginnings.pop(scene, None)) is not None:
            self._beginnings[scene] = lease
        return lease is not None

    def keep_beginning(self, scene: int, tokens: int) -> None:
        """Keep a copy of its KV, which a prompt has brought, where there is memory for it."""
        if scene not in self._beginnings:
            lease = self.machine.memory.reserve(self.kv_bytes(tokens), "kv")
            if not isinstance(lease, Refused):
                self._beginnings[scene] = lease

    # --- who holds a slot ----------------------------------------------------------------------------------------

    def kept_s(self, tokens: int) -> float:
        """The time per token that a request of this many, prompt and answer, is promised at least."""
        return self._prices.kept_s(self._kept_tpot_s, tokens)

    def bears(self, tokens: int) -> bool:
        """Whether promises hold with another request of this many tokens."""
        n = self._held + 1
        return n == 1 or self._prices.most_step_s(n, self._held_tokens + tokens) <= self._kept_tpot_s

    def take(self, tokens: int) -> None:
        self._held, self._held_tokens = self._held + 1, self._held_tokens + tokens

    def leave(self, tokens: int) -> None:
        self._held, self._held_tokens = self._held - 1, self._held_tokens - tokens

    # --- work ----------------------------------------------------------------------------------------------------

    def prefill(self, request: int, tokens: int, *, has_memory: bool, before: int = 0) -> Prompt:
        """`has_memory`: there is memory for the prompt's KV already, and that of the tokens `before` it, whose KV is
        known."""
        prompt = Prompt(self, request, tokens, has_memory, before)
        self._prompts.append(prompt)
        self._wake()
        return prompt

    def decode(self, request: int, context: int, tokens: int, pace_s: float | None) -> Turn:
        """Decode this many tokens, at least one every `pace_s` behind the one before; None: as they come."""
        sends_s = self.machine.env.now
        if pace_s is not None and not self._idle:
            # What it does now is done first, and then a step.
            sends_s = max(sends_s, self._until_s() + self._longest_step_s() - pace_s)
        turn = Turn(self, request, context, tokens, pace_s, sends_s)
        # A step under way is not the first one of the ones that join.
        self._joining.append(turn)
        self._wake()
        return turn

    def drop(self, work: Prompt | Turn) -> None:
        """Nobody wants it any more: it is done with, and its `done` fires, behind the piece or the step that is under
        way."""
        self._dropped.append(work)
        self._wake()

    def go_down(self, until_s: float) -> None:
        """All that it has in hand fails with Down; what comes until `come_up` waits. A piece or step under way ends,
        for nothing."""
        self.is_up, self.outages = False, self.outages + 1
        down = Down(f"an instance is down until {until_s:g} s, and what it had in hand is lost")
        for prompt in self._prompts:
            prompt.done.fail(down)
            # Nobody may be waiting for it any more.
            prompt.done.defused = True
        for turn in (*self._running, *self._joining):
            turn.fail(down)
        self._running, self._together, self._context = [], None, 0
        self._prompts.clear()
        self._lacking = None
        self._joining.clear()
        self.lora, self.scene = None, 0
        while self._beginnings:
            self._beginnings.popitem()[1].release()

    def come_up(self) -> None:
        self.is_up = True
        self._wake()

    def _longest_step_s(self) -> float:
        """Of a step with any of those who hold a slot."""
        return max(self._kept_tpot_s, self._prices.most_step_s(self._held, self._held_tokens))

    def _wake(self) -> None:
        if self._idle and self.is_up:
            self._idle = False
            self.machine.env.process(self._work())

    def _work(self) -> Process:
        stepped = True
        while True:
            if self._dropped:
                self._let_go()
            if not self.is_up:
                break
            if self._joining:
                for turn in self._joining:
                    turn.until = self.steps + turn.tokens
                    self._running.append(turn)
                    self._context += turn.context
                self._joining.clear()
                self._together = None
            prompt = self._next_prompt() if self._prompts else None
            piece = None if prompt is None else self._piece(prompt, stepped)
            if prompt is not None and piece is not None:
                stepped = False
                others = self._beside(prompt, piece)
                self._by_arrival = len(self._prompts) > 1 and not self._by_arrival
                try:
                    token = yield self._begun(_together(piece, others), prompt.request)
                except Exception as error:
                    # The fault of one request is not the end of the others.
                    if not prompt.is_lost:
                        self._prompts.remove(prompt)
                        prompt.done.fail(error)
                else:
                    self._prefilled(prompt, int(piece.tokens), token)
                    for other in others:
                        self._prefilled(other, other.left, None)
            elif self._running:
                stepped = True
                n = len(self._running)
                mean = CONTEXT_STEP * round(self._context / (n * CONTEXT_STEP))
                if self._together is None:
                    self._together = Batch(tuple([turn.request for turn in self._running]))
                    self._until = min([turn.until for turn in self._running])
                if self._step.of is not self._together or self._step.context_tokens != mean:
                    self._step = DecodeStep(n, mean, self._together)
                try:
                    said = yield self._begun(self._step, None)
                except Exception as error:
                    self._failed(error)
                else:
                    self._stepped(said)
            else:
                break
        self._idle = True

    def _let_go(self) -> None:
        for work in self._dropped:
            if work.done.triggered:
                continue
            if isinstance(work, Prompt):
                self._prompts.remove(work)
                self._lacking = None if self._lacking is work else self._lacking
            elif work in self._joining:
                self._joining.remove(work)
            else:
                self._leave(work)
            work.done.succeed()
        self._dropped.clear()

    def _next_prompt(self, most: float = math.inf, but: Sequence[Prompt] = ()) -> Prompt | None:
        """The next one that has memory for its KV or gets it now, and that only where no other lacks it; None where
        there is none, or this one has more tokens than `most`. `but`: these are taken."""
        for n in self._serving.in_order(self._prompts, by_arrival=self._by_arrival):
            prompt = self._prompts[n]
            if prompt in but:
                continue
            if not prompt.has_memory and self._lacking in (None, prompt):
                lease = self.reserve(prompt.before + prompt.left)
                self._lacking = None
                if not isinstance(lease, Refused):
                    prompt.lease, prompt.has_memory = lease, True
                elif self.holds:
                    self._lacking = prompt
                else:
                    self._prompts.remove(prompt)
                    prompt.done.fail(OutOfMemory(f"an instance of the cloud: {lease}"))
                    return self._next_prompt(most, but)
            if prompt.has_memory:
                return prompt if prompt.left <= most else None
        return None

    def _begun(self, op: Prefill | DecodeStep, request: int | None) -> Ticket:
        self._doing = op, self.machine.env.now
        return self.machine.submit(op, request=request)

    def _until_s(self) -> float:
        """When what it does now ends."""
        if self._doing is None:
            return 0.0
        op, began_s = self._doing
        return began_s + self._prices.op_s(op)

    def _piece(self, prompt: Prompt, stepped: bool) -> Prefill | None:
        """What to prefill before the next step; None: nothing."""
        running, serving = self._running, self._serving
        # Those who hold a slot decode, or will soon, unless their prompts wait.
        beside = self._held > sum(one.has_memory and one.lease is None for one in self._prompts)
        piece = piece_of(serving.piece_tokens(prompt.left, beside), prompt.before)
        if running and serving.chunk_tokens is not None:
            due_s = min(turn.due_s for turn in running)
            spare_s = due_s - self.machine.env.now - self._longest_step_s()
            if not serving.prefills(self._prices.op_s(piece), spare_s, stepped):
                return None
        elif running and not stepped:
            return None
        return piece

    def _beside(self, prompt: Prompt, piece: Prefill) -> list[Prompt]:
        """Whole prompts that are prefilled in the same pass as the rest of this one."""
        if not self._serving.batched_prefill or self._running or piece.tokens < prompt.left:
            return []
        found: list[Prompt] = []
        room = self._serving.alone_tokens - int(piece.tokens)
        while (other := self._next_prompt(room, (prompt, *found))) is not None:
            found.append(other)
            room -= other.left
        return found

    def _prefilled(self, prompt: Prompt, tokens: int, token: str | None) -> None:
        prompt.left, prompt.before = prompt.left - tokens, prompt.before + tokens
        if not prompt.left and not prompt.is_lost:
            self._prompts.remove(prompt)
            prompt.done.succeed(token)

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
        for turn, token in zip(running, said or repeat(None), strict=False):
            turn.put(token)
        if self._until == self.steps:
            for turn in [turn for turn in running if turn.until == self.steps]:
                self._leave(turn)
                turn.done.succeed()

    def _leave(self, turn: Turn) -> None:
        self._running.remove(turn)
        self._together = None
        self._context -= turn.context + turn.tokens - (turn.until - self.steps)


def _together(piece: Prefill, others: Sequence[Prompt]) -> Prefill:
    """One pass for a piece and these prompts."""
    if not others:
        return piece
    n = 1 + len(others)
    tokens = (piece.tokens + sum(one.left for one in others)) / n
    return Prefill(tokens, (piece.context_tokens + sum(one.before for one in others)) / n, batch=n)

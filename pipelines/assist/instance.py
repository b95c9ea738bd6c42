"""One instance of a cloud: it prefills prompts and decodes for the ones that have been, on its own machine."""

from __future__ import annotations

from collections.abc import Sequence

from kvferry.machine.machine import Lease, Machine
from kvferry.machine.ops import DecodeStep, Extents, Prefill
from kvferry.machine.ticket import Ticket
from kvferry.pipelines.assist.estimates import Prices, piece_of
from kvferry.pipelines.assist.holders import Holders
from kvferry.pipelines.assist.in_hand import Down, Prompt, Turn
from kvferry.pipelines.assist.kv_memory import KvMemory
from kvferry.pipelines.assist.prompts import Prompts
from kvferry.pipelines.assist.turns import Turns
from kvferry.pipelines.workload import Process
from kvferry.policies.assist.serving import Serving


class Instance:
    """Requests join and leave at any step, and prompts are prefilled beside them piece by piece
    (policies/assist/serving.py), which says whose comes next. With `kept_tpot_s` as its time per token."""

    def __init__(
        self, machine: Machine, prices: Prices, serving: Serving, kept_tpot_s: float, kv_bytes_per_token: float
    ) -> None:
        self.machine, self._prices, self._serving = machine, prices, serving
        self.kv = KvMemory(machine.memory, kv_bytes_per_token)
        self.holders, self.turns = Holders(prices, kept_tpot_s), Turns()
        self._prompts = Prompts(serving, self.kv)
        # Tokens of prompts that it has in hand.
        self.prefilling = 0
        # Whose LoRA it has, and what brought it.
        self._scene = 0
        self._lora: Ticket | None = None
        # Whether it works, and how often it has gone down.
        self.is_up, self.outages = True, 0
        # Those for whom there is nothing more to do.
        self._dropped: list[Prompt | Turn] = []
        self._idle = True
        # What it does now, and since when.
        self._doing: tuple[Prefill | DecodeStep, float] | None = None

    def lora(self, scene: int, n_bytes: float) -> Ticket | None:
        """Fires when it has the LoRA of a scene; None: it needs none."""
        if self._scene != scene:
            self._lora = self.machine.move(Extents([0], [int(n_bytes)]), "host", "device")
            self._scene = scene
        return self._lora

    def prefill(self, request: int, tokens: int, *, has_memory: bool, before: int = 0) -> Prompt:
        """`has_memory`: there is memory for the prompt's KV already, and that of the tokens `before` it, whose KV is
        known."""
        prompt = Prompt(self, request, tokens, has_memory, before)
        self._prompts.waiting.append(prompt)
        self._wake()
        return prompt

    def decode(self, request: int, context: int, tokens: int, pace_s: float | None) -> Turn:
        """Decode this many tokens, at least one every `pace_s` behind the one before; None: as they come."""
        sends_s = self.machine.env.now
        if pace_s is not None and not self._idle:
            # What it does now is done first, and then a step.
            until_s = 0.0 if self._doing is None else self._doing[1] + self._prices.op_s(self._doing[0])
            sends_s = max(sends_s, until_s + self.holders.longest_step_s() - pace_s)
        turn = Turn(self, request, context, tokens, pace_s, sends_s)
        self.turns.add(turn)
        self._wake()
        return turn

    def drop(self, work: Prompt | Turn) -> None:
        """Nobody wants it any more: it is done with, and its `done` fires, behind the piece or the step that is under
        way."""
        self._dropped.append(work)
        self._wake()

    def free(self, lease: Lease) -> None:
        """Gives memory for KV back."""
        self.kv.free(lease)
        if self._prompts.waiting:
            # One of them may have waited for it.
            self._wake()

    def go_down(self, until_s: float) -> None:
        """All that it has in hand fails with Down; what comes until `come_up` waits. A piece or step under way ends,
        for nothing."""
        self.is_up, self.outages = False, self.outages + 1
        down = Down(f"an instance is down until {until_s:g} s, and what it had in hand is lost")
        self._prompts.fail(down)
        self.turns.join()
        self.turns.fail(down)
        self._lora, self._scene = None, 0
        self.kv.lose_beginnings()

    def come_up(self) -> None:
        self.is_up = True
        self._wake()

    def _wake(self) -> None:
        if self._idle and self.is_up:
            self._idle = False
            self.machine.env.process(self._work())

    def _work(self) -> Process:
        prompts, turns, stepped = self._prompts, self.turns, True
        while True:
            self._let_go()
            if not self.is_up:
                break
            turns.join()
            prompt = prompts.next() if prompts.waiting else None
            piece = None if prompt is None else self._piece(prompt, stepped)
            if prompt is not None and piece is not None:
                stepped = False
                others = [] if turns.running else prompts.beside(prompt, piece)
                prompts.begun()
                try:
                    token = yield self._begun(_together(piece, others), prompt.request)
                except Exception as error:
                    # The fault of one request is not the end of the others.
                    if not prompt.is_lost:
                        prompts.remove(prompt)
                        prompt.done.fail(error)
                else:
                    prompts.read(prompt, int(piece.tokens), token)
                    for other in others:
                        prompts.read(other, other.left, None)
            elif turns.running:
                stepped = True
                try:
                    said = yield self._begun(turns.next_step(), None)
                except Exception as error:
                    turns.fail(error)
                else:
                    turns.stepped(said)
            else:
                break
        self._idle = True

    def _let_go(self) -> None:
        for work in self._dropped:
            if not work.done.triggered:
                if isinstance(work, Prompt):
                    self._prompts.remove(work)
                else:
                    self.turns.drop(work)
                work.done.succeed()
        self._dropped.clear()

    def _begun(self, op: Prefill | DecodeStep, request: int | None) -> Ticket:
        self._doing = op, self.machine.env.now
        return self.machine.submit(op, request=request)

    def _piece(self, prompt: Prompt, stepped: bool) -> Prefill | None:
        """What to prefill before the next step; None: nothing."""
        running, serving = self.turns.running, self._serving
        # Those who hold a slot decode, or will soon, unless their prompts wait.
        beside = self.holders.n > sum(one.has_memory and one.lease is None for one in self._prompts.waiting)
        piece = piece_of(serving.piece_tokens(prompt.left, beside), prompt.before)
        if running and serving.chunk_tokens is not None:
            due_s = min(turn.due_s for turn in running)
            spare_s = due_s - self.machine.env.now - self.holders.longest_step_s()
            if not serving.prefills(self._prices.op_s(piece), spare_s, stepped):
                return None
        elif running and not stepped:
            return None
        return piece


def _together(piece: Prefill, others: Sequence[Prompt]) -> Prefill:
    """One pass for a piece and these prompts."""
    if not others:
        return piece
    n = 1 + len(others)
    tokens = (piece.tokens + sum(one.left for one in others)) / n
    return Prefill(tokens, (piece.context_tokens + sum(one.before for one in others)) / n, batch=n)

"""Ops of turns carried out on a real model, whose KV comes from memory, storage or the cloud, or is computed."""

from collections.abc import Sequence
from typing import Any

import torch

from kvferry.backends.live.engine.op_runner import RegisteredOps, runs
from kvferry.backends.live.turns.kv import KvOfConversations
from kvferry.machine.ops import Advance, DecodeStep, KvRef, Op, OutputHead, PrefillLayer, Project
from kvferry.model.session import Session
from kvferry.model.turn_session import TurnSession
from kvferry.specs.errors import KvferryError
from kvferry.traces.turn import Turns


class TurnRunner(RegisteredOps):
    """Turns by number, one at a time. One thread calls `run`. Answers are greedy."""

    about = "conversations"

    def __init__(self, turns: Turns, kv: KvOfConversations) -> None:
        self._turns, self._kv = turns, kv

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run(self, op: Op, request: int | None, inputs: Sequence[Any] = ()) -> Any:
        """Carry out one op. Raises InputError for ops that it does not have, KvferryError for one out of turn."""
        return self.method_of(op)(op, request)

    # --- loading -------------------------------------------------------------------------------------------------

    @runs(Project)
    def _project(self, op: Project, turn: int) -> None:
        session, kv = self._loading(op, turn)
        session.project(kv.token_chunk, kv.layer)

    @runs(Advance)
    def _advance(self, op: Advance, turn: int) -> None:
        session, kv = self._loading(op, turn)
        session.advance(kv.token_chunk, kv.layer)

    def _loading(self, op: Project | Advance, turn: int) -> tuple[Session, KvRef]:
        session = self._kv.session(turn).session
        if session is None or op.kv is None:
            raise KvferryError(f"{op.label}: turn {turn} has no block of the KV that it works on")
        return session, op.kv

    # --- answering -----------------------------------------------------------------------------------------------

    @runs(PrefillLayer)
    def _read_layer(self, op: PrefillLayer, turn: int) -> None:
        assert op.layer is not None
        self._kv.session(turn).read_layer(op.layer, int(op.tokens))

    @runs(OutputHead)
    def _first(self, op: OutputHead, turn: int) -> None:
        session = self._kv.session(turn)
        self._kv.answers[turn] = [session.next_token()]
        self._complete(turn, session)

    @runs(DecodeStep)
    def _step(self, op: DecodeStep, turn: int) -> None:
        session, answer = self._kv.session(turn), self._kv.answers.get(turn)
        if not answer:
            raise KvferryError(f"turn {turn} cannot go on decoding before its prompt was read")
        answer.append(session.after(answer[-1]))
        self._complete(turn, session)

    def _complete(self, turn: int, session: TurnSession) -> None:
        """Reads the last token of an answer, too, where it completes a block that the turn leaves."""
        answer, asked = self._kv.answers[turn], self._turns.numbered[turn]
        if len(answer) == asked.output and len(asked.leaves) * self._turns.block == asked.prompt + asked.output:
            session.after(answer[-1])

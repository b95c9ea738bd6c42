"""Ops of turns carried out on a real model, whose KV comes from memory, storage or the cloud, or is computed."""

from collections.abc import Sequence
from typing import Any

import torch

from kvferry.backends.live.assist.voice import Said, Token, Voice
from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.op_runner import RegisteredOps, runs
from kvferry.backends.live.turns.kv import KvOfConversations
from kvferry.machine.handling import Forget, Handling, Prepare, Prepared
from kvferry.machine.ops import Advance, DecodeRun, DecodeStep, KvRef, Op, OutputHead, Prefill, PrefillLayer, Project
from kvferry.model.session import Session
from kvferry.model.tokens import Tokens
from kvferry.model.turn_session import TurnSession
from kvferry.specs.errors import InputError, KvferryError
from kvferry.traces.turn import Turns


class TurnRunner(RegisteredOps):
    """Turns by number, one at a time. One thread calls `run`, another `handle`. Answers are greedy.

    `tokens` make text of ids, where a cloud helps."""

    about = "conversations"

    def __init__(self, turns: Turns, kv: KvOfConversations, tokens: Tokens | None = None, tokenizer: str = "") -> None:
        self._turns, self._kv, self._tokens, self._tokenizer = turns, kv, tokens, tokenizer
        self._voice = None if tokens is None else Voice(tokens)
        self._said = Said()

    def begin(self, env: WallClockEnvironment) -> None:
        """The machine's clock is this."""
        if self._voice is not None:
            self._voice.env = env

    def handle(self, handling: Handling, turn: int | None) -> Any:
        """What software does beside ops, where a cloud helps: a prompt is sent whole, as the cloud has no KV of it."""
        if isinstance(handling, Forget):
            return None
        if not isinstance(handling, Prepare) or self._tokens is None:
            raise InputError(f"{type(handling).__name__} is nothing that {self.about} do")
        session = self._kv.session(turn)
        text = ("", self._tokens.decode(session.ids), "")
        return Prepared(text, session.lacking, self._tokenizer, vocabulary=self._tokens.vocabulary)

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
    def _first(self, op: OutputHead, turn: int) -> Token | None:
        session = self._kv.session(turn)
        self._said = said = Said()
        said.next = session.next_token()
        self._kv.answers[turn] = [said.next]
        self._complete(turn, session)
        return None if self._voice is None else self._voice.say(said)

    @runs(DecodeStep)
    def _step(self, op: DecodeStep, turn: int) -> None:
        session, answer = self._kv.session(turn), self._kv.answers.get(turn)
        if not answer:
            raise KvferryError(f"turn {turn} cannot go on decoding before its prompt was read")
        answer.append(session.after(answer[-1]))
        self._complete(turn, session)

    # --- behind what a cloud has said ------------------------------------------------------------------------------

    @runs(DecodeRun)
    def _through(self, op: DecodeRun, turn: int) -> int:
        """All of an answer behind its first token, or behind what stands."""
        session, of = self._kv.session(turn), op.of
        if self._voice is None or of is None:
            raise KvferryError(f"{op.label}: no cloud helps with turn {turn}")
        if of.by_text:
            # Its answer would be other tokens than the turn's, and another number of them.
            what = "the cloud's model makes tokens of text in another way than the device's"
            raise InputError(f"machines.cloud.model: {what}; in conversations one with the same tokenizer would do")
        corrected = self._voice.followed(self._said, session.behind, of, op.tokens + (of.read or 1))
        self._kv.answers[turn] = self._said.said
        self._complete(turn, session)
        return corrected

    @runs(Prefill)
    def _take_in(self, op: Prefill, turn: int) -> None:
        """Tokens of an answer that stand so far."""
        stands, _ = op.drafted or ((), ())
        if stands:
            self._kv.session(turn).behind([one for one, _ in stands])

    def _complete(self, turn: int, session: TurnSession) -> None:
        """Reads the last token of an answer, too, where it completes a block that the turn leaves."""
        answer, asked = self._kv.answers[turn], self._turns.numbered[turn]
        if len(answer) == asked.output and len(asked.leaves) * self._turns.block == asked.prompt + asked.output:
            session.after(answer[-1])

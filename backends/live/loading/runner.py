"""Ops of the protocol carried out on a real model: which session, which chunk, and what comes back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from transformers import PreTrainedModel

from kvferry.backends.live.engine.op_runner import RegisteredOps, runs
from kvferry.machine.ops import Advance, DecodeRun, DecodeStep, KvRef, Op, Prefill, PrefillHead, Project
from kvferry.model.attention import Attention, dense
from kvferry.model.decoders import decoder_of
from kvferry.model.kv import NotReady, SessionKv
from kvferry.model.session import Session, new_kv
from kvferry.specs.errors import InputError, KvferryError
from kvferry.traces.chunks import CHUNK_TOKENS, token_chunks


@dataclass(frozen=True)
class Prompt:
    """What a conversation reads: a stored context, then a question in each turn, `output_tokens` of which are answered
    before the next. ``questions`` lie one behind the other."""

    context: tuple[int, ...]
    questions: tuple[int, ...]
    output_tokens: int
    attention: Attention = dense
    turns: int = 1

    def question(self, turn: int) -> tuple[int, ...]:
        each = len(self.questions) // self.turns
        return self.questions[turn * each : (turn + 1) * each]

    @property
    def room(self) -> int:
        """Tokens behind the context, when all turns are over."""
        return len(self.questions) + self.turns * self.output_tokens


class SessionRunner(RegisteredOps):
    """One session per conversation, which its first request names: opened by its first op or chunk, closed by its last
    token.

    Sessions are told apart by request and not by sequence: two requests over one context load it twice. The
    buffers of a closed session are used again. `run` belongs to the compute thread, `load` may be another's.
    """

    about = "a model session"

    def __init__(
        self, model: PreTrainedModel, prompt_of: Callable[[int], Prompt], *, chunk_tokens: int = CHUNK_TOKENS
    ) -> None:
        self.model = model
        self._prompt_of = prompt_of
        self._chunk_tokens = chunk_tokens
        self._prompts: dict[int, Prompt] = {}
        self._sessions: dict[int, Session] = {}
        self._spare: list[SessionKv] = []
        self._closed: set[int] = set()
        self._lock = Lock()
        # Token ids answered so far, by request.
        self.answers: dict[int, list[int]] = {}

    def run(self, op: Op, request: int | None, inputs: Sequence[Any] = ()) -> Any:
        """Carry out one op. Prefill and DecodeStep give the id of the next token, greedily chosen.

        Raises InputError for ops that a real model does not have, NotReady when their KV is not there.
        """
        method = self.method_of(op)
        if request is None:
            raise KvferryError(f"{op.label} needs a request: it names the session")
        return method(op, request)

    @runs(PrefillHead)
    def _prefill_head(self, op: PrefillHead, request: int) -> None:
        raise InputError(
            "a real model cannot compute one KV head of a layer by itself: the heads meet in its output "
            "projection; set `coupling: all_heads`"
        )

    @runs(Project)
    def _project(self, op: Project, request: int) -> Any:
        session = self.session(request)
        kv = _unit(op, session)
        return session.project(kv.token_chunk, kv.layer)

    @runs(Advance)
    def _advance(self, op: Advance, request: int) -> Any:
        session = self.session(request)
        kv = _unit(op, session)
        return session.advance(kv.token_chunk, kv.layer)

    @runs(Prefill)
    def _prefill(self, op: Prefill, request: int) -> int:
        prompt = self._prompt(request)
        answered = self.answers.setdefault(request, [])
        if len(answered) == prompt.turns * prompt.output_tokens:
            answered.clear()  # of a session that was closed: this one begins again
        # The last token of the answer before is read with the question.
        question = (*answered[-1:], *prompt.question(len(answered) // prompt.output_tokens))
        if op.tokens != len(question):
            raise InputError(f"request {request}: Prefill of {op.tokens} tokens, its question has {len(question)}")
        return self._answer(request, question)

    @runs(DecodeStep)
    def _decode_step(self, op: DecodeStep, request: int) -> int:
        if op.batch != 1:
            raise InputError(f"a session decodes one sequence, not a batch of {op.batch}")
        if not self._sessions.get(request) or not self.answers.get(request):
            raise NotReady(f"request {request} cannot go on decoding before its question was read")
        return self._answer(request, self.answers[request][-1:])

    @runs(DecodeRun)
    def _decode_run(self, op: DecodeRun, request: int) -> None:
        for n in range(op.tokens):
            self._decode_step(DecodeStep(1, op.context_tokens + n), request)

    def load(self, request: int, chunk: int, keys: Any, values: Any) -> bool:
        """Take in one decoded chunk, by its flat index in (token chunk, layer, KV head); see SessionKv.load.

        False too for a request that is over: what lost a race may arrive after the answer.
        """
        with self._lock:
            if request in self._closed:
                return False
            session = self._opened(request)
        # From here on the request may be over any time; its session knows when its buffers are another's.
        rest, h = divmod(chunk, session.kv.heads)
        t, l = divmod(rest, session.kv.layers)
        if not 0 <= t < len(session.kv.tokens):
            raise InputError(f"chunk {chunk} is not of this context: it has {len(session.kv.tokens)} token chunks")
        return session.load(t, l, h, keys, values)

    def session(self, request: int) -> Session:
        """The session of a request, opened if need be."""
        with self._lock:
            return self._opened(request)

    def _opened(self, request: int) -> Session:
        if request not in self._sessions:
            self._sessions[request] = self._open(self._prompt(request))
        return self._sessions[request]

    def reserve(self, context_tokens: int, room: int) -> None:
        """Have buffers ready for one session of this size, so that none is waited for while a request runs."""
        kv = new_kv(decoder_of(self.model, latent=False), token_chunks(context_tokens, self._chunk_tokens), room)
        kv.touch()
        with self._lock:
            self._spare.append(kv)

    def close(self, request: int) -> None:
        """Give up a request's session; harmless when there is none."""
        with self._lock:
            session = self._sessions.pop(request, None)
            self._prompts.pop(request, None)
            self._closed.add(request)
            if session is not None:
                self._spare.append(session.kv)

    def _prompt(self, request: int) -> Prompt:
        if request not in self._prompts:
            self._prompts[request] = self._prompt_of(request)
        return self._prompts[request]

    def _open(self, prompt: Prompt) -> Session:
        room = prompt.room
        chunks = tuple(token_chunks(len(prompt.context), self._chunk_tokens))
        fitting = (kv for kv in self._spare if kv.tokens == chunks and kv.capacity >= kv.total_tokens + room)
        kv = next(fitting, None)
        if kv is not None:
            self._spare.remove(kv)
        return Session(
            self.model,
            prompt.context,
            chunk_tokens=self._chunk_tokens,
            room=room,
            attention=prompt.attention,
            kv=kv,
        )

    def _answer(self, request: int, tokens: Any) -> int:
        token = int(self.session(request).read(tokens).argmax())
        answer = self.answers[request]
        answer.append(token)
        if len(answer) == self._prompt(request).turns * self._prompt(request).output_tokens:
            self.close(request)
        return token


def _unit(op: Project | Advance, session: Session) -> KvRef:
    """Which KV an op means. Raises when it does not say, or when its context is cut otherwise than the session's."""
    if op.kv is None:
        raise KvferryError(f"{op.label} does not say which KV it works on")
    tokens = session.kv.tokens
    if op.kv.token_chunk >= len(tokens) or op.tokens != tokens[op.kv.token_chunk]:
        raise InputError(
            f"{op.label} of {op.tokens} tokens in token chunk {op.kv.token_chunk}: "
            f"the session's chunks have {', '.join(map(str, tokens[:4]))} ... tokens; context and prompt differ"
        )
    return op.kv

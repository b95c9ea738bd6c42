"""Carries out what the roles of a device and of a cloud ask of their machine, on a real model."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from kvferry.backends.live.assist.voice import Said, Token, Voice
from kvferry.backends.live.engine.environment import WallClockEnvironment
from kvferry.backends.live.engine.op_runner import RegisteredOps, runs
from kvferry.machine.handles import Continued
from kvferry.machine.handling import Forget, Handling, Prepare, Prepared, Refine, TakeIn, TakenIn, Unpack
from kvferry.machine.ops import DecodeRun, DecodeStep, Op, Prefill
from kvferry.model.decoder import Decoder, Rotary
from kvferry.model.needles import needle_prompt, sentence_numbers
from kvferry.model.prompts import Prompts
from kvferry.model.request_session import RequestSession, step
from kvferry.model.tokens import Tokens
from kvferry.policies.assist.prompt_mask import BadMask, mask_of_text, text_of_mask
from kvferry.policies.assist.refiner import OF_THE_WINDOW, Shown
from kvferry.specs.errors import KvferryError

# Positions beyond those of the prompt and the answer that drafts may reach.
_SPARE_TOKENS = 1024


class _Asked(Said):
    """A request in hand: its text in parts, its session, and what it has said."""

    def __init__(self, text: Sequence[str], session: RequestSession, parts: Sequence[int], answer: int) -> None:
        self.text, self.session, self.parts, self.answer = tuple(text), session, tuple(parts), answer
        super().__init__()

    @property
    def most_tokens(self) -> int:
        """Returns how many positions its prompt and its answer may take."""
        return len(self.session.ids) + self.answer


class _Resident:
    """The model, as long as it is in memory; ``decoder`` is None while it is not."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder: Decoder | None = decoder
        self._rotary = decoder.rotary(1)

    def reaching(self, tokens: int) -> tuple[Decoder, Rotary]:
        """Returns it with its rotary embedding for so many positions, and the ones that drafts take."""
        decoder = self.decoder
        if decoder is None:
            raise KvferryError("the model is not in memory: it is read from storage first")
        if self._rotary[0].shape[2] < tokens + _SPARE_TOKENS:
            self._rotary = decoder.rotary(tokens + _SPARE_TOKENS)
        return decoder, self._rotary


class AssistRunner(RegisteredOps):
    """Requests by number. One thread calls `run`, another `handle`.

    `seed` is that of the prompts' needles.
    """

    about = "prompts that a cloud helps with"

    def __init__(self, decoder: Decoder, prompts: Prompts, tokens: Tokens, *, seed: int) -> None:
        self.model = _Resident(decoder)
        self._voice = Voice(tokens)
        self._prompts, self._tokens, self._seed = prompts, tokens, seed
        self._vocabulary = decoder.vocabulary
        self._asked: dict[int, _Asked] = {}
        self._handles: dict[type[Handling], Callable[[Any, int], Any]] = {
            Prepare: self._prepare,
            TakeIn: self._take_in,
            Refine: self._refine,
            Unpack: self._unpack,
            Forget: self._forget,
        }

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def run(self, op: Op, request: int | None, inputs: Sequence[Any] = ()) -> Any:
        """Carry out one op. Raises InputError for ops that it does not have, KvferryError for one out of turn."""
        return self.method_of(op)(op, request)

    def handle(self, handling: Handling, request: int | None) -> Any:
        """What software does beside ops. Raises BadMask."""
        assert request is not None
        return self._handles[type(handling)](handling, request)

    def begin(self, env: WallClockEnvironment) -> None:
        """The machine's clock is this."""
        self._voice.env = env

    # --- handling ------------------------------------------------------------------------------------------------

    def _prepare(self, handling: Prepare, request: int) -> Prepared:
        content = handling.tokens - handling.beginning - handling.question
        ids, _ = self._prompts.tokens(request, handling.tokens, 0)
        prompt = needle_prompt(
            self._tokens, ids, handling.beginning, content, handling.question, seed=self._seed, number=request
        )
        text = prompt.beginning, prompt.content, prompt.question
        asked = self._take(text, handling.answer, request, observes=False)
        return Prepared(text, len(asked.session.ids), self._prompts.tokenizer, prompt.value, self._vocabulary)

    def _take_in(self, handling: TakeIn, request: int) -> TakenIn:
        if handling.text is None:
            raise KvferryError(f"request {request}: the device has sent no text")
        asked = self._take(handling.text, handling.answer, request, observes=handling.refined)
        return TakenIn(len(asked.session.ids), self._prompts.tokenizer)

    def _take(self, text: Sequence[str], answer: int, request: int, *, observes: bool) -> _Asked:
        # Part by part: what is prefilled before the mask is known is the same with any mask.
        parts = [self._tokens.encode(part) for part in text]
        session = RequestSession([one for part in parts for one in part], observes=observes)
        asked = self._asked[request] = _Asked(text, session, [len(part) for part in parts], answer)
        return asked

    def _refine(self, handling: Refine, request: int) -> str:
        asked = self._of(request)
        beginning, content, _ = asked.parts
        window = asked.session.observed.flatten(0, 1)[:, beginning : beginning + content].numpy()
        begins = self._tokens.begins(asked.text[1])
        kept = OF_THE_WINDOW[handling.refiner].kept(
            Shown(window, np.zeros_like(window), sentence_numbers(asked.text[1], begins)), handling.tokens
        )
        return mask_of_text(kept, begins, asked.text)

    def _unpack(self, handling: Unpack, request: int) -> int:
        asked = self._of(request)
        if handling.mask is None:
            raise BadMask("the cloud has sent no mask")
        content = self._tokens.encode(text_of_mask(handling.mask, asked.text))
        beginning, _, question = asked.parts
        ids = asked.session.ids
        asked.session.ids = [*ids[:beginning], *content, *(ids[-question:] if question else ())]
        return len(asked.session.ids)

    def _forget(self, handling: Forget, request: int) -> None:
        self._asked.pop(request, None)

    # --- ops -----------------------------------------------------------------------------------------------------

    @runs(Prefill)
    def _prefill(self, op: Prefill, request: int) -> Token | list[Token] | None:
        """The token behind the prompt, once all of it is read; or what is said of drafts."""
        asked = self._of(request)
        if op.drafted is not None:
            return self._looked(asked, *op.drafted)
        session = asked.session
        left = len(session.ids) - len(session.history)
        if not 0 < op.tokens <= left:
            raise KvferryError(f"request {request}: Prefill of {op.tokens} tokens, {left} are left of its prompt")
        logits = session.more(*self.model.reaching(asked.most_tokens), op.tokens)
        if op.tokens < left:
            return None
        asked.next = int(logits.argmax())
        return self._voice.say(asked)

    @runs(DecodeStep)
    def _step(self, op: DecodeStep, request: int | None) -> list[Token]:
        """One more token of each request."""
        assert op.of is not None
        asked = [self._of(one) for one in op.of.sequences]
        decoder, rotary = self.model.reaching(max(one.most_tokens for one in asked))
        logits = step(decoder, rotary, [one.session for one in asked], [one.next for one in asked])
        for one, said in zip(asked, logits.argmax(-1).tolist(), strict=True):
            one.next = said
        return [self._voice.say(one) for one in asked]

    @runs(DecodeRun)
    def _decode_run(self, op: DecodeRun, request: int) -> list[Token] | int:
        """Further tokens of an answer; with a Continued that follows a cloud, all behind the first: then how many of
        the cloud's differ from what the model would have said. A token of the cloud's that is neither due nor there
        when the model has its own is not waited for."""
        asked, of = self._of(request), op.of or Continued()
        if of.following is None:
            return self._drafts(asked, [one for one, _ in of.stands], op.tokens)
        return self._voice.followed(asked, lambda answer: self._after(asked, answer), of, op.tokens + (of.read or 1))

    def _drafts(self, asked: _Asked, stands: list[int], tokens: int) -> list[Token]:
        drafts: list[int] = []
        for _ in range(tokens):
            drafts.append(self._after(asked, [*stands, *drafts]))
        return self._voice.texts(stands, drafts)

    def _looked(self, asked: _Asked, before: Sequence[Token], drafted: Sequence[Token]) -> list[Token]:
        """The drafts that stand, and what the model says instead of the first that does not."""
        stands, drafts = [one for one, _ in before], [one for one, _ in drafted]
        ids = [*asked.session.ids, *stands, *drafts]
        logits = asked.session.after(*self.model.reaching(asked.most_tokens), ids, last=len(drafts) + 1)
        would_say = logits.argmax(-1).tolist()
        n = next((n for n, (a, b) in enumerate(zip(drafts, would_say, strict=False)) if a != b), len(drafts))
        return self._voice.texts(stands, would_say[: min(n + 1, len(drafts))])

    # --- what they share -----------------------------------------------------------------------------------------

    def _of(self, request: int | None) -> _Asked:
        if request not in self._asked:
            raise KvferryError(f"request {request} is not in hand")
        return self._asked[request]

    def _after(self, asked: _Asked, answer: Sequence[int]) -> int:
        """What the model says behind so much of an answer."""
        logits = asked.session.after(*self.model.reaching(asked.most_tokens), [*asked.session.ids, *answer])
        return int(logits[-1].argmax())

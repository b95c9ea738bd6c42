"""Batches of requests whose KV is all in memory: admitted in order of arrival, by the pages that are free."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

from kvferry.policies.decode.pages import PageTable, pages_of
from kvferry.specs.units import Tokens


class Batching(Protocol):
    """Says which requests decode together where all KV is in memory."""

    @property
    def prefill_tokens(self) -> int | None:
        """Returns the tokens of prompts that are prefilled together, at most; None: of all that are admitted."""
        ...

    def joins(self, decoding: bool) -> bool:
        """Returns whether a waiting request may join the requests with a slot, who decode already or not."""
        ...


@dataclass(frozen=True, kw_only=True)
class Continuous:
    """A request joins as soon as a slot and pages are free."""

    prefill_tokens: Annotated[Tokens, Field(ge=1)] | None = None

    def joins(self, decoding: bool) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class LockStep:
    """Makes a batch of the waiting requests when the last one has ended; no other joins it."""

    prefill_tokens: Annotated[Tokens, Field(ge=1)] | None = None

    def joins(self, decoding: bool) -> bool:
        return not decoding


@dataclass(frozen=True)
class Turn:
    """Says what the processor does next: prefill prompts, or decode a token of each sequence.

    ``tokens`` of each sequence are in its KV afterwards; of a prompt, all are computed. ``released`` sequences have
    ended, or were preempted, since the turn before: their KV is given up first.
    """

    kind: Literal["prefill", "decode"]
    sequences: tuple[int, ...]
    tokens: tuple[int, ...]
    released: tuple[int, ...]


@dataclass
class _Request:
    sequence: int
    # Tokens to keep in memory at its next prefill: the prompt, and what was said before it was preempted.
    tokens: int
    # Tokens of the answer that are still to come.
    wanted: int


class Batcher:
    """Decides turn by turn: `turn` says what is next, `done` is called when it has been carried out.

    Prefill goes first, as in vLLM. A request is admitted when a slot is free and there are pages for its prompt and
    one more token; it takes further pages as it grows. When none is free, the request that arrived last gives up its
    KV and is prefilled again later, with what it has said (preemption by recomputing).

    Prompts that are admitted together are prefilled together, at most as many tokens of them as `batching` says (one
    prompt may be longer): fewer make the first ones wait less.

    Left out: chunked prefill beside decoding, and swapping out instead of recomputing.
    """

    def __init__(
        self,
        pages: int,
        slots: int,
        batching: Batching | None = None,
        kept: Callable[[int], int] = lambda tokens: tokens,
        pages_of: Callable[[int], int] = pages_of,
    ) -> None:
        """`batching`: continuous by default. `kept`: of a sequence's tokens, those whose KV is kept. `pages_of`: the
        pages that these take."""
        self.pages, self._pages_of = PageTable(pages, pages_of), pages_of
        self._slots, self._batching, self._kept = slots, batching or Continuous(), kept
        # Both in order of arrival, and all that runs arrived before all that waits.
        self._waiting: deque[_Request] = deque()
        self._running: dict[int, _Request] = {}
        self._released: list[int] = []
        self._decoding = False
        self.preemptions = 0

    @property
    def running(self) -> int:
        """Returns the requests that hold a slot."""
        return len(self._running)

    def arrive(self, sequence: int, context: int, output: int) -> None:
        """A request for `output` tokens. Raises ValueError when the whole pool could not hold it to its end."""
        if self._pages_of(self._kept(context + output)) > self.pages.pages:
            raise ValueError(f"{self._kept(context + output):,} tokens do not fit {self.pages.pages:,} pages")
        self._waiting.append(_Request(sequence, context, output))

    def turn(self) -> Turn | None:
        """Returns what is next; None: nothing until another request arrives."""
        admitted = self._admit()
        if admitted:
            return self._turn("prefill", admitted)
        if not self._running:
            return None
        together = self._grow()
        self._decoding = True
        return self._turn("decode", together)

    def done(self, turn: Turn) -> tuple[int, ...]:
        """Gives each sequence of the turn its next token; the ended ones leave and are returned."""
        ended = []
        for sequence in turn.sequences:
            request = self._running[sequence]
            request.tokens += 1
            request.wanted -= 1
            if not request.wanted:
                self._leave(sequence)
                ended.append(sequence)
        self._decoding = self._decoding and bool(self._running)
        return tuple(ended)

    def _turn(self, kind: Literal["prefill", "decode"], requests: list[_Request]) -> Turn:
        released, self._released = tuple(self._released), []
        tokens = (r.tokens if kind == "prefill" else self._kept(r.tokens) for r in requests)
        return Turn(kind, tuple(r.sequence for r in requests), tuple(tokens), released)

    def _admit(self) -> list[_Request]:
        """Admits the requests at the head of the queue that find room and may be prefilled together, and returns
        them."""
        admitted: list[_Request] = []
        most, tokens = self._batching.prefill_tokens or math.inf, 0
        if not self._batching.joins(self._decoding):
            return admitted
        while self._waiting and len(self._running) < self._slots:
            first = self._waiting[0]
            tokens += first.tokens
            if admitted and tokens > most:
                break
            if not self.pages.has_room(first.sequence, self._kept(first.tokens + 1)):
                break
            self.pages.make_room(first.sequence, self._kept(first.tokens))
            self._running[first.sequence] = first
            admitted.append(self._waiting.popleft())
        return admitted

    def _grow(self) -> list[_Request]:
        """Give each running request room for one more token, earlier arrivals first; the last give way to them."""
        together = []
        for request in list(self._running.values()):
            kept = self._kept(request.tokens)
            while request.sequence in self._running and not self.pages.has_room(request.sequence, kept):
                self._preempt()
            if request.sequence in self._running:
                self.pages.make_room(request.sequence, kept)
                together.append(request)
        return together

    def _preempt(self) -> None:
        last = next(reversed(self._running))
        self._waiting.appendleft(self._running[last])
        self._leave(last)
        self.preemptions += 1

    def _leave(self, sequence: int) -> None:
        del self._running[sequence]
        self.pages.release(sequence)
        self._released.append(sequence)

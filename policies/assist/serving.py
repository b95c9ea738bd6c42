"""Which instance of a cloud serves a request: slots that are held, and who waits for one (P/D-Device 3.1)."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

# least-loaded: the instance with most free slots; in-turn: one after the other.
Routing = Literal["least-loaded", "in-turn"]
# first-come: each prompt to its end, as engines do by default. shortest: a piece of the one with the least left, then
# one of the one that came first, so that a long one ends however many come behind it.
PromptOrder = Literal["first-come", "shortest"]


class HasLeft(Protocol):
    """A prompt of which so many tokens are to be read yet."""

    @property
    def left(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How a cloud serves. `slots` of an instance that decodes: requests that it has in hand together, each from when
    its KV moves there, or is begun there, until its last token.

    `tpot_s`: the time per token that an instance keeps, by taking in no request with which steps would be longer.
    None: what a step takes with all slots held, as far as users tolerate that.

    `chunk_tokens`: beside requests that decode, prompts go in pieces of this many tokens, a step after each piece at
    least (chunked prefill), and no piece begins that would make a token later than a device was promised. None: whole
    prompts, whoever waits. `alone_tokens`: of the pieces where nobody decodes beside. Each costs a pass, and behind
    each a prompt is dropped whose device is gone; 8,192 is what vLLM takes together.

    `prefix_caching`: instances keep the KV of the beginning that all prompts of a scene share, as long as memory is
    left over, and prefill what follows it. `batched_prefill`: an instance that decodes for nobody prefills waiting
    prompts in one pass, as far as `alone_tokens` go: weights are read once for all of them, and all end together.

    `prompts`: whose piece comes next. With the shortest rest first the mean wait is least, equal prompts wait as in
    order of arrival, and behind one of any length a short one waits for a piece of it before each of its own.
    """

    slots: Annotated[int, Field(ge=1, le=100_000)] = 16
    routing: Routing = "least-loaded"
    tpot_s: Annotated[float, Field(gt=0)] | None = None
    chunk_tokens: Annotated[int, Field(ge=16, le=1_000_000)] | None = 2048
    alone_tokens: Annotated[int, Field(ge=16, le=1_000_000)] = 8192
    prefix_caching: bool = False
    batched_prefill: bool = False
    prompts: PromptOrder = "first-come"

    def piece_tokens(self, left: int, beside: bool) -> int:
        """How many of a prompt's remaining tokens are prefilled together, beside others or alone."""
        if self.chunk_tokens is None:
            return left
        return min(left, self.chunk_tokens if beside else self.alone_tokens)

    def in_order(self, prompts: Sequence[HasLeft], *, by_arrival: bool) -> Iterator[int]:
        """Yields prompts, which are in order of arrival, by number in the order in which they are to be read;
        `by_arrival`: it is the turn of the one that came first."""
        if by_arrival or self.prompts == "first-come":
            yield from range(len(prompts))
            return
        by_left = [(prompt.left, n) for n, prompt in enumerate(prompts)]
        heapq.heapify(by_left)
        while by_left:
            yield heapq.heappop(by_left)[1]

    def prefills(self, takes_s: float, spare_s: float, stepped: bool) -> bool:
        """Whether a piece that takes so long comes before the next step, which could wait for `spare_s`; `stepped`: the
        last thing done was a step."""
        return stepped and takes_s <= spare_s


class Slots:
    """Slots of several instances; gives one to a request, or None."""

    def __init__(self, instances: int, serving: Serving) -> None:
        self.held = [0] * instances
        self._serving, self._next = serving, 0

    @property
    def all(self) -> int:
        return len(self.held) * self._serving.slots

    def take(self, fits: Callable[[int], bool]) -> int | None:
        """A slot of the first instance, in the order of routing, that has a free one and for which `fits` says so."""
        for instance in self._order():
            if self.held[instance] < self._serving.slots and fits(instance):
                self.held[instance] += 1
                self._next = instance + 1
                return instance
        return None

    def give_back(self, instance: int) -> None:
        assert self.held[instance] > 0, instance
        self.held[instance] -= 1

    def _order(self) -> Iterator[int]:
        instances = len(self.held)
        if self._serving.routing == "in-turn":
            yield from [(self._next + n) % instances for n in range(instances)]
            return
        # Most often the first one will do.
        yield (least := self.held.index(min(self.held)))
        yield from [n for n in sorted(range(instances), key=self.held.__getitem__) if n != least]

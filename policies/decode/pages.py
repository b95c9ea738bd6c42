"""Pages of KV in memory: which sequence has which of them (vLLM)."""

import math
from collections.abc import Callable

from kvferry.specs.errors import KvferryError
from kvferry.specs.model import ModelSpec
from kvferry.specs.windows import seen

# Tokens per page, as vLLM has it by default.
PAGE_TOKENS = 16


def pages_of(tokens: int) -> int:
    """Returns the pages that a sequence of this length takes."""
    return -(-tokens // PAGE_TOKENS)


class PageSizes:
    """The pages of one model's KV: of ``PAGE_TOKENS`` tokens in as many layers as divide the layers with a window and
    those without, so that all are of one size (vLLM's hybrid KV cache manager). Without windows, in all layers."""

    def __init__(self, model: ModelSpec) -> None:
        self._spans, self._layers = model.spans, math.gcd(*(alike.layers for alike in model.spans))
        self.page_bytes = PAGE_TOKENS * (self._layers * model.kv_entry_values * model.kv_value_bytes)

    def of(self, tokens: int) -> int:
        """Returns the pages that a sequence of this length takes."""
        return sum(n // self._layers * pages_of(seen(tokens, window)) for n, window in self._spans)


class PageTable:
    """A pool of pages, numbered from 0. A page is free or belongs to one sequence. `of_tokens`: the pages that a
    sequence of some length takes."""

    def __init__(self, pages: int, of_tokens: Callable[[int], int] = pages_of) -> None:
        self.pages, self._of_tokens = pages, of_tokens
        # Popped from the end: pages are taken in the order of memory.
        self._free = list(reversed(range(pages)))
        self._of: dict[int, list[int]] = {}
        self.peak_pages = 0

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def of(self, sequence: int) -> list[int]:
        """Returns the pages of a sequence, in the order of its tokens."""
        return self._of.get(sequence, [])

    def has_room(self, sequence: int, tokens: int) -> bool:
        """Returns whether `tokens` of a sequence fit its pages and the free ones."""
        return self._of_tokens(tokens) - len(self.of(sequence)) <= self.free_pages

    def make_room(self, sequence: int, tokens: int) -> None:
        """Gives a sequence pages for `tokens`. Raises KvferryError, and takes none, when too few are free."""
        more = self._of_tokens(tokens) - len(self.of(sequence))
        if more > self.free_pages:
            raise KvferryError(
                f"sequence {sequence} needs {more} more pages, {self.free_pages} of {self.pages} are free"
            )
        if more > 0:
            self._of.setdefault(sequence, []).extend(self._free.pop() for _ in range(more))
            self.peak_pages = max(self.peak_pages, self.pages - self.free_pages)

    def release(self, sequence: int) -> None:
        """Give a sequence's pages back; one that has none is no error."""
        self._free.extend(reversed(self._of.pop(sequence, [])))

    def check(self) -> None:
        """Asserts that every page is free or belongs to one sequence."""
        taken = [page for pages in self._of.values() for page in pages]
        assert sorted([*taken, *self._free]) == list(range(self.pages))

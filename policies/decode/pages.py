"""Pages of KV in memory: which sequence has which of them (vLLM)."""

from kvferry.specs.errors import KvferryError

# Tokens per page, as vLLM has it by default.
PAGE_TOKENS = 16


def pages_of(tokens: int) -> int:
    """Returns the pages that a sequence of this length takes."""
    return -(-tokens // PAGE_TOKENS)


class PageTable:
    """A pool of pages, numbered from 0. A page is free or belongs to one sequence."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
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
        return pages_of(tokens) - len(self.of(sequence)) <= self.free_pages

    def make_room(self, sequence: int, tokens: int) -> None:
        """Gives a sequence pages for `tokens`. Raises KvferryError, and takes none, when too few are free."""
        more = pages_of(tokens) - len(self.of(sequence))
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

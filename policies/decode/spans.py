"""Ranges of a prompt's tokens, in order and apart from each other."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Spans:
    """Tokens from the first to before the last of each range."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, numbers: Iterable[int], tokens: int = 1) -> "Spans":
        """The tokens of blocks of so many, by number."""
        found: list[tuple[int, int]] = []
        for n in sorted(numbers):
            if found and found[-1][1] == n:
                found[-1] = found[-1][0], n + 1
            else:
                found.append((n, n + 1))
        return cls(tuple((begin * tokens, end * tokens) for begin, end in found))

    @classmethod
    def first(cls, tokens: int) -> "Spans":
        """The first tokens of a prompt."""
        return cls(((0, tokens),) if tokens else ())

    @property
    def tokens(self) -> int:
        """Returns how many there are."""
        return sum(end - begin for begin, end in self.ranges)

    def blocks(self, tokens: int, most: int) -> list[tuple[int, int]]:
        """Returns ranges of the blocks of so many tokens that are all in it, of the first `most`."""
        whole = [(-(-begin // tokens), min(end // tokens, most)) for begin, end in self.ranges]
        return [(begin, end) for begin, end in whole if begin < end]

    def without(self, others: "Spans") -> "Spans":
        """Returns the ranges that have none of these tokens."""
        found = list(self.ranges)
        for begin, end in others.ranges:
            cut = [((a, min(b, begin)), (max(a, end), b)) for a, b in found]
            found = [(a, b) for both in cut for a, b in both if a < b]
        return Spans(tuple(found))


def gaps(spans: list[tuple[int, int]], end: int) -> list[tuple[int, int]]:
    """Returns what lies between spans, and up to `end`."""
    edges = [(0, 0), *spans, (end, end)]
    return [(before[1], after[0]) for before, after in pairwise(edges) if before[1] < after[0]]

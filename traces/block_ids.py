"""Names of blocks of tokens: equal blocks behind equal ones have one name, as in Mooncake's hash ids."""

from collections.abc import Callable

from kvferry.specs.errors import InputError
from kvferry.specs.session import MOST_BLOCKS_PER_RUN, MOST_BLOCKS_PER_TURN


class BlockIds:
    """Ids that no recording has: they are negative. Raises InputError, before memory is taken, for more blocks of one
    prompt, or of all of them, than a run may have."""

    def __init__(self) -> None:
        self._named: dict[tuple[int, str], int] = {}
        self._last = 0
        # Of all chains together.
        self._blocks = 0

    def named(self, before: int, content: str) -> int:
        """Returns the id of the block with this content behind the block `before`; 0: at the beginning."""
        key = before, content
        if key not in self._named:
            self._named[key] = self._new()
        return self._named[key]

    def chain(self, blocks: int, content_of: Callable[[int], str]) -> tuple[int, ...]:
        """Returns a chain of this many blocks from the beginning on, of which the n-th has that content."""
        self._take(blocks)
        found: list[int] = []
        for n in range(blocks):
            found.append(self.named(found[-1] if found else 0, content_of(n)))
        return tuple(found)

    def grown(self, chain: tuple[int, ...], blocks: int) -> tuple[int, ...]:
        """Returns a chain of this many blocks that begins with `chain`; the others are no other prompt's."""
        self._take(blocks)
        return (*chain, *(self._new() for _ in range(blocks - len(chain))))

    def _take(self, blocks: int) -> None:
        self._blocks += blocks
        if blocks > MOST_BLOCKS_PER_TURN:
            raise InputError(f"makes {blocks:,} blocks of one turn; at most {MOST_BLOCKS_PER_TURN:,} will do")
        if self._blocks > MOST_BLOCKS_PER_RUN:
            what = f"all turns make more than {MOST_BLOCKS_PER_RUN:,} blocks, with and without their answers"
            raise InputError(f"{what}; larger blocks or fewer turns would do")

    def _new(self) -> int:
        self._last -= 1
        return self._last

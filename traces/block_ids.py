"""Names of blocks of tokens: equal blocks behind equal ones have one name, as in Mooncake's hash ids."""


class BlockIds:
    """Ids that no recording has: they are negative."""

    def __init__(self) -> None:
        self._named: dict[tuple[int, str], int] = {}
        self._last = 0

    def named(self, before: int, content: str) -> int:
        """Returns the id of the block with this content behind the block `before`; 0: at the beginning."""
        key = before, content
        if key not in self._named:
            self._named[key] = self._new()
        return self._named[key]

    def grown(self, chain: tuple[int, ...], blocks: int) -> tuple[int, ...]:
        """Returns a chain of this many blocks that begins with `chain`; the others are no other prompt's."""
        return (*chain, *(self._new() for _ in range(blocks - len(chain))))

    def _new(self) -> int:
        self._last -= 1
        return self._last

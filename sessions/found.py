"""Where the context of a turn was found: its blocks by the place that they come from, and what is left to compute."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvferry.policies.keep.kept import Kept, Place


@dataclass(frozen=True, kw_only=True)
class Found:
    """``blocks``: of the prompt, each with the places where it lies, the nearest first; none: it is to be computed.
    ``tokens``: of a block; ``prompt``: of all, whose last ones are computed in any case."""

    blocks: tuple[tuple[Place, ...], ...]
    tokens: int
    prompt: int

    @classmethod
    def of(cls, kept: Kept, blocks: Sequence[int], tokens: int, prompt: int) -> "Found":
        """The token that follows a prompt needs its last token computed, wherever its KV lies."""
        useful = blocks[: (prompt - 1) // tokens]
        return cls(blocks=tuple(map(kept.places, useful)), tokens=tokens, prompt=prompt)

    def comes_from(self, place: Place) -> list[int]:
        """Returns the blocks, by their place in the prompt, that are nearest in this place."""
        return [n for n, places in enumerate(self.blocks) if places and places[0] == place]

    def lies_in(self, place: Place) -> list[int]:
        """Returns the blocks that lie in this place, whether or not in another as well."""
        return [n for n, places in enumerate(self.blocks) if place in places]

    def beginning_in(self, place: Place) -> int:
        """Returns how many blocks from the first one on lie in this place without a gap."""
        return next((n for n, places in enumerate(self.blocks) if place not in places), len(self.blocks))

    @property
    def gap(self) -> int:
        """Returns the first block that lies nowhere, behind which nothing can be computed before it is."""
        return next((n for n, places in enumerate(self.blocks) if not places), len(self.blocks))

    @property
    def computed(self) -> int:
        """Returns the tokens whose KV is nowhere."""
        return self.prompt - self.tokens * sum(map(bool, self.blocks))

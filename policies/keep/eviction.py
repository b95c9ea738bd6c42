"""Which kept blocks go first when room is lacking: by the last use, by what it costs to get them back, by a forecast of
the next use, or by the future itself."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

# Seconds that getting a block back takes.
Regain = Callable[["Block"], float]
# The place in the order of turns of a block's next use, by its id; infinite where there is none.
NextUse = Callable[[int], float]


@dataclass(slots=True)
class Block:
    """What is known of a block of tokens. ``place``: how many blocks come before it. ``gap_s``: from use to use, the
    newest gaps counting most; None: it was used once. ``worth``: its priority under GreedyDual."""

    id: int
    place: int
    used_s: float
    uses: int = 0
    gap_s: float | None = None
    worth: float = 0.0


class Eviction(Protocol):
    """Ranks blocks; it sees facts, never the world. The lowest goes first."""

    def used(self, block: Block, now_s: float) -> None:
        """The block is used at `now_s`: its facts are those from before."""
        ...

    def rank(self, block: Block, now_s: float) -> float: ...

    def evicted(self, block: Block) -> None:
        """The block is given up for good, so that others find room."""
        ...


class _NothingLearned:
    def used(self, block: Block, now_s: float) -> None:
        """Learns nothing."""

    def evicted(self, block: Block) -> None:
        """Learns nothing."""


class Lru(_NothingLearned):
    """The least recently used block goes first."""

    def rank(self, block: Block, now_s: float) -> float:
        return block.used_s


@dataclass
class ByCost:
    """The block that is got back most quickly goes first, the longer unused the sooner: GreedyDual (Young 1994), whose
    priority is the cost on top of that of the last block that was given up."""

    regain_s: Regain
    _level: float = 0.0

    def used(self, block: Block, now_s: float) -> None:
        block.worth = self._level + self.regain_s(block)

    def rank(self, block: Block, now_s: float) -> float:
        return block.worth

    def evicted(self, block: Block) -> None:
        self._level = max(self._level, block.worth)


# Weight of the newest gap between two uses in their mean.
_NEWEST = 0.3


@dataclass
class Predicted(_NothingLearned):
    """The block whose next use is forecast to be last goes first. It is expected one usual gap after its last use: its
    own, or that of all blocks so far; a block that is overdue is expected as far ahead as it is late."""

    _usual_s: float | None = None
    _gaps: int = field(default=0)

    def used(self, block: Block, now_s: float) -> None:
        if not block.uses:
            return
        gap_s = now_s - block.used_s
        block.gap_s = gap_s if block.gap_s is None else _NEWEST * gap_s + (1 - _NEWEST) * block.gap_s
        self._gaps += 1
        self._usual_s = gap_s if self._usual_s is None else self._usual_s + (gap_s - self._usual_s) / self._gaps

    def rank(self, block: Block, now_s: float) -> float:
        gap_s = block.gap_s if block.gap_s is not None else self._usual_s or 0.0
        since_s = now_s - block.used_s
        expected_s = gap_s - since_s if since_s <= gap_s else since_s
        return -expected_s


@dataclass
class Belady(_NothingLearned):
    """The block that is used again last goes first: knows the future, and is there for comparison (Belady 1966)."""

    next_use: NextUse

    def rank(self, block: Block, now_s: float) -> float:
        following = self.next_use(block.id)
        return -following if math.isfinite(following) else -math.inf


EvictionName = Literal["lru", "cost", "predicted", "belady"]


def eviction(name: EvictionName, *, regain_s: Regain, next_use: NextUse) -> Eviction:
    """Returns the policy of this name."""
    makers: dict[EvictionName, Callable[[], Eviction]] = {
        "lru": Lru,
        "cost": lambda: ByCost(regain_s),
        "predicted": Predicted,
        "belady": lambda: Belady(next_use),
    }
    return makers[name]()

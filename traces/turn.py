"""One turn of a conversation: when it comes, what it reads and answers, and the blocks of tokens that it shares."""

from dataclasses import dataclass
from functools import cached_property

# Tokens of a block where neither a scenario nor a recording says it.
USUAL_BLOCK = 256


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn reads `prompt` tokens, of which the last are its question, and answers `output` tokens.

    ``blocks``: ids of the prompt's whole blocks, from its beginning on; equal ids are equal tokens behind equal ones.
    ``leaves``: ids of the whole blocks of prompt and answer together, which begin with those. It comes at `due_s` on
    the run's clock (None: at no fixed time), but not before `after_s` have passed since its conversation's last answer.
    ``source``: the number of what the conversation is about, by which what is stored of it is drawn; ``stored``: how
    many of its blocks lie in the cloud from the beginning.
    """

    conversation: int
    number: int
    prompt: int
    output: int
    blocks: tuple[int, ...]
    leaves: tuple[int, ...]
    due_s: float | None = None
    after_s: float = 0.0
    source: int = 0
    stored: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of prompt and answer."""
        return self.prompt + self.output


# Turns that come one after the other.
Stream = tuple[Turn, ...]


@dataclass(frozen=True)
class Turns:
    """All turns of a run. ``streams``: each a user, whose turns come one after the other; the ones of several are
    independent of each other. ``block``: tokens of a block. ``notes``: what a reader should know of their recording."""

    streams: tuple[Stream, ...]
    block: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.streams))

    @cached_property
    def numbered(self) -> tuple[Turn, ...]:
        """All turns, user after user: a turn's number in a run is its place here."""
        return tuple(turn for stream in self.streams for turn in stream)

    @cached_property
    def longest(self) -> Turn:
        """The turn with the most tokens of prompt and answer."""
        return max(self.numbered, key=lambda one: one.tokens)

    @cached_property
    def expected(self) -> tuple[Turn, ...]:
        """All turns in the order in which they come if answers take no time: what a forecast of the future goes by."""
        timed: list[tuple[float, int, int, Turn]] = []
        for n, stream in enumerate(self.streams):
            now_s = 0.0
            for place, turn in enumerate(stream):
                now_s = max(now_s + turn.after_s, turn.due_s or 0.0)
                timed.append((now_s, n, place, turn))
        return tuple(turn for *_, turn in sorted(timed, key=lambda one: one[:3]))

"""How much longer than others a message is under way: round trips that differ, drawn or recorded."""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from kvferry.specs.errors import InputError
from kvferry.specs.link import LinkSpec
from kvferry.traces.chance import Source, generator
from kvferry.traces.format import read_lines, read_number

# Milliseconds, and of a round trip.
_MOST_MS = 600_000.0
_MOST_RECORDED = 1_000_000
# A line of what ping prints for an answer.
_PING = re.compile(r"\btime[=<]([0-9.]{1,20}) ?ms\b")


@dataclass(frozen=True, eq=False)
class RoundTrips:
    """``least_s``: the shortest round trip. ``ways_s``: seconds by which one way, up or down, is longer than half of
    that, float[n], all alike likely; None: anything from 0 to `most_s`."""

    least_s: float
    most_s: float = 0.0
    ways_s: np.ndarray | None = None

    @property
    def mean_s(self) -> float:
        """Of a round trip."""
        return self.least_s + (self.most_s if self.ways_s is None else 2 * float(self.ways_s.mean()))

    def drawn_s(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """By how much n messages are longer under way, float[n]."""
        if self.ways_s is None:
            return rng.uniform(0.0, self.most_s, n)
        return rng.choice(self.ways_s, n)


def round_trips_of(link: LinkSpec) -> RoundTrips:
    """Raises InputError for a recording that cannot be read."""
    if link.round_trips is not None:
        return _recorded(link.round_trips)
    return RoundTrips(link.rtt_s, link.jitter_s)


def late_of(link: LinkSpec, seed: int, machine: str) -> Callable[[int], np.ndarray] | None:
    """Draws by how much this many messages to or from the machine of that name are longer under way; None: by nothing.
    Each machine has a stream of its own."""
    if not link.varies:
        return None
    trips, rng = round_trips_of(link), generator(Source.ROUND_TRIPS, seed, zlib.crc32(machine.encode()))
    return lambda n: trips.drawn_s(rng, n)


@cache
def _recorded(path: str) -> RoundTrips:
    """A file with a round trip in milliseconds per line, or with what ping prints; its other lines say nothing."""
    found = []
    lines = read_lines(Path(path))
    printed = any(_PING.search(line) for line in lines)
    for number, line in enumerate(lines, start=1):
        told = _PING.search(line) if printed else None
        if told or not (printed or not line.strip() or line.startswith("#")):
            text = told[1] if told else line
            found.append(read_number(Path(path), number, text, "a round trip in milliseconds", _MOST_MS))
    if not found:
        raise InputError(f"{path}: holds no round trip; a line for each, in milliseconds, or what ping prints")
    if len(found) > _MOST_RECORDED:
        raise InputError(f"{path}: {len(found):,} round trips; at most {_MOST_RECORDED:,} will do")
    trips_s = np.array(found) / 1e3
    ways_s = (trips_s - trips_s.min()) / 2
    return RoundTrips(float(trips_s.min()), float(ways_s.max()), ways_s)

"""What is known of turns to come: for comparison with the future itself, which no device knows."""

import math
from collections import defaultdict

from kvferry.traces.turn import Turn, Turns


class Forecast:
    """The order in which turns come, as far as it is known beforehand: where a user's next question waits for an
    answer, as if answers took no time."""

    def __init__(self, turns: Turns) -> None:
        expected = turns.expected
        self._place = {id(turn): n for n, turn in enumerate(expected)}
        self._over = [False] * len(expected)
        self._uses: defaultdict[int, list[int]] = defaultdict(list)
        for n in range(len(expected) - 1, -1, -1):
            for block in expected[n].blocks:
                self._uses[block].append(n)

    def over(self, turn: Turn) -> None:
        """This turn has come and has been answered."""
        self._over[self._place[id(turn)]] = True

    def next_use(self, block: int) -> float:
        """Returns the place in the order of the next turn whose prompt has this block; infinite: none has."""
        uses = self._uses.get(block, [])
        while uses and self._over[uses[-1]]:
            uses.pop()
        return uses[-1] if uses else math.inf

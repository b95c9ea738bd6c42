"""When the tokens of an answer are shown, and whose: the cloud's at a steady pace, until the device's own come first
(P/D-Device 3.3)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

# Sums of times are equal up to so much.
_ROUNDING_S = 1e-9


@dataclass(frozen=True, slots=True)
class SpeedController:
    """The first token is shown as it comes, at `first_s`. Each further one from the cloud has a slot, `pace_s` behind
    the slot before, and is shown then, or as it comes where it is late: tokens after a late one keep their slots, so
    that lateness does not add up.

    A token that is there neither by its slot nor when the device has one of its own for the same place is not waited
    for: the device's own is shown, and the cloud's further tokens are not. So nobody waits longer between two tokens
    than `pace_s` and what the link delays one token more than another, or than the device itself takes. `from_place`,
    `then_s`: the pace from this place on, where the device has learnt that it takes longer.
    """

    first_s: float
    pace_s: float
    from_place: float = math.inf
    then_s: float = 0.0

    def slot_s(self, n: int) -> float:
        """When the cloud's n-th token is due; the first is number 0."""
        if n < self.from_place:
            return self.first_s + self.pace_s * n
        return self.slot_s(int(self.from_place) - 1) + self.then_s * (n + 1 - self.from_place)

    def due_behind(self, now_s: float) -> int:
        """The place of the first token that is due later than now."""
        place = max(1, math.ceil((now_s - self.first_s) / self.pace_s))
        return place if self.slot_s(place) > now_s else place + 1

    def slower(self, place: int, pace_s: float) -> Self:
        """The same up to this place, and another pace from there on."""
        return replace(self, from_place=place, then_s=pace_s)

    def slots_s(self, first: int, tokens: int) -> list[float]:
        """The same of this many tokens, from a number behind the first on."""
        if first + tokens > self.from_place:
            return [self.slot_s(n) for n in range(first, first + tokens)]
        first_s, pace_s = self.first_s, self.pace_s
        return [first_s + pace_s * n for n in range(first, first + tokens)]

    def own_from(
        self, came_s: Sequence[float], tokens: int, ready_s: float, tpot_s: float, ended_s: float | None = None
    ) -> tuple[int, float]:
        """From which place on the answer is the device's own, at most `tokens`, which the cloud was to send; and how
        much later than `ready_s` + place x `tpot_s` the device has its own token there.

        The device has its own first token at `ready_s` and takes `tpot_s` for each further one, from the token before,
        whose ever that is (procedure 2). `came_s`: when the ones that came from the cloud did. `ended_s`: when it was
        clear that no more would come; None: all came.
        """
        late_s = 0.0
        if 0 < tokens <= len(came_s) and max(came_s) <= ready_s:
            # As it goes where nothing goes wrong: all of them are there before the device's own first one.
            return tokens, late_s
        for n in range(tokens):
            own_s, due_s = ready_s + tpot_s * n + late_s, self.slot_s(n)
            if n < len(came_s) and came_s[n] <= max(own_s, due_s) + _ROUNDING_S:
                late_s += max(0.0, came_s[n] - own_s)
                continue
            if n == len(came_s) and ended_s is not None:
                due_s = min(due_s, ended_s)
            return n, late_s + max(0.0, due_s - own_s)
        return tokens, late_s

"""An answer as it takes shape on a device: tokens from the cloud, then its own, each shown in its time."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import simpy

from kvferry.machine.display import Display
from kvferry.machine.following import Following
from kvferry.policies.assist.speed_controller import SpeedController


class Answer:
    """Tokens are (id, text), or None where they are modelled. Those of the cloud are shown from when their pace is
    known, the first as it comes. ``following`` has them for the machine that decodes through them; ``own`` are what the
    device says behind them. ``by_text``: the cloud makes tokens of text in another way."""

    __slots__ = ("_display", "_ended_s", "_speed", "by_text", "came_s", "following", "own")

    def __init__(self, display: Display) -> None:
        self._display = display
        self.following = Following()
        self.by_text = False
        self.own: list[Any] = []
        # When tokens from the cloud came, and when it was clear that others would not; None: all came.
        self.came_s: list[float] = []
        self._ended_s: float | None = None
        # When those of the cloud are due; None: not known yet.
        self._speed: SpeedController | None = None

    def __len__(self) -> int:
        return len(self.came_s) + len(self.own)

    # --- from the cloud ------------------------------------------------------------------------------------------

    def began(self, time_s: float, token: Any) -> None:
        """The first token is there, and shown at once."""
        self.came_s.append(time_s)
        self.following.put(token)
        self._display.show(time_s, time_s)

    def came(self, time_s: float, token: Any) -> None:
        """A further token; told of the parts of their stream as they come. What comes when the device has gone on by
        itself is not shown."""
        if not self.following.put(token):
            return
        if self._speed is not None:
            self._display.show(time_s, self._speed.slot_s(len(self.came_s)))
        self.came_s.append(time_s)

    def came_all(self, times_s: Sequence[float], tokens: Sequence[Any]) -> None:
        """The same of several that were told together."""
        if not self.following.put_all(tokens):
            return
        if self._speed is not None:
            slots_s = self._speed.slots_s(len(self.came_s), len(times_s))
            self._display.show_all(list(map(max, slots_s, times_s)))
        self.came_s += times_s

    def paced(self, pace_s: float) -> None:
        """Show what has come and what comes at this pace; 0: as it comes."""
        self._pace(SpeedController(self.came_s[0], pace_s), 1)

    def put_off(self, place: int, pace_s: float) -> None:
        """Show those from this place on, which is not due yet, at a slower pace."""
        assert self._speed is not None
        self._display.keep(place)
        self._pace(self._speed.slower(place, pace_s), place)

    def due_behind(self, now_s: float) -> int:
        """The place of the cloud's first token that is due later than now."""
        assert self._speed is not None
        return self._speed.due_behind(now_s)

    def _pace(self, speed: SpeedController, place: int) -> None:
        self._speed, self.following.slot_s = speed, speed.slot_s
        for n in range(place, len(self.came_s)):
            self._display.show(self.came_s[n], speed.slot_s(n))

    def due_s(self, n: int) -> float:
        """When the cloud's n-th token is due, at the latest that is known."""
        return self.came_s[0] if self._speed is None else self._speed.slot_s(n)

    def ended(self, now_s: float, *, cut: bool) -> None:
        """No more will come; `cut`: though more were to come."""
        self._ended_s = now_s if cut else None
        self.following.end()

    # --- the device's own ----------------------------------------------------------------------------------------

    def said(self, time_s: float, token: Any) -> None:
        """A token is there."""
        self.own.append(token)
        self._display.show(time_s, time_s)

    def said_all(self, times_s: Sequence[float] | np.ndarray, tokens: Sequence[Any] | None) -> None:
        """Tokens were there at these times; None: whatever they say."""
        self.own += [None] * len(times_s) if tokens is None else tokens
        self._display.show_all(times_s)

    @property
    def all_came(self) -> bool:
        """Whether every token that was asked for has come, and fits the device's own."""
        return self.following.ended and self._ended_s is None and not self.by_text

    def caught_up(self, begin_s: float, end_s: float, tokens: int) -> None:
        """A modelled device, behind all of the cloud's tokens at `begin_s`, has decoded this many more until `end_s`,
        at an even pace. None is shown before its turn."""
        tpot_s = (end_s - begin_s) / tokens
        first_s = begin_s + tpot_s
        late_s = 0.0 if self._speed is None else max(0.0, self._speed.slot_s(len(self.came_s)) - first_s)
        self.said_all(_evenly_s(first_s, end_s, tokens, late_s), None)

    def decoded(self, begin_s: float, end_s: float, tokens: int, from_cloud: int) -> None:
        """A modelled device had the answer's first token at `begin_s` and decoded the others until `end_s`, at an even
        pace. What the cloud did not say in time, of this many tokens that it was to say, the device has said."""
        place, late_s = len(self), 0.0
        tpot_s = (end_s - begin_s) / (tokens - 1)
        if self._speed is not None:
            came_s = self.came_s
            place, late_s = self._speed.own_from(came_s, from_cloud, begin_s, tpot_s, self._ended_s)
            if place < len(came_s):
                del came_s[place:]
                self.following.keep(place)
                self._display.keep(place)
        if (missing := tokens - place) > 0:
            first_s = end_s - (missing - 1) * tpot_s
            self.said_all(_evenly_s(first_s, end_s, missing, late_s), None)

    @property
    def text(self) -> str | None:
        """What all tokens say together; None in the modelled world."""
        pieces = [*self.following.pieces, *self.own]
        return None if None in pieces else "".join(text for _, text in pieces)

    def shown(self) -> simpy.Event:
        """Fires with when each token was shown."""
        return self._display.shown()


def _evenly_s(first_s: float, last_s: float, tokens: int, late_s: float) -> np.ndarray:
    """As many times as tokens, from the first to the last, each so much later."""
    step_s = (last_s - first_s) / max(1, tokens - 1)
    times_s: np.ndarray = np.arange(tokens) * step_s + first_s + late_s
    if tokens > 1:
        times_s[-1] = last_s + late_s
    return times_s

"""What a user sees of an answer, token by token."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import simpy


class Display(Protocol):
    """Shows the tokens of one answer in the order in which they are handed over, none before the one before it."""

    def show(self, ready_s: float, slot_s: float) -> None:
        """Show the next token, which was there at `ready_s`, and not before its slot."""
        ...

    def show_all(self, ready_s: Sequence[float] | np.ndarray) -> None:
        """Show further tokens as they were there."""
        ...

    def keep(self, tokens: int) -> None:
        """Show no more than the first `tokens` of the tokens handed over; the others have not been shown yet."""
        ...

    def shown(self) -> simpy.Event:
        """Fires with when each token was shown, float[tokens], once all that were handed over are. In the modelled
        world it may fire before the last one's time."""
        ...

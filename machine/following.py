"""Tokens that a cloud has said of an answer, as they come, for a machine that decodes through them."""

from collections.abc import Callable
from threading import Event
from typing import Any

# Called with when a token was there, in seconds on the run's clock, and what it says.
Said = Callable[[float, Any], None]


class Following:
    """Pieces of text, one for each token, the first included. One thread puts them, another may wait for them."""

    __slots__ = ("_ended", "_news", "pieces")

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self._ended = False
        # Not set only while someone waits.
        self._news = Event()
        self._news.set()

    def put(self, piece: Any) -> None:
        self.pieces.append(piece)
        if not self._news.is_set():
            self._news.set()

    def end(self) -> None:
        """No more will come."""
        self._ended = True
        self._news.set()

    def at(self, n: int) -> Any:
        """The n-th piece, once it is there; None: there will be none. Waits as long as it takes."""
        while len(self.pieces) <= n and not self._ended:
            self._news.clear()
            if len(self.pieces) <= n and not self._ended:
                self._news.wait()
        return self.pieces[n] if n < len(self.pieces) else None

"""Tokens that a cloud has said of an answer, as they come, for a machine that decodes through them."""

from collections.abc import Callable, Sequence
from threading import Event, Lock
from time import monotonic
from typing import Any

# Called with when a token was there, in seconds on the run's clock, and what it says.
Said = Callable[[float, Any], None]


class Following:
    """Pieces of text, one for each token, the first included. One thread puts them, another may wait for them: which of
    the two goes on with the answer is settled under a lock."""

    __slots__ = ("_ended", "_lock", "_news", "pieces", "slot_s")

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        # When the n-th is due, in seconds on the run's clock; None: whenever it comes.
        self.slot_s: Callable[[int], float] | None = None
        self._ended = False
        self._lock = Lock()
        # Made by the first that waits, and set except while one waits; modelled machines never wait.
        self._news: Event | None = None

    def put(self, piece: Any) -> bool:
        """Returns whether it is a part of the answer: not behind an end."""
        with self._lock:
            if self._ended:
                return False
            self.pieces.append(piece)
        self._tell()
        return True

    def put_all(self, pieces: Sequence[Any]) -> bool:
        """The same of several at once."""
        with self._lock:
            if self._ended:
                return False
            self.pieces += pieces
        self._tell()
        return True

    def end(self) -> None:
        """No more will come."""
        with self._lock:
            self._ended = True
        self._tell()

    def _tell(self) -> None:
        """Let one who waits look again."""
        if self._news is not None:
            self._news.set()

    @property
    def ended(self) -> bool:
        return self._ended

    def keep(self, pieces: int) -> None:
        """Drop those behind the first `pieces`, which a modelled machine did not wait for."""
        del self.pieces[pieces:]

    def at(self, n: int, within_s: float | None = None) -> Any:
        """The n-th piece, once it is there. None: there will be none, or there is none within this many seconds, and
        who asks goes on without: then no more are taken."""
        until_s = None if within_s is None else monotonic() + within_s
        while True:
            left_s = None if until_s is None else until_s - monotonic()
            with self._lock:
                if n < len(self.pieces):
                    return self.pieces[n]
                if self._ended or (left_s is not None and left_s <= 0):
                    self._ended = True
                    return None
                if self._news is None:
                    self._news = Event()
                news = self._news
                news.clear()
            news.wait(left_s)

"""How long a client waits for its cloud before it gives up."""

import time

from kvferry.specs.errors import LinkDown

# Fewer bytes than this within `timeout_s` count as silence.
_LEAST_BYTES = 1024
# Pauses between attempts double from the first to the longest.
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5


class Patience:
    """Decides how long to wait before the next attempt, and when to give up."""

    def __init__(self, url: str, attempts: int, away_s: float) -> None:
        self._url, self._attempts, self._away_s = url, attempts, away_s
        self._failures = self._silences = 0
        self._first_failure_s = 0.0

    def came(self, n_bytes: int) -> None:
        """The last attempt brought this many bytes. If they are enough, failures are counted again: a server that
        brings something may drop the connection as often as it likes. It may not fall silent as often as it likes."""
        if n_bytes >= _LEAST_BYTES:
            self._failures = 0

    def pause_s(self, error: Exception) -> float:
        """The pause after this failure. Raises LinkDown when there should be no further attempt."""
        now_s = time.monotonic()
        if not self._failures:
            self._first_failure_s = now_s
        self._failures += 1
        self._silences += isinstance(error, TimeoutError)
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self._failures - 1, 10))
        late = now_s + pause_s > self._first_failure_s + self._away_s
        if self._silences >= self._attempts or (late and not isinstance(error, TimeoutError)):
            times = f"{max(self._failures, self._silences)} attempts"
            raise LinkDown(
                f"the cloud at {self._url} gives nothing, after {times}: {one_line(str(error)) or type(error).__name__}"
            ) from None
        return pause_s


def one_line(text: str) -> str:
    """The text without control characters and line ends, which a server's words may hold."""
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


class Steady:
    """Raises TimeoutError when fewer than 1,024 bytes arrive within `timeout_s`: a trickling server counts as a dead
    one."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since_s, self._came_bytes = time.monotonic(), 0

    def came(self, n_bytes: int) -> None:
        self._came_bytes += n_bytes
        now_s = time.monotonic()
        if now_s > self._since_s + self._timeout_s:
            if self._came_bytes < _LEAST_BYTES:
                raise TimeoutError(f"{self._came_bytes} bytes came in {self._timeout_s:g} s")
            self._since_s, self._came_bytes = now_s, 0

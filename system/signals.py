"""Signals that have come to the command, whatever became of the exceptions that they raised."""

import signal
from types import FrameType
from typing import NoReturn

from kvferry.specs.errors import Terminated

# Compiled code, as matplotlib's and pydantic's, makes an error of its own of an exception that a signal raises in it.
_came: list[int] = []


def listen() -> None:
    """Has SIGINT and SIGTERM raise KeyboardInterrupt and Terminated, and be remembered. An ignored SIGINT stays so. For
    the main thread."""
    _came.clear()
    # So that temporary files are removed on the way out.
    signal.signal(signal.SIGTERM, _raise)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise)


def last() -> int | None:
    """Returns the number of the signal that came last and was not dealt with; None: none did."""
    return _came[-1] if _came else None


def dealt_with() -> None:
    """The work that a signal has ended is over, and what comes now is no consequence of it."""
    _came.clear()


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    _came.append(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(128 + number)

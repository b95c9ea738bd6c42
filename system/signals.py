"""Signals that have come to the command, whatever became of the exceptions that they raised."""

import signal
import sys
from types import FrameType
from typing import NoReturn

from kvferry.specs.errors import Terminated

# Compiled code, as matplotlib's and pydantic's, makes an error of its own of an exception that a signal raises in it.
_came: list[int] = []
# A signal that was lost is sent again after this long.
_AGAIN_S = 0.05


def listen() -> None:
    """Has SIGINT and SIGTERM raise KeyboardInterrupt and Terminated, and be remembered. An ignored SIGINT stays so. For
    the main thread."""
    _came.clear()
    # So that temporary files are removed on the way out.
    signal.signal(signal.SIGTERM, _raise)
    signal.signal(signal.SIGALRM, _again)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise)


def last() -> int | None:
    """Returns the number of the signal that came last and was not dealt with; None: none did."""
    return _came[-1] if _came else None


def dealt_with() -> None:
    """The work that a signal has ended is over, and what comes now is no consequence of it."""
    _came.clear()


def send_again(lost: "sys.UnraisableHookArgs") -> None:
    """Has a signal that came while a finaliser or a callback of a weak reference ran, which can raise nothing, come
    once more. A hook for what cannot be raised (`sys.unraisablehook`), behind `listen`."""
    if lost.exc_type not in (KeyboardInterrupt, Terminated):
        sys.__unraisablehook__(lost)
        return
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _again(_: int, frame: FrameType | None) -> None:
    # On a busy machine the time is over before the hook is, and what is raised in there is lost, too.
    while frame is not None:
        if frame.f_code is send_again.__code__:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            return
        frame = frame.f_back
    if _came:
        _raise(_came[-1], frame)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    _came.append(number)
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise Terminated(128 + number)

"""What a bottleneck serves: transfers, in flows."""

from collections import deque
from typing import Any, Protocol

from kvferry.machine.work import Work
from kvferry.specs.errors import LinkDown


class Flow:
    """Transfers in the order they were handed over: one being served, the others behind it."""

    __slots__ = ("serving", "waiting")

    def __init__(self) -> None:
        self.serving: Transfer | None = None
        self.waiting: deque[Any] = deque()


class Sender(Protocol):
    """The link that a transfer belongs to."""

    # Transfers handed over and not begun.
    queued: int

    def left(self, transfer: "Transfer", n_bytes: float, now_s: float) -> None:
        """Called when the transfer's service has ended after this many bytes."""
        ...


class Transfer(Work):
    link: Sender
    flow: Flow
    # On the way to the bottleneck, and from there.
    before_s: float
    behind_s: float
    # When it reaches the bottleneck; infinite while it waits for other tickets.
    enters_s: float
    # The bottleneck's `_share` at which its last byte is served; set when its service starts.
    until_share: float

    def cut_off(self, done_bytes: float, trace_s: float) -> None:
        """Fail, as the trace has ended at `trace_s`."""
        # One argument: SimPy rebuilds the error from its args as it crosses processes.
        down = LinkDown(
            f"the link's trace ends at {trace_s:g} s, with {self.n_bytes - done_bytes:,.0f} bytes "
            f"of {self.label or 'a transfer'} still to come; a looping trace would go on"
        )
        down.bytes_done = done_bytes
        self.fail(down)

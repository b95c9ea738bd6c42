"""The server's event loop: any number of connections, and waits that end on time."""

import asyncio
import select
import selectors

# select() takes no descriptor beyond this one.
_FD_SETSIZE = 1024


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop on epoll or kqueue, whichever the platform has."""
    if hasattr(selectors, "EpollSelector"):
        return asyncio.SelectorEventLoop(_PreciseEpollSelector())
    return asyncio.SelectorEventLoop(selectors.DefaultSelector())


if hasattr(selectors, "EpollSelector"):

    class _PreciseEpollSelector(selectors.EpollSelector):
        """epoll, with waits that end within microseconds of their time.

        epoll itself counts in whole milliseconds, rounded up, which would delay every slice of a replayed link. Its
        descriptor can be waited for like any other, and select() counts in microseconds.
        """

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0 and self.fileno() < _FD_SETSIZE:
                select.select([self.fileno()], [], [], timeout)
                timeout = 0
            return super().select(timeout)

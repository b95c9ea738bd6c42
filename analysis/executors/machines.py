"""Points on the workers of a dask scheduler, which may be on many machines."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Lock
from time import monotonic
from typing import Any

from kvferry.analysis.executors.executor import DIED
from kvferry.analysis.journal import Row
from kvferry.analysis.point import Point, Work
from kvferry.specs.errors import KvferryError, MissingExtra

# So long are the scheduler, and then its first worker, waited for.
_PATIENCE_S = 30.0
# Points that the scheduler has for each thread of a worker: a worker that is done need not wait for the next.
_AHEAD = 2
_LOOK_EVERY_S = 2.0
_ONE_AT_A_TIME = Lock()


class Machines:
    """The executor of dask.distributed. Points are sent as text and rows come back as plain values; the work itself is
    a function that workers import. What is between, dask pickles: whoever reaches the scheduler can run code on every
    worker, so the network has to be one's own, or the address tls:// with certificates in dask's configuration.
    """

    def __init__(self, address: str) -> None:
        """For ``with``, which is where it connects. Raises MissingExtra."""
        try:
            import distributed  # noqa: F401
        except ImportError:
            raise MissingExtra("many machines need dask; install it with: pip install '.[cluster]'") from None
        self.address = address
        self._client: Any = None
        self._threads, self._look_again_s = 0, 0.0

    def __enter__(self) -> Machines:
        """Raises KvferryError when there is no scheduler, no worker, or one with another KVFerry or another Python."""
        from distributed import Client

        try:
            self._client = Client(self.address, timeout=_PATIENCE_S, set_as_default=False)
        except (OSError, TimeoutError) as error:
            raise KvferryError(f"no scheduler answers at {self.address}: {' '.join(str(error).split())}") from error
        try:
            self._client.wait_for_workers(1, timeout=_PATIENCE_S)
        except TimeoutError:
            self.__exit__()
            raise KvferryError(f"the scheduler at {self.address} has no worker; start one with: dask worker") from None
        return self

    def __exit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def rows(self, points: Iterable[Point], work: Work) -> Generator[Row, None, None]:
        """As ``Executor.rows`` says. Points under way on a worker that dies run on another; one that several workers
        died of runs once more at the end, when no other does."""
        from distributed import CancelledError, KilledWorker

        left = iter(points)
        under_way: dict[str, tuple[Any, Point]] = {}
        deadly: list[Point] = []
        done: SimpleQueue[Any] = SimpleQueue()
        try:
            while True:
                for point in islice(left, max(0, self._room() - len(under_way))):
                    future = self._submitted(point, work)
                    under_way[future.key] = (future, point)
                    future.add_done_callback(done.put)
                if not under_way:
                    break
                future = self._patiently(lambda wait_s: done.get(timeout=wait_s))
                try:
                    # A worker that dies now takes a row that is done along: it is computed again.
                    row: Row = self._patiently(future.result)
                except KilledWorker:
                    deadly.append(under_way[future.key][1])
                else:
                    yield row
                del under_way[future.key]
            for point in deadly:
                yield self._alone(point, work)
        except (CancelledError, OSError) as error:
            raise KvferryError(f"the scheduler at {self.address} is gone; what is done is kept: go on later") from error
        finally:
            if under_way and self._client is not None:
                with suppress(Exception):  # the scheduler may be what is gone
                    self._client.cancel([future for future, _ in under_way.values()])

    def _patiently(self, ask: Callable[[float], Any]) -> Any:
        """What `ask` gives, called with seconds to wait until it does. Raises KvferryError when for long no worker is
        left."""
        last_seen_s = monotonic()
        while True:
            try:
                return ask(_LOOK_EVERY_S)
            except (Empty, TimeoutError):
                pass
            if self._client.nthreads():
                last_seen_s = monotonic()
            elif monotonic() - last_seen_s > _PATIENCE_S:
                nobody = f"the scheduler at {self.address} has had no worker for {_PATIENCE_S:g} s"
                raise KvferryError(f"{nobody}; what is done is kept: go on later")

    def _room(self) -> int:
        """For how many points the workers have room: they may come and go."""
        if monotonic() >= self._look_again_s:
            self._threads = sum(self._client.nthreads().values())
            self._look_again_s = monotonic() + _LOOK_EVERY_S
        return max(1, _AHEAD * self._threads)

    def _submitted(self, point: Point, work: Work) -> Any:
        # A name of its own: the result of an earlier try must not be taken for this one's.
        key = f"kvferry-{point.key[:16]}-{secrets.token_hex(4)}"
        return self._client.submit(_on_worker, point.key, point.text, work, key=key, pure=False)

    def _alone(self, point: Point, work: Work) -> Row:
        from distributed import KilledWorker

        try:
            row: Row = self._patiently(self._submitted(point, work).result)
        except KilledWorker:
            return work.failed(point, DIED)
        return row


def _on_worker(key: str, text: str, work: Work) -> dict[str, Any]:
    """A worker's threads take turns: a point is computed on one core, and its wall time means something."""
    with _ONE_AT_A_TIME:
        return dict(work.elsewhere(Point(key, text)))

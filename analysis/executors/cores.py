"""Points on the cores of this computer, in processes of their own."""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from itertools import islice
from threading import Thread
from time import perf_counter, sleep
from typing import Any

from kvferry.analysis.executors.executor import DIED
from kvferry.analysis.journal import Row
from kvferry.analysis.point import Point, Work
from kvferry.system.garbage import YOUNG

# Points of one kin that a worker is given at once.
_TOGETHER = 8
# Handed to a worker while it is busy, so that it need not wait for the next.
_AHEAD = 1
# Libraries would start threads on all cores in each worker.
_THREADS = ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMEXPR")
_ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in _THREADS}
_LOOK_S = 1.0
# An idle worker ends by itself.
_IDLE_S = 300
# Begins the warning that loky prints when it replaces a worker whose memory has grown by 300 MB; no point is lost.
_REPLACED = "A worker stopped while some jobs were given"

Batch = list[Point]


class Cores:
    """The executor of joblib's loky: a process per core, or as many as `workers` says. They stay for the next call.
    `look` is called every second while points run: what it raises ends them."""

    def __init__(self, workers: int | None = None, look: Callable[[], None] = lambda: None) -> None:
        from joblib import cpu_count

        self.workers = workers or cpu_count()
        self._look = look

    def __enter__(self) -> Cores:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rows(self, points: Iterable[Point], work: Work) -> Generator[Row, None, None]:
        """As ``Executor.rows`` says. When a process dies, the points under way are run once more, each alone: so the
        one that makes its process die is found."""
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        left = _batches(points)
        under_way: dict[Future[list[Row]], Batch] = {}
        while True:
            try:
                yield from self._until_done(left, under_way, work)
                return
            except TerminatedWorkerError:
                for point in [point for batch in under_way.values() for point in batch]:
                    yield self._alone(point, work)
                under_way.clear()

    def _until_done(
        self, batches: Iterator[Batch], under_way: dict[Future[list[Row]], Batch], work: Work
    ) -> Generator[Row, None, None]:
        room = self.workers * (1 + _AHEAD)
        executor: Any = None
        ended = False
        try:
            while True:
                for batch in islice(batches, room - len(under_way)):
                    executor = executor or self._processes()
                    under_way[_submitted(executor, work, batch, under_way)] = batch
                if not under_way:
                    ended = True
                    return
                self._look()
                for future in wait(under_way, _LOOK_S, return_when=FIRST_COMPLETED).done:
                    rows = future.result()
                    del under_way[future]
                    yield from rows
        finally:
            if not ended and executor is not None:  # interrupted, or given up: what is under way is not waited for
                executor.shutdown(wait=True, kill_workers=True)

    def _alone(self, point: Point, work: Work) -> Row:
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        began_s = perf_counter()
        executor = self._processes()
        try:
            with _deaf_children():
                alone: Future[Row] = executor.submit(work, point)
            return alone.result()
        except TerminatedWorkerError:
            return work.failed(point, DIED, perf_counter() - began_s)
        except BaseException:
            executor.shutdown(wait=True, kill_workers=True)
            raise

    def _processes(self) -> Any:
        # There is one set of processes, which joblib.Parallel takes over to draw pictures: it has to be made its way.
        from joblib.executor import get_memmapping_executor

        warnings.filterwarnings("ignore", message=_REPLACED, category=UserWarning)
        return get_memmapping_executor(
            self.workers, timeout=_IDLE_S, initializer=_begin_worker, initargs=(os.getpid(),), env=_ONE_THREAD
        )


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Starts processes that Ctrl-C does not reach, from their first moment on: a worker that still imports would show
    a stack trace. Here it comes a moment later."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker

    # It lets SIGINT through again once it has started its own process.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _batches(points: Iterable[Point]) -> Iterator[Batch]:
    """Yields points that go to a worker together: of one kin, as far as they follow each other; others, each as soon
    as it is there."""
    batch: Batch = []
    for point in points:
        if batch and (point.kin != batch[0].kin or len(batch) == _TOGETHER):
            yield batch
            batch = []
        batch.append(point)
        if not point.kin:
            yield batch
            batch = []
    if batch:
        yield batch


def _each(work: Work, batch: Batch) -> list[Row]:
    return [work(point) for point in batch]


def _submitted(executor: Any, work: Work, batch: Batch, under_way: dict[Future[list[Row]], Batch]) -> Future[list[Row]]:
    """The future of a batch. Where a process has died, its points count as under way."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    try:
        with _deaf_children():
            future: Future[list[Row]] = executor.submit(_each, work, batch)
    except TerminatedWorkerError:
        under_way[Future()] = batch
        raise
    return future


def _begin_worker(parent: int) -> None:
    """Ignore Ctrl-C, which reaches every process of a terminal: the parent answers it. A killed parent cannot end
    its workers, so they look for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(YOUNG)

    def end_with_the_parent() -> None:
        while os.getppid() == parent:
            sleep(1.0)
        os._exit(1)

    Thread(target=end_with_the_parent, daemon=True).start()

"""Threads that keep several commands under way on one storage file."""

from queue import SimpleQueue
from threading import Lock, Thread

from kvferry.disk.opened_file import Commands, StorageFile


class Threads:
    """Carries out commands, up to `depth` at once: in the caller's thread and `depth` - 1 others.

    Several threads may call `run` at once.
    """

    def __init__(self, file: StorageFile, depth: int) -> None:
        self._file = file
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        self._helpers = [Thread(target=self._help, name="kvferry storage", daemon=True) for _ in range(depth - 1)]
        for helper in self._helpers:
            helper.start()

    def run(self, commands: Commands, memory: memoryview, writing: bool) -> None:
        """Carry out all commands, from or to `memory`, which for direct I/O lies on whole blocks wherever a command
        begins. Raises the first error that StorageFile raises; no command is under way when this returns or raises."""
        threads = max(1, min(len(commands.sizes), 1 + len(self._helpers)))
        batch = _Batch(self._file, commands, memory, writing, threads)
        for _ in range(threads - 1):
            self._batches.put(batch)
        batch.work()
        batch.finish()

    def close(self) -> None:
        for _ in self._helpers:
            self._batches.put(None)
        for helper in self._helpers:
            helper.join()
        self._helpers = []

    def _help(self) -> None:
        while (batch := self._batches.get()) is not None:
            batch.work()
            del batch


class _Batch:
    """Commands that several threads take from one list."""

    def __init__(self, file: StorageFile, commands: Commands, memory: memoryview, writing: bool, threads: int) -> None:
        self._do = file.put if writing else file.fill
        self._memory = memory
        # Threads share it: a list's iterator hands out every item once.
        self._todo = iter(list(commands.one_by_one()))
        self._error: BaseException | None = None
        self._working = threads
        self._lock, self._done = Lock(), Lock()
        self._done.acquire()

    def work(self) -> None:
        try:
            for offset, at, n_bytes in self._todo:
                if self._error is not None:
                    break
                self._do(self._memory, offset, at, n_bytes)
        except BaseException as error:
            self._error = self._error or error
        with self._lock:
            self._working -= 1
            if not self._working:
                self._done.release()

    def finish(self) -> None:
        """Wait for every thread; raise the first error of one of them."""
        while True:
            try:
                self._done.acquire()
                break
            except KeyboardInterrupt as interrupt:
                # Not before all are done: they still move bytes to and from memory that its owner may use again.
                self._error = self._error or interrupt
        if self._error is not None:
            raise self._error

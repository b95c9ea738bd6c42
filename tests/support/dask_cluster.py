"""A dask scheduler and its workers for tests: processes of their own that talk over TCP on this computer."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvferry.pipelines.record import RequestRecord, Run
from kvferry.specs.scenario import Scenario

# Takes the process down that runs it.
DEADLY_SEED = 7


def deadly_run(scenario: Scenario) -> Run:
    """A stand-in for a run, as many seconds to the first token as the seed says."""
    if scenario.seed == DEADLY_SEED:
        os._exit(9)
    time.sleep(0.01)
    request = RequestRecord(request=0, arrival_s=0.0, loaded_s=0.5, first_token_s=float(scenario.seed))
    return Run(outcome="done", requests=(request,))


class DaskCluster:
    """A scheduler at ``address`` and workers that ``start_worker`` adds; all end with ``stop``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        port = self.address.rpartition(":")[2]
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_worker(self, *options: str) -> subprocess.Popen[bytes]:
        worker = self._start(
            "worker", self.address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard", *options
        )
        self.workers.append(worker)
        return worker

    def stop(self) -> None:
        for process in (*self.workers, self.scheduler):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        # Workers import this file for its stand-in.
        environment = dict(os.environ, PYTHONPATH=os.fspath(Path(__file__).parent))
        log = (self.folder / f"{words[0]}-{time.monotonic_ns()}.log").open("wb")
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *words],
            env=environment,
            cwd=self.folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


@contextmanager
def dask_cluster(folder: Path, n_workers: int) -> Iterator[DaskCluster]:
    cluster = DaskCluster(folder)
    try:
        for _ in range(n_workers):
            cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()

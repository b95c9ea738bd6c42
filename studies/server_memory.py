"""Memory of the two servers under honest load: python studies/server_memory.py [MINUTES [PAUSE_S]]

`kvferry serve` hands out one context of `live/quickstart`, `kvferry serve-cloud` is the cloud of `pd_device/live`. One
client does both in turns, with a pause in between: it fetches all chunks of the context over connections of its own,
then carries out a short `pd_device/live` for real with its help. Resident memory of each server is printed every
minute, with how many visits it has had. The first is noted after a minute: models load before, allocators fill.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from threading import Event

import kvferry
from kvferry.cloud.client import CloudClient
from kvferry.machine.ops import Chunks

MINUTES, PAUSE_S = 20, 2.0
# Chunks of one fetch, as a pipeline asks for some at a time.
AT_ONCE = 8
SHORT = ["workload.prompt=512", "workload.beginning=32", "workload.question=32", "workload.output=24"]


class Moving(Event):
    def moved(self, n_bytes: float) -> None:
        pass


@contextmanager
def serving(*command: str) -> Iterator[tuple[int, str]]:
    """A server's process id and URL."""
    with subprocess.Popen(
        [Path(sys.executable).with_name("kvferry"), *command, "--port", "0"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            yield server.pid, server.stdout.readline().strip()
        finally:
            server.terminate()


def fetch_all(url: str) -> None:
    with CloudClient(url, names=lambda sequence: name) as client:
        (name,) = client.contexts()
        n_chunks = client.index(name).lengths[..., 0].size
        for first in range(0, n_chunks, AT_ONCE):
            ids = range(first, min(first + AT_ONCE, n_chunks))
            client.fetch(Chunks(0, tuple(ids), 0.0), None, Moving())


def resident_mb(process_id: int) -> float:
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6


def main(minutes: int = MINUTES, pause_s: float = PAUSE_S) -> None:
    with ExitStack() as stack:
        stores = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "stores"
        kvferry.encode("live/quickstart", output=stores)
        loader, contexts = stack.enter_context(serving("serve", str(stores)))
        helper, cloud = stack.enter_context(serving("serve-cloud", "pd_device/live"))
        asking = kvferry.load("pd_device/live", [*SHORT, f"live.cloud={cloud}"])
        print(f"{'minute':>6} {'visits':>7} {'serve, MB':>10} {'serve-cloud, MB':>16}", flush=True)
        began_s, minute = time.monotonic(), 1
        for visits in count(1):
            fetch_all(contexts)
            run = kvferry.run(asking)
            assert run.outcome == "done" and run.metrics["assisted_tokens"] > 0, run.metrics
            time.sleep(pause_s)
            if time.monotonic() >= began_s + 60 * minute:
                row = f"{minute:6} {visits:7} {resident_mb(loader):10.1f} {resident_mb(helper):16.1f}"
                print(row, flush=True)
                minute = int((time.monotonic() - began_s) // 60) + 1
            if minute > minutes:
                return


if __name__ == "__main__":
    main(*(float(value) for value in sys.argv[1:]))

"""How long thousands of devices with a cloud take to simulate for an hour, at 6 requests per device and hour, and what
memory that takes."""

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.row import Row, lower

DEVICES = (1_000, 10_000, 50_000)
# In a process of its own, whose peak memory it is.
_RUN = """
import resource, sys, time
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
devices = int(sys.argv[1])
counts = {"prefill": round(devices / 385), "decode": max(1, round(devices / 2500))}
settings = [f"machines.{name}.count={count}" for name, count in counts.items()]
scenario = load_scenario("pd_device/many", [f"workload.devices={devices}", *settings])
began_s = time.process_time()
run = run_scenario(scenario)
took_s = time.process_time() - began_s
assert run.outcome == "done"
print(took_s, len(run.assisted.columns["request"]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


def rows() -> Iterator[Row]:
    for devices in DEVICES:
        done = subprocess.run(
            [sys.executable, "-c", _RUN, str(devices)], capture_output=True, text=True, check=True, timeout=3600
        )
        took_s, requests, gib = map(float, done.stdout.split())
        # Asked for: 10,000 devices in 60 s on one core and 1.5 GB.
        asked = devices == 10_000
        yield lower(
            f"{devices:,} devices, {requests:,.0f} requests, processor time", took_s, "s", 60 if asked else None
        )
        yield lower(f"{devices:,} devices, per request", 1e3 * took_s / requests, "ms")
        yield lower(f"{devices:,} devices, peak memory", gib, "GiB", 1.5e9 / 2**30 if asked else None)

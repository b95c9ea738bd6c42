"""KVSwap for real on a paced file: what overlap and reuse gain.

    python studies/kvswap_live.py [--runs 3] [--set KEY=VALUE ...]

Decodes the scenario with reading ahead and the reuse buffer, and without either, in turns. How far the simulator is off
is asked by ``kvferry fidelity decode-fidelity``.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.decoding.budget import sequence_bytes
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario

SCENARIO = "kvswap/live"
WAYS = {
    "both": (),
    "no reuse": ("reuse=false",),
    "no overlap": ("ahead=false",),
    "neither": ("reuse=false", "ahead=false"),
}


def scenario(settings: Sequence[str], **changes: Any) -> Scenario:
    return load_scenario(
        SCENARIO, [*settings, *(f"{key.replace('__', '.')}={value}" for key, value in changes.items())]
    )


def gains(settings: Sequence[str], runs: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(runs):
        for name, policies in WAYS.items():
            run_of = scenario([*settings, *(f"policies.{policy}" for policy in policies)])
            run = run_scenario(run_of)
            found = metrics_for(run_of, run)
            rates[name].append(found["throughput_tokens_per_s"])
            reuse, late = found.get("reuse_rate", 0.0), run.measured.get("storage_batches_late")
            print(f"{name}: {rates[name][-1]:.1f} tokens/s, reuse {reuse:.1%}, late batches {late}", flush=True)
            memory = [run.measured[f"kv_{what}_bytes"] for what in ("metadata", "buffer", "read")]
            batch = int(found["batch"])
            roles = DECODE_SYSTEMS[run_of.system].with_policies(run_of.policy_values).roles
            memory.append(batch * sequence_bytes(run_of, roles, batch))
            parts = "metadata {:.2f} MiB, buffers {:.2f}, read {:.2f}; budget {:.2f}".format(
                *(n / 2**20 for n in memory)
            )
            print(f"{name}: {parts}", flush=True)
    both = np.median(rates["both"])
    for name, values in rates.items():
        middle = np.median(values)
        print(f"| {name} | {middle:.1f} tokens/s | {both / middle:.2f}x | {np.ptp(values) / middle:.0%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    gains(arguments.settings, arguments.runs)


if __name__ == "__main__":
    main()

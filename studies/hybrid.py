"""Real loads over two paths beside what either path alone would need for its share; and what they gain over others.

python studies/hybrid.py [--device PROFILE.yaml] [--runs 5] [--json OUT]

The ceiling of a load is the larger of two times: the processor's for what it computed (its spans added up) and the
link's for what was streamed (the replayed rate, and one round trip). A ratio of 1 is a path that never waits. The
gains are those of the measured medians of TTFT.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from kvferry.analysis.metrics import metrics_of
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.scenario import Scenario
from kvferry.traces.resolve import link_trace

HYBRIDS = ("ferry", "sparkv", "strong-hybrid-two-pointer")
BASELINES = ("strong-hybrid", "cachegen", "stream-only", "local-prefill")
# From a link that is hopeless to one that nothing computed can keep up with.
LINKS = ("2 Mbit/s", "10 Mbit/s", "30 Mbit/s", "100 Mbit/s", "1 Gbit/s")


def ceilings_s(scenario: Scenario, run: Run) -> tuple[float, float]:
    """What the processor and the link need for their shares of the only request's load."""
    (record,) = run.requests
    assert record.loaded_s is not None
    compute_s = sum(
        span.end_s - span.start_s
        for span in run.spans
        if span.resource == scenario.device.main and span.end_s <= record.loaded_s
    )
    arrived_s = link_trace(scenario.link).finish_s(record.arrival_s, record.streamed_bytes)
    link_s = arrived_s - record.arrival_s + scenario.link.rtt_s if record.streamed_bytes else 0.0
    return compute_s, link_s


def measured(overrides: list[str], runs: int) -> dict[str, Any]:
    scenario = load_scenario("live/quickstart", [*overrides, "workload.output=1"])
    ratios, ttfts_s, shares = [], [], []
    for _ in range(runs):
        run = run_scenario(scenario)
        if run.faults:
            raise SystemExit(f"{scenario.system}: measures nothing: {'; '.join(run.faults)}")
        (record,) = run.requests
        assert record.loaded_s is not None
        ratios.append((record.loaded_s - record.arrival_s) / max(ceilings_s(scenario, run)))
        found = metrics_of(run, main_processor=scenario.device.main)
        ttfts_s.append(found["ttft_s"])
        shares.append(found["streamed_share"])
    return {"ratio": median(ratios), "ttft_s": median(ttfts_s), "streamed_share": median(shares)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="a profile of this machine, made by kvferry calibrate")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    base = [f"device={given.device}", "costs=table"] if given.device else []
    rows = []
    for link in LINKS:
        found = {
            system: measured([*base, f"link.rate={link}", f"system={system}"], given.runs)
            for system in (*HYBRIDS, *BASELINES)
        }
        for system, figures in found.items():
            rows.append({"link": link, "system": system, **figures})
            gains = {other: found[other]["ttft_s"] / figures["ttft_s"] for other in BASELINES}
            compared = "  ".join(f"{other} {gain:.2f}x" for other, gain in gains.items()) if system in HYBRIDS else ""
            print(
                f"{link:>10s} {system:26s} TTFT {figures['ttft_s']:7.3f} s  streamed {figures['streamed_share']:4.0%}  "
                f"load / ceiling {figures['ratio']:.3f}  {compared}",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

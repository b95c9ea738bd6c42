"""How far loads over three paths end behind the bound: part of a context lies on local storage, as fp16 KV.

    python studies/three_ways.py                  # every 25th recorded link
    python studies/three_ways.py --every 1 --offsets 5

For each content, coupling and rate of storage: the regret of ``ThreeWayFerry`` against ``clairvoyant_three_way_s``, and
how much longer ``Ferry`` takes without storage.
"""

import argparse
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
from regret import COST_MODELS, DEVICE, MEAN_BYTES_PER_S, MODEL, RTT_S, SEQUENCES, context_of, in_place_s, price_s

from kvferry.backends.sim.machine import SimMachine
from kvferry.machine.ops import Extents
from kvferry.pipelines.loading.load import ContextLoad
from kvferry.pipelines.loading.outlook import Outlook, placing_s
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.loading.workload import delivered_bytes
from kvferry.policies.loading.ferry import Ferry
from kvferry.policies.loading.ferry_three_way import ThreeWayFerry
from kvferry.policies.loading.loader import Loader
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.three_way import clairvoyant_three_way_s
from kvferry.specs.storage import StorageSpec
from kvferry.traces.rate import RateTrace
from kvferry.traces.resolve import catalogue, recorded_trace

TOKENS = 16 * 1024


def loaded_s(
    loader: Loader,
    problem: LoadProblem,
    context_name: tuple[str, Coupling, int],
    link: RateTrace,
    storage_bytes_per_s: float,
) -> float:
    """Seconds until the context is there. Units lie on storage one behind the other."""
    content, coupling, sequence = context_name
    context = context_of(content, coupling, TOKENS, sequence, "huffman")
    device = DEVICE.model_copy(update={"storage": StorageSpec(name="plain", bytes_per_s=storage_bytes_per_s)})
    machine = SimMachine(device, MODEL, link, rtt_s=RTT_S, costs=COST_MODELS["roofline"])
    lengths = np.zeros(problem.units, int) if problem.read_bytes is None else problem.read_bytes.ravel().astype(int)
    begins = np.cumsum(lengths) - lengths
    load = ContextLoad(
        machine,
        context,
        problem,
        loader,
        request=0,
        outlook=Outlook(bytes_per_s=link.mean(), rtt_s=RTT_S, read_bytes_per_s=storage_bytes_per_s),
        pace=Pace(decoders=DEVICE.decompressor.workers),
        local=lambda units: Extents(begins[list(units)], lengths[list(units)]),
    )
    machine.env.run(until=load.done)
    return float(machine.env.now)


def one(
    content: str, coupling: Coupling, storage_bytes_per_s: float, name: str, share: float, sequence: int
) -> tuple[float, float]:
    """The regret of three paths on one link, and what two of them take over that."""
    trace = recorded_trace(name)
    link = trace.scaled(MEAN_BYTES_PER_S / trace.mean()).shifted(share * trace.duration_s)
    context = context_of(content, coupling, TOKENS, sequence, "huffman")
    problem = context.problem(partial(price_s, "roofline"))
    shape = problem.compute_s.shape
    raw_bytes = np.array([context.values_of((unit,)) for unit in range(problem.units)]) * MODEL.kv_value_bytes
    stored = replace(problem, read_bytes=raw_bytes.reshape(shape))

    # The last read is copied behind storage.
    copied_s = placing_s(None, DEVICE.memory, MODEL.kv_value_bytes, float(context.values.min()))

    def done(elapsed_s: float) -> tuple[float, float, float]:
        streamed_bytes = delivered_bytes(link, RTT_S, 0.0, elapsed_s, in_place_s(context))
        return elapsed_s, streamed_bytes, storage_bytes_per_s * max(0.0, elapsed_s - copied_s)

    three_s = loaded_s(ThreeWayFerry(), stored, (content, coupling, sequence), link, storage_bytes_per_s)
    two_s = loaded_s(Ferry(), problem, (content, coupling, sequence), link, storage_bytes_per_s)
    return three_s / clairvoyant_three_way_s(stored, done) - 1, two_s / three_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=25, help="take every n-th recorded link")
    parser.add_argument("--offsets", type=int, default=1)
    asked = parser.parse_args()
    names = list(catalogue())[:: asked.every]
    links = [(name, (k + 0.5) / asked.offsets, k % SEQUENCES) for name in names for k in range(asked.offsets)]
    mean = f"{MEAN_BYTES_PER_S * 8 / 1e6:g} Mbit/s in the mean"
    print(f"{len(names)} links, {asked.offsets} offsets each, {mean}; {TOKENS} tokens of {MODEL.name}")
    print(f"{'':28s} {'regret, %: median':>18s} {'p95':>6s} {'worst':>6s} {'without storage':>16s}")
    for content, coupling, rate in product(("text", "vlm"), ("all_heads", "per_head"), (0.5e9, 2e9)):
        rows = np.array([one(content, coupling, rate, *link) for link in links])
        median, p95 = 100 * np.percentile(rows[:, 0], [50, 95])
        label = f"{content}, {coupling}, {rate / 1e9:g} GB/s"
        print(
            f"{label:28s} {median:18.2f} {p95:6.2f} {100 * rows[:, 0].max():6.2f} {np.median(rows[:, 1]):15.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()

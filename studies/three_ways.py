"""How far loads over three paths end behind the bound: part of a context lies on local storage, as fp16 KV.

    python studies/three_ways.py                  # every 25th recorded link
    python studies/three_ways.py --every 1 --offsets 5 --jobs 16 --output out.csv
    python studies/three_ways.py --offline        # plans at constant, known rates

For each content, coupling and rate of storage: the regret of ``ThreeWayFerry`` against ``clairvoyant_three_way_s``, and
how much longer ``Ferry`` takes without storage. Offline: when plans end that know both rates, against
``three_way_bound_s``.
"""

import argparse
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from regret import (
    CONTENTS,
    COST_MODELS,
    DEVICE,
    HALVES,
    MEAN_BYTES_PER_S,
    MODEL,
    RTT_S,
    SEQUENCES,
    context_of,
    in_place_s,
    price_s,
)
from regret_rows import percentiles, print_table, write_csv

from kvferry.backends.sim.machine import SimMachine
from kvferry.machine.ops import Extents
from kvferry.pipelines.loading.load import ContextLoad
from kvferry.pipelines.loading.outlook import Outlook, placing_s
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.loading.workload import delivered_bytes
from kvferry.policies.loading.ferry import Ferry
from kvferry.policies.loading.ferry_three_way import ThreeWayFerry
from kvferry.policies.loading.loader import Loader
from kvferry.policies.loading.plan import Plan
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.three_way import (
    Divisions,
    clairvoyant_three_way_s,
    three_way_bound_s,
    three_way_stage,
)
from kvferry.specs.storage import StorageSpec
from kvferry.traces.catalogue import catalogue, recorded_trace
from kvferry.traces.derived import shifted
from kvferry.traces.rate import RateTrace

TOKENS = 16 * 1024
# Bytes per second: of flash in loads, and of link and storage in plans that know them.
FLASH = (0.5e9, 2e9)
LINKS, STORAGES = (8e6, 25e6, 80e6, 250e6, 800e6), (0.3e9, *FLASH)


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


def _stored(content: str, coupling: Coupling, sequence: int) -> LoadProblem:
    """The problem of a context that lies on storage as it lies in memory."""
    context = context_of(content, coupling, TOKENS, sequence, "huffman")
    problem = context.problem(partial(price_s, "roofline"))
    raw_bytes = np.array([context.values_of((unit,)) for unit in range(problem.units)]) * MODEL.kv_value_bytes
    return replace(problem, read_bytes=raw_bytes.reshape(problem.compute_s.shape))


def one(
    content: str, coupling: Coupling, storage_bytes_per_s: float, name: str, share: float, sequence: int
) -> tuple[float, float]:
    """The regret of three paths on one link, and what two of them take over that."""
    trace = recorded_trace(name)
    link = trace.with_rates(trace.rates * (MEAN_BYTES_PER_S / trace.mean()))
    link = shifted(link, share * trace.duration_s)
    context = context_of(content, coupling, TOKENS, sequence, "huffman")
    stored = _stored(content, coupling, sequence)
    problem = replace(stored, read_bytes=None)

    # The last read is copied behind storage.
    copied_s = placing_s(None, DEVICE.memory, MODEL.kv_value_bytes, float(context.values.min()))

    def done(elapsed_s: float) -> tuple[float, float, float]:
        streamed_bytes = delivered_bytes(link, RTT_S, 0.0, elapsed_s, in_place_s(context))
        return elapsed_s, streamed_bytes, storage_bytes_per_s * max(0.0, elapsed_s - copied_s)

    three_s = loaded_s(ThreeWayFerry(), stored, (content, coupling, sequence), link, storage_bytes_per_s)
    two_s = loaded_s(Ferry(), problem, (content, coupling, sequence), link, storage_bytes_per_s)
    return three_s / clairvoyant_three_way_s(stored, done) - 1, two_s / three_s


def offline(content: str, coupling: Coupling) -> list[tuple[float, float, float, int]]:
    """(gap, link, storage, sequence): how far behind the bound the plan ends at constant rates, with its order."""
    found = []
    for sequence in range(SEQUENCES):
        problem = _stored(content, coupling, sequence)
        everywhere = np.ones(problem.compute_s.shape, bool)
        for link, storage in product(LINKS, STORAGES):
            stage = three_way_stage(
                problem,
                Divisions(problem),
                np.array([1.0, 1.0 / link, 1.0 / storage]),
                absent=everywhere,
                computable=everywhere,
                ahead_s=np.zeros(3),
            )
            ends_s = Plan((stage,)).completion_s(problem, link, storage)
            found.append((ends_s / three_way_bound_s(problem, link, storage) - 1, link, storage, sequence))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=25, help="take every n-th recorded link")
    parser.add_argument("--offsets", type=int, default=1)
    parser.add_argument("--half", choices=HALVES, help="chosen: links that constants were chosen on; held-out: others")
    parser.add_argument("--contents", nargs="+", choices=CONTENTS, default=["text", "vlm"])
    parser.add_argument("--couplings", nargs="+", choices=("all_heads", "per_head"), default=["all_heads", "per_head"])
    parser.add_argument("--offline", action="store_true", help="plans at constant, known rates alone: no link is taken")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write every load's regret to this CSV file")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()

    from joblib import Parallel, delayed

    cells = list(product(asked.contents, asked.couplings))
    table: dict[str, dict[str, str]] = {}
    if asked.offline:
        gaps = Parallel(n_jobs=asked.jobs)(delayed(offline)(*cell) for cell in cells)
        for (content, coupling), found in zip(cells, gaps, strict=True):
            table.setdefault(coupling, {})[content] = percentiles([gap for gap, *_ in found])
        plans = len(LINKS) * len(STORAGES) * SEQUENCES
        print(f"{plans} plans a cell, of {TOKENS} tokens of {MODEL.name}; gap to the bound")
        print_table("median, p95, p99, worst, %", table)
        told = [
            (*cell, *where, f"{100 * gap:.4f}")
            for cell, found in zip(cells, gaps, strict=True)
            for gap, *where in found
        ]
        write_csv(asked.output, ("content", "coupling", "link", "storage", "sequence", "gap, %"), told)
        return
    names = sorted(catalogue())[HALVES[asked.half] if asked.half else slice(None)][:: asked.every]
    links = [(name, (k + 0.5) / asked.offsets, k % SEQUENCES) for name in names for k in range(asked.offsets)]
    mean = f"{MEAN_BYTES_PER_S * 8 / 1e6:g} Mbit/s in the mean"
    print(f"{len(names)} links, {asked.offsets} offsets each, {mean}; {TOKENS} tokens of {MODEL.name}")
    work = list(product(cells, FLASH, links))
    results = Parallel(n_jobs=asked.jobs)(delayed(one)(*cell, rate, *link) for cell, rate, link in work)
    for (content, coupling), rate in product(cells, FLASH):
        found = [result for case, result in zip(work, results, strict=True) if case[:2] == ((content, coupling), rate)]
        row = table.setdefault(f"{content}, {coupling}, {rate / 1e9:g} GB/s", {})
        row["regret, %: median, p95, p99, worst"] = percentiles([regret for regret, _ in found])
        row["without storage"] = f"{np.median([times for _, times in found]):.2f}x"
    print_table("content, coupling, flash", table)
    rows = [
        (*cell, rate, *link, f"{100 * regret:.4f}", f"{times:.4f}")
        for (cell, rate, link), (regret, times) in zip(work, results, strict=True)
    ]
    head = ("content", "coupling", "flash, bytes/s", "link", "offset", "sequence", "regret, %", "without storage")
    write_csv(asked.output, head, rows)


if __name__ == "__main__":
    main()

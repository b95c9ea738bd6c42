"""Regret of every loader on every recorded link: how much later a context is there than the lower bound.

    KVFERRY_TRACES=... python studies/regret.py [--quick] [--help]

One request on an idle RTX 5080 laptop, Llama-3.1-8B, over each trace of the catalogue from offsets spread over it.
Links differ by a factor of 400 in rate; so that both paths matter on each, every trace is scaled to a mean of
640 Mbit/s (SparKV VI-A), which keeps how it varies; --raw leaves it as it is. Loaders plan with the trace's mean.
The bound sees the whole trace and leaves out token dependencies, and decompression and copies but of the last
transfer; it is that of SparKV's encoding, below which CacheGen may come, as it may send fewer bits.

Contents: text; vlm, where sizes and attention rise and fall together from scene to scene; vlm-apart, with the
sizes of one video and the attention of another; vlm-opposed, where attention falls as sizes rise. The last two are
not measured anywhere: they are there because they are hard.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from time import process_time

import numpy as np
from regret_rows import percentiles, print_table, write_csv

from kvferry.backends.sim.machine import SimMachine
from kvferry.codecs.sizes import CODECS
from kvferry.machine.ops import Op
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.load import ContextLoad
from kvferry.pipelines.loading.outlook import Outlook, placing_s
from kvferry.pipelines.loading.pace import Pace
from kvferry.pipelines.loading.workload import load_bound_s
from kvferry.policies.loading.ferry import Ferry
from kvferry.policies.loading.horizon import Horizon
from kvferry.policies.loading.hybrid import Hybrid
from kvferry.policies.loading.loader import Loader
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.single_path import CacheGen, LocalPrefill, StreamOnly
from kvferry.policies.loading.staged import Staged
from kvferry.scenarios.loader import load_device, load_model
from kvferry.sim.costs.cost_model import COST_MODELS, CostModel
from kvferry.traces.catalogue import catalogue, recorded_trace
from kvferry.traces.chunks import CHARACTERS, ChunkTrace, generate_chunks
from kvferry.traces.derived import shifted
from kvferry.traces.rate import RateTrace
from kvferry.traces.statistics import statistics_of

LOADERS: dict[str, Callable[[], Loader]] = {
    "ferry": Ferry,
    "ferry horizon": Horizon,
    "ferry on the chain": partial(Ferry, needed_first=False),
    "sparkv": Staged,
    "sparkv, no controller": partial(Staged, adapt=False),
    "sparkv last-first": partial(Staged, "greedy-last-first"),
    "sparkv overdue": partial(Staged, compute_overdue=True),
    "sparkv last-first, overdue": partial(Staged, "greedy-last-first", compute_overdue=True),
    "sparkv literal": partial(Staged, "greedy-literal"),
    "sparkv literal, no controller": partial(Staged, "greedy-literal", adapt=False),
    "sparkv top-down": partial(Staged, "greedy-top-down"),
    "sparkv top-down, no controller": partial(Staged, "greedy-top-down", adapt=False),
    "sparkv on the chain": partial(Staged, "chain"),
    "sparkv on the chain, no controller": partial(Staged, "chain", adapt=False),
    "hybrid uniform": partial(Hybrid, "uniform"),
    "hybrid true-costs": partial(Hybrid, "true-costs"),
    "hybrid whole-chunk": partial(Hybrid, "whole-chunk"),
    "hybrid two-pointer": partial(Hybrid, "two-pointer"),
    "cachegen": CacheGen,
    "stream-only": StreamOnly,
    "local-prefill": LocalPrefill,
}
# Every second link by name.
HALVES = {"chosen": slice(0, None, 2), "held-out": slice(1, None, 2)}
# A link fades that spends at least this share of its time below a tenth of its mean.
FADING = 0.02
CONTENTS = ("text", "vlm", "vlm-apart", "vlm-opposed")
DEVICE, MODEL = load_device("rtx-5080-laptop"), load_model("llama-3.1-8b")
MEAN_BYTES_PER_S = 80e6
RTT_S = 0.004
# Different contexts, taken in turn.
SEQUENCES = 5


@dataclass(frozen=True)
class Case:
    content: str
    coupling: Coupling
    tokens: int
    raw: bool
    truth: str
    estimate: str
    rtt_s: float = RTT_S


def price_s(cost_model: str, op: Op) -> np.ndarray:
    gpu = DEVICE.processors[DEVICE.main]
    return _costs(cost_model).durations_s(op) + gpu.dispatch_s


@cache
def _costs(name: str) -> CostModel:
    return COST_MODELS[name](DEVICE.processors[DEVICE.main], MODEL)


def chunks_of(content: str, tokens: int, sequence: int) -> ChunkTrace:
    CHARACTERS["vlm-opposed"] = replace(CHARACTERS["vlm"], novelty_reach=-CHARACTERS["vlm"].novelty_reach)
    generate = partial(generate_chunks, layers=MODEL.layers, kv_heads=MODEL.kv_heads, seed=0)
    if content != "vlm-apart":
        return generate(content, tokens, sequence=sequence)
    other = generate("vlm", tokens, sequence=sequence + 1000)
    return replace(generate("vlm", tokens, sequence=sequence), active_blocks=other.active_blocks)


@cache
def context_of(content: str, coupling: Coupling, tokens: int, sequence: int, codec: str) -> Context:
    chunks = chunks_of(content, tokens, sequence)
    encoding = CODECS[codec](chunks.entropy_bits, chunks.tokens * 2 * MODEL.head_dim)
    return Context(
        sequence=sequence,
        model=MODEL,
        coupling=coupling,
        tokens=chunks.tokens,
        active_blocks=chunks.active_blocks,
        encoded_bytes=encoding.encoded_bytes,
        level_scale=encoding.level_scale,
    )


def load_s(case: Case, loader: Loader, context: Context, link: RateTrace) -> float:
    """Seconds until the context is there."""
    machine = SimMachine(DEVICE, MODEL, link, rtt_s=case.rtt_s, costs=COST_MODELS[case.truth])
    load = ContextLoad(
        machine,
        context,
        context.problem(partial(price_s, case.estimate)),
        loader,
        request=0,
        outlook=Outlook(bytes_per_s=link.mean(), rtt_s=case.rtt_s),
        pace=Pace(decoders=DEVICE.decompressor.workers),
    )
    machine.env.run(until=load.done)
    return float(machine.env.now)


def in_place_s(context: Context) -> float:
    """What the last transfer takes at least, once it has come."""
    return placing_s(DEVICE.decompressor, DEVICE.memory, MODEL.kv_value_bytes, float(context.values.min()))


def least_s(context: Context, problem: LoadProblem, link: RateTrace, rtt_s: float) -> float:
    """The clairvoyant bound on an idle processor."""
    no_intake, idle = np.zeros(problem.compute_s.shape), RateTrace.constant(1.0)
    return load_bound_s(problem, no_intake, link, rtt_s, idle, 0.0, placing_s=in_place_s(context))


def regrets(case: Case, names: list[str], trace_name: str, offsets: int) -> Iterator[tuple[str, float, float, str]]:
    """(loader, regret, processor seconds, where) for each offset into one trace."""
    trace = recorded_trace(trace_name)
    if not case.raw:
        trace = trace.with_rates(trace.rates * (MEAN_BYTES_PER_S / trace.mean()))
    for k in range(offsets):
        link = shifted(trace, (k + 0.5) / offsets * trace.duration_s)
        context = partial(context_of, case.content, case.coupling, case.tokens, k % SEQUENCES)
        truth = context("huffman").problem(partial(price_s, case.truth))
        bound_s = least_s(context("huffman"), truth, link, case.rtt_s)
        for name in names:
            codec = "cachegen" if name == "cachegen" else "huffman"
            began_s = process_time()
            took_s = load_s(case, LOADERS[name](), context(codec), link)
            spent_s = process_time() - began_s
            yield name, took_s / bound_s - 1, spent_s, f"{trace_name} at {k + 0.5:g}/{offsets}, bound {bound_s:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every seventh trace, two offsets, all-heads coupling")
    parser.add_argument("--offsets", type=int, default=20)
    parser.add_argument("--half", choices=HALVES, help="chosen: links that constants were chosen on; held-out: others")
    parser.add_argument("--fading", action="store_true", help="only links that fade")
    parser.add_argument("--rtt", type=float, default=RTT_S, metavar="SECONDS")
    parser.add_argument("--every", type=int, default=1, help="take every n-th trace")
    parser.add_argument("--loaders", nargs="+", choices=LOADERS, default=list(LOADERS), metavar="LOADER")
    parser.add_argument("--contents", nargs="+", choices=CONTENTS, default=CONTENTS)
    parser.add_argument("--couplings", nargs="+", choices=("all_heads", "per_head"), default=("all_heads", "per_head"))
    parser.add_argument("--tokens", type=int, default=16 * 1024)
    parser.add_argument("--raw", action="store_true", help="leave the rates as recorded")
    parser.add_argument("--truth", choices=COST_MODELS, default="roofline", help="costs that the world obeys")
    parser.add_argument("--estimate", choices=COST_MODELS, default="roofline", help="costs that loaders plan with")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write every load's regret to this CSV file")
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    if asked.quick:
        asked.every, asked.offsets, asked.couplings = 7, 2, ("all_heads",)

    from joblib import Parallel, delayed

    traces = sorted(catalogue())[HALVES[asked.half]] if asked.half else list(catalogue())
    if asked.fading:
        traces = [name for name in traces if statistics_of(recorded_trace(name)).fade_share >= FADING]
    traces = traces[:: asked.every]
    rates = "as recorded" if asked.raw else f"scaled to a mean of {MEAN_BYTES_PER_S * 8 / 1e6:g} Mbit/s"
    print(f"{len(traces)} traces, {rates}, {asked.offsets} offsets each; {asked.tokens} tokens of {MODEL.name}")
    print(f"costs: {asked.truth}, planned with {asked.estimate}")
    table: dict[str, dict[str, str]] = {}
    told: list[tuple[object, ...]] = []
    for content in asked.contents:
        for coupling in asked.couplings:
            case = Case(content, coupling, asked.tokens, asked.raw, asked.truth, asked.estimate, asked.rtt)
            work = Parallel(n_jobs=asked.jobs)(
                delayed(lambda *args: list(regrets(*args)))(case, asked.loaders, name, asked.offsets) for name in traces
            )
            print(f"\n{content}, {coupling}: regret in %, {len(traces) * asked.offsets} loads")
            print(f"{'':36s} {'median':>8s} {'p95':>8s} {'p99':>8s} {'worst':>8s} {'ms/load':>8s}")
            rows = [row for rows in work for row in rows]
            for name in asked.loaders:
                mine = [row for row in rows if row[0] == name]
                values = 100 * np.array([regret for _, regret, _, _ in mine])
                spent_ms = 1e3 * np.mean([spent_s for _, _, spent_s, _ in mine])
                median, p95, p99 = np.percentile(values, [50, 95, 99])
                print(
                    f"{name:36s} {median:8.2f} {p95:8.2f} {p99:8.2f} {values.max():8.2f} {spent_ms:8.1f}"
                    f"   worst: {mine[int(values.argmax())][3]}",
                    flush=True,
                )
                table.setdefault(f"{name}, {coupling}", {})[content] = percentiles(values / 100)
                told += [(content, coupling, name, where, f"{100 * regret:.4f}") for _, regret, _, where in mine]
    print_table("median, p95, p99, worst, %", table)
    write_csv(asked.output, ("content", "coupling", "loader", "link", "regret, %"), told)


if __name__ == "__main__":
    # Workers take functions with a cache by the name of their module, which "__main__" is none for them.
    from regret import main as carry_out

    carry_out()

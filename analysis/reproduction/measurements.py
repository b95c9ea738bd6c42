"""Figures that need no simulated run: how long solvers take, what paths are made of, how well costs are guessed.

Each takes the scenario of an experiment's case and returns figures by name, as a run's metrics.
"""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from kvferry.analysis.reproduction.memory_measurements import choosing_share, drop_at_threshold, largest_batch
from kvferry.backends.sim.parts import ModelledContexts
from kvferry.machine.ops import PrefillHead, Select
from kvferry.pipelines.decoding.evolution import Evolution, wanted_again
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.stage import price_s
from kvferry.pipelines.loading.systems import SYSTEMS
from kvferry.pipelines.loading.workload import Requests
from kvferry.pipelines.record import Assisted
from kvferry.pipelines.run import run_whole
from kvferry.policies.decode.maintained_clusters import MaintainedClusters
from kvferry.policies.decode.scored_keys import LowRankKeys
from kvferry.policies.loading.greedy import greedy_plan
from kvferry.policies.loading.milp import milp_plan
from kvferry.sim.costs.block_sparse import BlockSparseKernel
from kvferry.sim.costs.predictor import Predictor
from kvferry.sim.costs.roofline import Roofline
from kvferry.sim.costs.samples import Samples, measure
from kvferry.specs.errors import pick
from kvferry.specs.scenario import PolicySpec, Scenario
from kvferry.traces.chance import Source, generator
from kvferry.traces.chunks import generate_chunks
from kvferry.traces.critical_tokens import CriticalTokens
from kvferry.traces.resolve import link_trace
from kvferry.traces.selections import SelectionStream

Figures = dict[str, float]
# Of the search tree: a limit in seconds would give another figure on another day.
_MILP_NODE_LIMIT = 10_000
_REPEATS = 5


def solver_times(scenario: Scenario) -> Figures:
    """Wall time of the MILP over that of the greedy, and by how much the greedy's makespan is longer."""
    bytes_per_s = link_trace(scenario.link).mean()
    problem = _workload(scenario).request(0).problem
    greedy_s = []
    for _ in range(_REPEATS):
        began_s = perf_counter()
        greedy = greedy_plan(problem, bytes_per_s)
        greedy_s.append(perf_counter() - began_s)
    began_s = perf_counter()
    milp = milp_plan(problem, bytes_per_s, node_limit=_MILP_NODE_LIMIT)
    milp_s = perf_counter() - began_s
    return {
        "milp_s": milp_s,
        "greedy_s": min(greedy_s),
        "milp_over_greedy": milp_s / min(greedy_s),
        "greedy_gap": greedy.stage_makespan_s(problem, bytes_per_s) / milp.makespan_s - 1,
    }


def path_shares(scenario: Scenario) -> Figures:
    """What streaming and computing a whole context consist of, the steps one after the other (Fig. 16)."""
    context = _workload(scenario).context(0)
    device = scenario.device
    values = context.total_tokens * scenario.model.kv_values_per_token
    transmission_s = float(context.stream_bytes.sum()) / link_trace(scenario.link).mean()
    decode_s = values / (device.decompressor.values_per_s * device.decompressor.workers)
    copied_per_s = device.memory.copy_bytes_per_s
    copy_s = values * scenario.model.kv_value_bytes / copied_per_s if copied_per_s else 0.0
    compute_s = _compute_s(scenario, context)
    dense_s = _compute_s(scenario, replace(context, active_blocks=np.zeros_like(context.active_blocks)))
    streaming_s = transmission_s + decode_s + copy_s
    return {
        "transmission_percent": 100 * transmission_s / streaming_s,
        "decode_and_copy_percent": 100 * (decode_s + copy_s) / streaming_s,
        "attention_percent": 100 * (1 - dense_s / compute_s),
        "streaming_s": streaming_s,
        "compute_s": compute_s,
    }


def predictor_error(scenario: Scenario) -> Figures:
    """Mean relative error of SparKV's predictor and of two rooflines on chunks of the scenario's contexts (Fig. 8)."""
    processor = scenario.device.processors[scenario.device.main]
    workload, model = scenario.context_reuse.workload, scenario.model
    kernel = BlockSparseKernel(processor, model)
    samples = measure(kernel, model, scenario.seed, content=workload.content, chunks=workload.token_chunks)
    training, held_out = samples.split(0.8, generator(Source.COST_SPLIT, scenario.seed))
    ideal = Roofline(processor.model_copy(update={"efficiency": {}, "default_efficiency": 1.0}), model)

    def roofline_s(part: Samples) -> np.ndarray:
        flop, n_bytes = ideal.arithmetic.block_flop, ideal.arithmetic.block_bytes
        return ideal.price_arrays([("sparse_attention", part.active_blocks * flop, part.active_blocks * n_bytes)])

    slowness = float(np.median(training.seconds / roofline_s(training)))
    predictor = Predictor.trained(training, scenario.seed)
    errors = {
        "predictor": predictor.predict_s(held_out.token_chunk, held_out.active_blocks, held_out.load),
        "roofline": roofline_s(held_out),
        "fitted_roofline": slowness * roofline_s(held_out),
    }
    figures = {f"{name}_error": float(np.abs(s / held_out.seconds - 1).mean()) for name, s in errors.items()}
    figures["roofline_over_predictor"] = figures["roofline_error"] / figures["predictor_error"]
    figures["fitted_roofline_over_predictor"] = figures["fitted_roofline_error"] / figures["predictor_error"]
    return figures


def chunk_spread(scenario: Scenario) -> Figures:
    """How chunks of one context differ: attention time of a chunk, entropy, streaming time (Fig. 3 to 5)."""
    workload, model = scenario.context_reuse.workload, scenario.model
    chunks = generate_chunks(workload.content, workload.context, model.layers, model.kv_heads, scenario.seed)
    costs = _estimate(scenario)
    tokens = chunks.tokens[:, None, None]
    dense_s = costs(PrefillHead(tokens=tokens, active_blocks=np.zeros_like(chunks.active_blocks)))
    attention_s = costs(PrefillHead(tokens=tokens, active_blocks=chunks.active_blocks)) - dense_s
    stream_s = _workload(scenario).context(0).stream_bytes / link_trace(scenario.link).mean()
    return {
        "attention_least_s": float(attention_s.min()),
        "attention_most_s": float(attention_s.max()),
        "attention_spread": float(attention_s.max() / attention_s.min()),
        "entropy_least_bits": float(chunks.entropy_bits.min()),
        "entropy_most_bits": float(chunks.entropy_bits.max()),
        "stream_spread": float(stream_s.max() / stream_s.min()),
    }


def group_share(scenario: Scenario) -> Figures:
    """Of generated selections over 300 steps: the smallest share of groups with 80 % of the accesses, and what
    neighbouring steps share (KVSwap Fig. 8)."""
    workload, steps = scenario.decode.workload, 300
    selected = LowRankKeys().selected_tokens
    group_tokens = int(scenario.policy_values.get("group_tokens", 4))
    stream = CriticalTokens(
        layers=3,
        sequences=1,
        context=workload.context,
        selected=selected,
        group_tokens=group_tokens,
        reach=workload.reach,
        persistence=workload.persistence,
        lasting=workload.lasting,
        seed=scenario.seed,
    )
    ids = np.stack([stream(Select(1, stream.context_groups, stream.groups, step, 0)).ids for step in range(steps)])
    found = SelectionStream(np.sort(ids, axis=-1), stream.context_groups)
    return {"hot_share": found.hot_share(0.8), "overlap": float(found.overlaps().mean())}


def clusters(scenario: Scenario) -> Figures:
    """What has become of clusters once the scenario's output is decoded (DynaKV Tab. 5): their variance, the share of
    the most wanted entries that is retrieved, and how many there are; and how soon one that was updated is wanted
    again (Tab. 2)."""
    workload, kept = scenario.decode.workload, 64
    system = pick("system", DECODE_SYSTEMS, scenario.system).with_policies(scenario.policy_values)
    plan, within = plan_for(scenario, system), (1, 2, 4, 8, 16)
    evolution = Evolution(plan, workload.keys, scenario.seed)
    evolution.go(workload.output - 1 - kept - max(within))
    # Where new keys are clustered by themselves, none joins a cluster.
    joins = "assign" in plan.roles.upkeep.beside_moves
    again = wanted_again(evolution, kept, within) if joins else {}
    quality = evolution.quality()
    return {
        "cluster_variance": quality.variance,
        "recall": quality.recall,
        "clusters": quality.clusters,
        **{f"wanted_within_{steps}": share for steps, share in again.items()},
    }


def update_reads(scenario: Scenario) -> Figures:
    """Entries that are read for nothing but to update their clusters, per row and token of the whole output (DynaKV
    Fig. 11)."""
    system = pick("system", DECODE_SYSTEMS, scenario.system).with_policies(scenario.policy_values)
    plan, workload = plan_for(scenario, system), scenario.decode.workload
    evolution = Evolution(plan, workload.keys, scenario.seed)
    evolution.go(workload.output - 1)
    kept = evolution.kept
    assert isinstance(kept, MaintainedClusters), "keys join no clusters"
    return {"update_read_entries": kept.splitting.unasked / (evolution.keys.kinds * plan.rows * (workload.output - 1))}


def ttft_decrease(scenario: Scenario) -> Figures:
    """By how much a cloud's help brings forward a device's own first token, per cent of what the device takes by
    itself: the mean over the same requests (P/D-Device Fig. 7a)."""
    helped, alone = (run_whole(scenario.under(system)).assisted for system in (scenario.system, "device-only"))
    assert helped is not None and alone is not None
    # Requests begin in the same order: a device's next waits for the one before, which differs; arrivals do not.
    ttft_s = [_by_arrival(one.columns["own_first_s"] - one.columns["began_s"], one) for one in (helped, alone)]
    perceived_s = _by_arrival(helped.columns["first_s"] - helped.columns["began_s"], helped)
    return {
        "ttft_decrease_percent": float(100 * (1 - ttft_s[0] / ttft_s[1]).mean()),
        "ttft_decrease_of_mean_percent": float(100 * (1 - ttft_s[0].mean() / ttft_s[1].mean())),
        "perceived_decrease_percent": float(100 * (1 - perceived_s / ttft_s[1]).mean()),
        "ttft_device_s": float(ttft_s[0].mean()),
        "ttft_alone_s": float(ttft_s[1].mean()),
        "assisted_share": float((helped.columns["tokens"] > 0).mean()),
    }


def _by_arrival(values: np.ndarray, of: Assisted) -> np.ndarray:
    return values[np.argsort(of.columns["request"])]


def cloud_gain(scenario: Scenario) -> Figures:
    """Requests per second of a cloud that sends the scenario's L, over those where it sends 200 (P/D-Device Fig. 7d);
    and what it serves per second with either. A request whose user has given up is not served; ``let_down``: how many
    of all there were with either."""
    (rate, let_down), (rate_of_200, let_down_of_200) = map(_served_per_s, (scenario, _with_200_tokens(scenario)))
    return {
        "cloud_throughput_gain": rate / rate_of_200,
        "cloud_throughput_requests_per_s": rate,
        "with_200_requests_per_s": rate_of_200,
        "let_down": let_down,
        "with_200_let_down": let_down_of_200,
    }


def cloud_gain_at_equal_machines(scenario: Scenario) -> Figures:
    """The same where as many machines as the scenario's cloud has prefill and decode in the best proportion for
    either; and how many of them prefill then."""
    prefill, decode = (scenario.machines[name] for name in ("prefill", "decode"))
    of = (prefill.count or 1) + (decode.count or 1)
    best = []
    for one in (scenario, _with_200_tokens(scenario)):
        rates = {}
        for n in range(1, of):
            counts = {"prefill": prefill.model_copy(update={"count": n})}
            counts["decode"] = decode.model_copy(update={"count": of - n})
            rates[n] = _served_per_s(one.model_copy(update={"machines": {**one.machines, **counts}}))[0]
        best.append(max(rates.items(), key=lambda of: of[1]))
    (n, rate), (n_of_200, rate_of_200) = best
    return {
        "cloud_throughput_gain": rate / rate_of_200,
        "cloud_throughput_requests_per_s": rate,
        "with_200_requests_per_s": rate_of_200,
        "prefilling": float(n),
        "with_200_prefilling": float(n_of_200),
    }


def _with_200_tokens(scenario: Scenario) -> Scenario:
    whole = PolicySpec.model_validate({"tokens": 200}).over(scenario.policies.get("assist"))
    return scenario.model_copy(update={"policies": scenario.policies | {"assist": whole}})


def _served_per_s(scenario: Scenario) -> tuple[float, float]:
    """A cloud's requests per second, and how many requests it has let down."""
    assisted = run_whole(scenario).assisted
    assert assisted is not None
    return assisted.cloud["cloud_throughput_requests_per_s"], float(assisted.columns["lost"].sum())


MEASUREMENTS: dict[str, Callable[[Scenario], Figures]] = {
    "solver_times": solver_times,
    "path_shares": path_shares,
    "predictor_error": predictor_error,
    "chunk_spread": chunk_spread,
    "group_share": group_share,
    "clusters": clusters,
    "update_reads": update_reads,
    "ttft_decrease": ttft_decrease,
    "cloud_gain": cloud_gain,
    "cloud_gain_at_equal_machines": cloud_gain_at_equal_machines,
    "largest_batch": largest_batch,
    "drop_at_threshold": drop_at_threshold,
    "choosing_share": choosing_share,
}
# Measurements of wall time, which others at work on the machine would disturb.
OF_WALL_TIME = frozenset({"solver_times"})


def _estimate(scenario: Scenario) -> Callable[[Any], Any]:
    return price_s(scenario, scenario.costs.estimate)


def _compute_s(scenario: Scenario, context: Context) -> float:
    return float(context.problem(_estimate(scenario)).compute_s.sum())


def _workload(scenario: Scenario) -> Requests:
    system = pick("system", SYSTEMS, scenario.system).with_policies(scenario.policy_values)
    stored = ModelledContexts(scenario, system.codec).stored
    return Requests(scenario, system, link_trace(scenario.link).mean(), _estimate(scenario), stored)

"""How long a decoded token takes to simulate where KV blocks are clusters, as DynaKV's are: 28 layers of Qwen2.5-1.5B
on a phone, with 16Ki entries behind the prompt, and how that grows up to 100Ki; and tokens that are skipped."""

import itertools
from collections.abc import Iterator
from functools import partial
from statistics import median
from time import process_time
from typing import NamedTuple

import numpy as np

from benchmarks.row import Row, best_s, lower
from kvferry.backends.needs import KvOnStorage
from kvferry.backends.sim.world import sim_world
from kvferry.backends.world import DEVICE, NO_INPUTS
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.policies.decode.cluster_table import ClusterTable
from kvferry.scenarios.loader import load_scenario
from kvferry.traces.clustered_keys import ClusteredKeys

TOKENS = 64
SYSTEMS = ("dynakv", "pqcache", "clusterkv", "no-cluster")
ENTRIES = ("4Ki", "64Ki", "100Ki")


# Layouts and residencies that stand in for dynakv's own.
PARTS = {
    "pairs, virtual cache": ("policies.layout=dual-head", "policies.residency=virtual-cache"),
    "order of tokens, whole cache": ("policies.layout=sequence-order", "policies.residency=whole-cache"),
    "cluster by cluster, nothing kept": ("policies.layout=cluster-by-cluster", "policies.residency=none"),
}


class Measured(NamedTuple):
    """Processor times: of a token, the median of 64; of 1,000 tokens that are skipped before; and of numpy alone as it
    scores the clusters of all kinds of layers and takes the best, as every token has to (None: there are none)."""

    token_s: float
    skipped_s: float
    selection_s: float | None


def measured(system: str, entries: str, *policies: str) -> Measured:
    wanted = [f"system={system}", "model=qwen2.5-1.5b", f"workload.output={entries}", f"workload.decoded={TOKENS}"]
    wanted += policies
    scenario = load_scenario("dynakv/latency", wanted)
    plan = plan_for(scenario, DECODE_SYSTEMS[system].with_policies(scenario.policy_values))
    needs = {DEVICE: KvOnStorage(sizes=plan, sequences=plan.sequences)}
    skipped = plan.output - TOKENS
    with sim_world(scenario, needs, NO_INPUTS, lambda span: None, lambda what: None) as world:
        at_s: list[float] = []
        decode = LockStepDecode(
            world.machine,
            plan,
            lambda tokens: at_s.append(process_time()),
            world.shortcuts.foresight,
            world.shortcuts.keys,
        )
        env = world.machine.env
        env.run(until=env.process(decode.run(TOKENS, skipped)))
        keys, ask = world.shortcuts.keys, plan.roles.selector.ask
        assert plan.keys.index is not None
        selection_s = None
        if isinstance(keys, ClusteredKeys):
            k, queries = ask(plan.keys.index, decode.now.kept.stored(0)).k, keys.queries[:, keys.entry]
            select = partial(_selection, keys.table, queries, k)
            selection_s = best_s(select, times=20, clock=process_time)
    steps = [after - before for before, after in itertools.pairwise(at_s)]
    # The first token is followed by the ones that are skipped.
    each_s = median(steps[1:])
    return Measured(each_s, (steps[0] - each_s) / skipped * 1000, selection_s)


def _selection(table: ClusterTable, queries: np.ndarray, k: int) -> np.ndarray:
    return np.argpartition(-table.scores(slice(None), queries), k - 1, axis=1)


def rows() -> Iterator[Row]:
    for system in SYSTEMS:
        found = measured(system, "16Ki")
        # Asked for: 10 ms.
        yield lower(f"{system}, a token at 16Ki entries", 1e3 * found.token_s, "ms", 10.0)
        yield lower(f"{system}, 1,000 tokens skipped up to 16Ki entries", found.skipped_s, "s")
        if found.selection_s is not None:
            yield lower(f"{system}, numpy's selection alone at 16Ki entries", 1e3 * found.selection_s, "ms")
    for name, policies in PARTS.items():
        yield lower(f"{name}, a token at 16Ki entries", 1e3 * measured("dynakv", "16Ki", *policies).token_s, "ms", 10.0)
    for entries in ENTRIES:
        found = measured("dynakv", entries)
        yield lower(f"dynakv, a token at {entries} entries", 1e3 * found.token_s, "ms")
        yield lower(f"dynakv, 1,000 tokens skipped up to {entries} entries", found.skipped_s, "s")

"""How long a decoded token takes to simulate where KV blocks are clusters, as DynaKV's are: 28 layers of Qwen2.5-1.5B
on a phone, with 16Ki entries behind the prompt, and how that grows up to 100Ki; and tokens that are skipped."""

from collections.abc import Iterator
from statistics import median
from time import process_time

from benchmarks.row import Row, lower
from kvferry.backends.needs import KvOnStorage
from kvferry.backends.sim.world import sim_world
from kvferry.backends.world import DEVICE, NO_INPUTS
from kvferry.pipelines.decoding.decode import LockStepDecode
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.scenarios.loader import load_scenario

TOKENS = 64
SYSTEMS = ("dynakv", "pqcache", "clusterkv", "no-cluster")
ENTRIES = ("4Ki", "64Ki", "100Ki")


# Layouts and residencies that stand in for dynakv's own.
PARTS = {
    "pairs, virtual cache": ("policies.layout=dual-head", "policies.residency=virtual-cache"),
    "order of tokens, whole cache": ("policies.layout=sequence-order", "policies.residency=whole-cache"),
    "cluster by cluster, nothing kept": ("policies.layout=cluster-by-cluster", "policies.residency=none"),
}


def token_s(system: str, entries: str, *policies: str) -> tuple[float, float]:
    """Processor time of a token, the median of 64, and of 1,000 tokens that are skipped before."""
    wanted = [f"system={system}", "model=qwen2.5-1.5b", f"workload.output={entries}", f"workload.decoded={TOKENS}"]
    wanted += policies
    scenario = load_scenario("dynakv/latency", wanted)
    plan = plan_for(scenario, DECODE_SYSTEMS[system].with_policies(scenario.policy_values))
    needs = {DEVICE: KvOnStorage(sizes=plan, sequences=plan.sequences)}
    skipped = plan.output - TOKENS
    with sim_world(scenario, needs, NO_INPUTS, lambda span: None, lambda what: None) as world:
        at_s: list[float] = []
        decode = LockStepDecode(
            world.machine, plan, lambda tokens: at_s.append(process_time()), world.foresight, world.keys
        )
        env = world.machine.env
        env.run(until=env.process(decode.run(TOKENS, skipped)))
    steps = [after - before for before, after in zip(at_s, at_s[1:], strict=False)]
    # The first token is followed by those that are skipped.
    each_s = median(steps[1:])
    return each_s, (steps[0] - each_s) / skipped * 1000


def rows() -> Iterator[Row]:
    for system in SYSTEMS:
        each_s, skipped_s = token_s(system, "16Ki")
        # Asked for: 10 ms.
        yield lower(f"{system}, a token at 16Ki entries", 1e3 * each_s, "ms", 10.0)
        yield lower(f"{system}, 1,000 tokens skipped up to 16Ki entries", skipped_s, "s")
    for name, policies in PARTS.items():
        yield lower(f"{name}, a token at 16Ki entries", 1e3 * token_s("dynakv", "16Ki", *policies)[0], "ms", 10.0)
    for entries in ENTRIES:
        each_s, skipped_s = token_s("dynakv", entries)
        yield lower(f"dynakv, a token at {entries} entries", 1e3 * each_s, "ms")
        yield lower(f"dynakv, 1,000 tokens skipped up to {entries} entries", skipped_s, "s")

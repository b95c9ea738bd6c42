"""Decoding with a latent cache (MLA) in the modelled world: what memory holds by hand, what moves, who cannot."""

from typing import Any

import pytest

from kvferry.pipelines.decoding.plan import DecodePlan
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.placement import thresholds
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# Of the A800's 80 GiB, 1.35 are not for programs; 15,706,357,760 weights of 2 B, and 0.3 of them for activations.
FREE_BYTES = (80 - 1.35) * 2**30 - 1.3 * 2 * 15_706_357_760
# A token in a layer: 512 + 64 numbers of 2 B.
ENTRY_BYTES, LAYERS = 1152, 27


def scenario(**changes: Any) -> Scenario:
    wanted = {"model": "deepseek-v2-lite", "workload.input": "32Ki", "workload.output": "2Ki"} | changes
    return load_scenario("specontext/throughput", [f"{key}={value}" for key, value in wanted.items()])


def planned(found: Scenario) -> DecodePlan:
    return plan_for(found, DECODE_SYSTEMS[found.system].with_policies(found.policy_values))


def run(**changes: Any) -> Run:
    return run_scenario(scenario(**changes))


def test_thresholds_by_hand() -> None:
    plan = planned(scenario())
    # The head: queries 2048 x 16 x 192, the cache 2048 x 576, keys absorbed 512 x 16 x 128, in 2 B, 0.3 of it besides.
    head_bytes = 1.3 * 2 * (2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 128)
    # The token under way of each of 32 sequences has room in every layer.
    tokens = (FREE_BYTES - head_bytes - 32 * LAYERS * ENTRY_BYTES) / (32 * ENTRY_BYTES)
    # 27 layers and the head's own; then 26, the head's and room for 2,048 chosen tokens, which all heads share.
    by_hand = (tokens // 28, (tokens - 2048) // 27, (tokens - 2 * 2048) // 26)
    assert thresholds(plan.memory.size(1))[:3] == by_hand == (42230, 43718, 45321)
    assert (plan.choice.heads, plan.managed.index_layers) == (1, 1)


def test_the_most_requests_with_all_kv_in_memory_by_hand() -> None:
    # 34,816 tokens are whole pages. A chunk of 2,048 tokens passes 2 x 2,048 numbers and gate, up and product of 8
    # experts of 1,408; 64 sequences have 102,400 logits in 2 and 4 B; 128 parts of 16 heads' outputs and their sums;
    # 2 % of the memory stay free. The reserve of Eq. 6 is no business of FlashInfer's.
    activations, logits = 2048 * (2 * 2048 + 3 * 8 * 1408) * 2, 64 * 102_400 * 6
    beside = activations + logits + 128 * 16 * 129 * 4 + 0.02 * (80 - 0.85) * 2**30
    most = int((FREE_BYTES + 0.3 * 2 * 15_706_357_760 - beside) // (34_816 * LAYERS * ENTRY_BYTES))
    found = run(system="full-flashinfer", **{"workload.batch": "max", "workload.decoded": 2})
    assert found.outcome == "done"
    assert found.decoded is not None
    assert max(together for together, _ in found.decoded.steps) == most == 47


def test_scores_of_a_long_prompt_are_out_of_memory_by_hand() -> None:
    # 8 B of 16 x S x S scores: 34.4 GB of 16Ki tokens, beside 0.6 GB of KV; 137 GB of 32Ki.
    assert 8 * 16 * 2**28 + 18_432 * LAYERS * ENTRY_BYTES < FREE_BYTES < 8 * 16 * 2**30
    short = {"workload.batch": 1, "workload.output": 16}
    assert run(system="full-eager", **short, **{"workload.input": "16Ki"}).outcome == "done"
    assert run(system="full-eager", **short).outcome == "out_of_memory"


def test_the_largest_batch_is_what_device_and_host_hold() -> None:
    small = {"device.memory.host_capacity_bytes": "10 GB", "workload.decoded": 2}
    most = planned(scenario(**small, **{"workload.batch": "max"}))
    tokens = most.context + most.output
    away = most.last_tiers.count("host")
    assert 0 < away * tokens * most.sequences * ENTRY_BYTES <= 10e9
    assert run(**small, **{"workload.batch": most.sequences}).outcome == "done"
    more = run(**small, **{"workload.batch": most.sequences + 1})
    assert more.outcome == "out_of_memory"
    assert more.why.startswith("the host's memory lacks ")


def test_elastic_loading_moves_entries_that_all_heads_share() -> None:
    away = {"policies.placement": "host", "workload.batch": 1, "workload.decoded": 12, "workload.part": "end"}
    elastic, full = run(**away), run(**away, **{"policies.residency": "none"})
    written = 32 * 1024 * LAYERS * ENTRY_BYTES
    reloaded = full.tally.bytes_of("copy") - written
    # 2,048 tokens in each layer and step; new ones are written out besides.
    assert reloaded == pytest.approx(11 * 2048 * LAYERS * ENTRY_BYTES, rel=1 / 2048)
    assert elastic.tally.bytes_of("copy") - written < 0.3 * reloaded


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system": "kvswap"}, "system: its selector: .* it is scored by its own vectors, which have no low rank"),
        (
            {"system": "shadowkv"},
            r"system_policies\.shadowkv\.layout: .* it has no values that could be read without keys; groups would do",
        ),
        ({"system": "dynakv"}, "system: its layout: .* it is not laid out by clusters of keys; groups would do"),
        (
            {"system": "clusterkv"},
            r"system_policies\.clusterkv\.selector: .* one vector for all heads, and clusters are made of a head",
        ),
    ],
)
def test_what_needs_keys_and_values_of_heads_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_scenario(scenario(**changes))


def test_contexts_in_a_cloud_are_of_keys_and_values() -> None:
    with pytest.raises(InputError, match="model: deepseek-v2-lite has a latent cache .* kind: decode"):
        run_scenario(load_scenario("quickstart", ["model=deepseek-v2-lite"]))

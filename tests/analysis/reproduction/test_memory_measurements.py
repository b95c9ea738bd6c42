"""What memory holds and what choosing costs, measured on small scenarios."""

from typing import Any

import pytest
from decoding import leaving
from tiny import DECODING, tiny, tiny_model

from kvferry.analysis.reproduction.memory_measurements import choosing_share, drop_at_threshold, largest_batch
from kvferry.specs.scenario import Scenario

MODEL = tiny_model(layers=8)
# KV of a token: 8 layers x 2 x 2 heads x 8 numbers x 2 B.
TOKEN_BYTES = 512


def scenario(system: str, kv_bytes: float, **changes: Any) -> Scenario:
    """So much memory beside weights and workspace, and a host behind a link."""
    memory = {"unified": False, "copy_bytes_per_s": "1 MB/s", "host_capacity_bytes": "1 GB"}
    device = {"extends": "tiny", "memory": memory}
    budget = {"kv_share": None, "prefill_chunk": 64}
    scenario = tiny(DECODING, system=system, device=device, model=MODEL.model_dump(), budget=budget, **changes)
    return leaving(scenario, kv_bytes)


def test_the_largest_batch_by_hand() -> None:
    workload = {"context": 1024, "output": 16}
    # 65 pages of 16 tokens each.
    each = 65 * 16 * TOKEN_BYTES
    assert largest_batch(scenario("full-flashinfer", 5.5 * each, workload=workload)) == {"batch": 5}
    assert largest_batch(scenario("full-flashinfer", 0.9 * each, workload=workload)) == {"batch": 0}
    # Scores of a prompt take 4 heads x 1,024 x 1,024 x 8 B.
    assert largest_batch(scenario("full-eager", 5.5 * each, workload=workload)) == {"batch": 0}


def test_all_or_nothing_falls_where_a_prompt_is_a_little_too_long() -> None:
    policies = {"placement": {"name": "all-or-nothing", "overflow": "host"}}
    workload = {"context": 100, "output": 12, "batch": 1}
    # 900 tokens more than the scenario's own have hidden states, and two layers' KV that would leave.
    kv_bytes = 1012 * TOKEN_BYTES + 900 * (2 * MODEL.hidden + 2 * TOKEN_BYTES / 8)
    found = drop_at_threshold(scenario("full-flashinfer", kv_bytes, workload=workload, policies=policies))
    # With its 12 tokens a prompt of 1,000 fits.
    assert 1000 - 32 <= found["threshold_tokens"] <= 1000
    # All KV, 512 kB, over 1 MB/s in every step.
    assert found["throughput_drop_percent"] > 80


def test_choosing_is_a_share_of_the_time_of_decoding() -> None:
    policies = {"placement": "host", "upkeep": "none", "selected_tokens": 64}
    workload = {"context": 1024, "output": 40, "decoded": 12}
    found = choosing_share(scenario("quest", 4e6, workload=workload, policies=policies))
    # 64 tokens x 512 B of two sequences over 1 MB/s take 66 ms; the tiny processor computes in much less.
    assert 90 < found["choosing_percent"] <= 100
    here = choosing_share(scenario("quest", 4e6, workload=workload, policies={**policies, "placement": "device"}))
    assert 0 < here["choosing_percent"] < found["choosing_percent"]
    assert found["choosing_percent"] == pytest.approx(100, abs=10)

"""SpeContext's system in the modelled world: what moves, what memory holds, and where it ends."""

from typing import Any

import pytest
from tiny import DECODING as TINY

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.record import Run
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError

DEVICE = {
    "extends": "rtx-5080-laptop",
    "memory": {
        "unified": False,
        "capacity_bytes": "1 GB",
        "reserved_bytes": "0 B",
        "bytes_per_s": "896 GB/s",
        "copy_bytes_per_s": "1 GB/s",
        "host_capacity_bytes": "1 GB",
    },
}


def run(**changes: Any) -> tuple[Run, dict[str, float]]:
    policies = {"selected_tokens": 64} | changes.pop("policies", {})
    wanted = {**TINY, "system": "specontext", "device": DEVICE, "policies": policies, "budget": {}, **changes}
    scenario = load_scenario(wanted)
    found = run_scenario(scenario)
    return found, metrics_for(scenario, found)


def copied_bytes(found: Run) -> float:
    return found.tally.bytes_of("copy")


def test_elastic_loading_moves_less_than_a_full_reload() -> None:
    away = {"placement": "host"}
    elastic, figures = run(policies=away)
    full, _ = run(policies=away | {"residency": "none"})
    # What prefill and new tokens write out is the same.
    selected = 1 - figures["reuse_rate"]
    scenario = load_scenario({**TINY, "system": "specontext", "device": DEVICE, "budget": {}})
    steps, written = TINY["workload"]["output"] - 1, copied_bytes(full)
    reloaded = steps * 2 * scenario.model.layers * 64 * scenario.model.kv_entry_bytes
    assert copied_bytes(elastic) == pytest.approx(written - reloaded * (1 - selected), rel=1e-6)
    assert selected < 1


def test_runtime_memory_leaves_less_for_kv() -> None:
    scenario = load_scenario({**TINY, "system": "specontext", "device": DEVICE, "budget": {"runtime_share": 0.3}})
    free = load_scenario({**TINY, "system": "specontext", "device": DEVICE, "budget": {}})
    assert free.free_bytes - scenario.free_bytes == pytest.approx(0.3 * scenario.model.weight_bytes)


def test_kv_that_will_not_fit_is_out_of_memory_before_prefill() -> None:
    tiny_host = {**DEVICE, "memory": {**DEVICE["memory"], "host_capacity_bytes": "100 kB"}}
    found, _ = run(device=tiny_host, policies={"placement": "host"})
    assert found.outcome == "out_of_memory"
    assert found.why.startswith("the host's memory lacks ")
    assert "for the KV of 2 sequences of 1,0" in found.why
    assert not found.spans


def test_a_budget_over_the_context_selects_all_and_says_so() -> None:
    found, _ = run(policies={"selected_tokens": 100_000})
    assert found.outcome == "done"
    assert any(note.startswith("nothing is left out") for note in found.notes)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="policies.selected_tokens: must be at least 1"):
        run(policies={"selected_tokens": 0})

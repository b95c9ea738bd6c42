"""What an engine holds besides KV, by hand, and on every bundled device."""

from typing import Any

import pytest
from tiny import TINY, tiny, tiny_model

from kvferry.policies.engine_memory import activation_bytes, engine_holdings, logits_bytes, passing_tokens
from kvferry.policies.ledger import Ledger
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_device, load_model, load_scenario

MODEL = tiny_model()


def test_activations_and_logits_by_hand() -> None:
    llama = load_model("llama-3.1-8b")
    # Residual stream and norm of 4,096 numbers, gate, up and product of 14,336, 2 B each, of 2,048 tokens: 205 MiB.
    assert activation_bytes(llama, 2048) == 2048 * (2 * 4096 + 3 * 14336) * 2
    # A whole prompt of 32 Ki tokens: gate, up and product alone take 2.6 GiB.
    assert activation_bytes(llama, 32768) == 16 * activation_bytes(llama, 2048)
    assert logits_bytes(llama, 8) == 8 * 128_256 * (2 + 4)
    # Where heads are wider than the feed-forward network: queries, keys and values, the heads' output.
    wide = tiny_model(query_heads=4, kv_heads=2, head_dim=64, ffn=8, hidden=32)
    assert activation_bytes(wide, 10) == 10 * (2 * 32 + 2 * 4 * 64 + 2 * 2 * 64) * 2
    # Of a mixture, all experts that a token passes: 6 of 64, and 2 that are shared.
    mixture = load_model("deepseek-v2-lite")
    assert activation_bytes(mixture, 1) == (2 * 2048 + 3 * 8 * 1408) * 2


@pytest.mark.parametrize("kind", TINY)
def test_every_workload_holds_the_same_lines(kind: str) -> None:
    scenario = tiny(TINY[kind], budget={"memory": "100 MB"})
    assert [one.name for one in engine_holdings(scenario)] == [
        "weights",
        "runtime",
        "workspace: activations",
        "workspace: logits",
        "kept free",
    ]


def test_tokens_that_pass_together_by_hand() -> None:
    def passing(**changes: Any) -> int:
        return passing_tokens(tiny(TINY["decode"], **changes))

    # Two prompts of 1,024 tokens are a chunk; more are no more.
    assert passing() == passing(workload={"batch": 5}) == 2048
    assert passing(workload={"batch": 1}) == 1024
    assert passing(workload={"batch": 5}, budget={"prefill_chunk": 512}) == 512
    # Whole prompts, one after the other.
    assert passing(workload={"batch": 5}, budget={"prefill_chunk": None}) == 1024
    # No larger than what an NPU has compiled.
    phone = load_scenario("sparkv/laptop", ["device=oneplus-12", "device.main=npu"])
    assert passing_tokens(phone) == 1024


@pytest.mark.parametrize("name", [name for name in names("device") if name != "tiny"])
def test_every_bundled_device_keeps_some_of_its_memory_free_and_counts_the_runtime(name: str) -> None:
    device = load_device(name)
    held = Ledger(engine_holdings(tiny(TINY["decode"], device=name))).at(0)
    assert held["runtime"] == device.runtime_bytes >= 0.2e9
    assert held["kept free"] == pytest.approx(device.memory.margin_share * device.memory.free_bytes)
    assert device.memory.margin_share >= 0.02

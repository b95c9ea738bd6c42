"""More memory for KV makes no system slower, by default: on two boards and two disks, and where a file asks for keys
narrower than published."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DECODING, changed

import kvferry
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS

# Every token is decoded: a part of them would leave a large buffer half empty.
BOARD = changed(
    DECODING,
    device={"extends": "jetson-agx-orin-kvswap", "storage": "emmc"},
    model={"extends": "llama-3.2-1b", "name": "two layers", "layers": 2},
    runtime="kvswap-prototype",
    workload={"context": 2048, "batch": 1, "output": 24},
    budget={"kv_share": None},
)
# Unified memory, and a GPU with memory of its own.
DEVICES = ("jetson-agx-orin-kvswap", "rtx-4060")
# All KV takes 8.1 MiB.
KIB = [int(600 * 1.45**n) for n in range(9)]
# With what SpeContext scores with, whose layers leave memory one by one.
OF_LONG = {"workload.context": 8192}, [n << 10 for n in range(104, 136, 4)]
# Estimates that choose buffers err by less than what a larger one must bring; no more than this was seen.
NOISE = 0.0007
FILE = ("infinigen", "infinigen-star", "infinigen-star-ru", "loki", "shadowkv")


def rates(base: Any, asked: dict[str, Any], key: str, budgets: list[Any]) -> Iterator[tuple[float, float]]:
    """Tokens/s, decoding alone and with prefill, where the budget has room for the system."""
    for budget in budgets:
        try:
            found = kvferry.run(base, {**asked, key: budget}, intervals=False)
        except kvferry.InputError:
            continue
        if found.outcome == "done":
            figures = found.metrics
            yield figures["decode_tokens_per_s"], figures["end_to_end_tokens_per_s"]


def check(found: list[tuple[float, float]], what: object) -> None:
    for of_one in zip(*found, strict=True):
        best = itertools.accumulate(of_one, max)
        assert all(rate >= (1 - NOISE) * most for rate, most in zip(of_one, best, strict=True)), (what, of_one)


@pytest.mark.parametrize("storage", ["emmc", "nvme"])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("system", sorted(DECODE_SYSTEMS))
def test_more_memory_makes_no_system_slower(system: str, device: str, storage: str) -> None:
    more, budgets = OF_LONG if system == "specontext" else ({}, KIB)
    asked = {"system": system, "device": {"extends": device, "storage": storage}, **more}
    found = list(rates(BOARD, asked, "budget.kv", [f"{kib} KiB" for kib in budgets]))
    assert len(found) >= 2
    check(found, (system, device, storage))


@given(
    st.sampled_from(sorted(DECODE_SYSTEMS)),
    st.sampled_from(DEVICES),
    st.sampled_from(["emmc", "nvme", "ufs-4.0"]),
    st.integers(2, 60),
    st.lists(st.integers(500, 90_000), min_size=2, max_size=3),
)
@settings(max_examples=15, deadline=None)
def test_nor_anywhere_between(system: str, device: str, storage: str, output: int, kib: list[int]) -> None:
    asked = {"system": system, "device": {"extends": device, "storage": storage}, "workload.output": output}
    check(list(rates(BOARD, asked, "budget.kv", [f"{n} KiB" for n in sorted(kib)])), (asked, kib))


@pytest.mark.parametrize("system", FILE)
def test_nor_where_a_file_has_keys_narrower_than_published(system: str) -> None:
    asked = {"system": system, "workload.decoded": 12, "workload.batch": 2}
    found = list(rates("kvswap/throughput", asked, "budget.kv_share", [0.0769, 0.12, 0.25, 1.0]))
    assert len(found) == 4
    check(found, system)


def test_keys_that_fit_the_budget_are_as_wide_as_it_holds_and_no_wider_than_published() -> None:
    asked = {"system": "infinigen-star", "policies.compression": "fit"}
    (narrow, _), (wide, _), (widest, _) = rates(BOARD, asked, "budget.kv", ["1800 KiB", "4 MiB", "9 MiB"])
    assert wide == widest < narrow

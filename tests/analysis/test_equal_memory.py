"""A comparison says where systems did not take as much memory for KV, and how they would."""

from itertools import count

import pandas as pd
from tiny import DECODING, changed

import kvferry
from kvferry.analysis.equal_memory import unequal_memory

TOLD = "not at equal memory: KV memory peaks from "


def peak(n_bytes: float) -> dict[str, float]:
    return {"tokens_decoded": 4.0, "kv_memory_peak_bytes": n_bytes}


def test_peaks_that_lie_apart_are_told_and_whole_blocks_are_not() -> None:
    assert unequal_memory({"a": peak(100e6), "b": peak(150e6)}) is None
    assert unequal_memory({"a": peak(100e6)}) is None and unequal_memory({}) is None
    said = unequal_memory({"a": peak(5.9e6), "b": peak(485e6), "c": peak(40e6)})
    assert said is not None and said.startswith(f"{TOLD}5.90 MB (a) to 485 MB (b); --set budget.kv=SIZE")
    # A loaded context is no KV to decode from.
    assert unequal_memory({"a": {"kv_memory_peak_bytes": 1.0}, "b": {"kv_memory_peak_bytes": 9.0}}) is None


def test_the_table_says_what_each_was_granted_and_the_same_grant_is_taken() -> None:
    systems = ["kvswap", "vllm"]
    apart = kvferry.compare(changed(DECODING, budget={"kv_share": 0.5}), systems, intervals=False)
    text = " ".join(repr(apart).split())
    assert "KV memory peak" in text and TOLD in text
    assert "granted: kvswap: 50.0 % of a full cache (budget.kv_share); vllm: all memory that is free" in text
    kv_bytes = apart["vllm"].metrics["kv_memory_peak_bytes"]
    same = {"budget.kv": f"{kv_bytes:.0f} B", "budget.kv_share": None, "budget.in_memory_kv": f"{kv_bytes:.0f} B"}
    equal = kvferry.compare(DECODING, systems, same, intervals=False)
    assert {one.outcome for one in equal.results.values()} == {"done"}
    assert all(one.metrics["kv_memory_peak_bytes"] <= kv_bytes for one in equal.results.values())
    assert TOLD not in " ".join(repr(equal).split())


def test_no_grant_is_advised_to_systems_that_take_less_than_theirs() -> None:
    systems, settings = ["vllm", "dynakv"], ["device.storage=nvme", "workload.output=8"]
    found = kvferry.compare("decode", systems, settings, intervals=False)
    text = " ".join(repr(found).split())
    assert "each takes less than it is granted: a larger grant changes none of them" in text
    assert "--set budget.kv=SIZE" not in text
    more = kvferry.compare("decode", systems, [*settings, "budget.kv=2GB"], intervals=False)
    assert more["dynakv"].metrics["kv_memory_peak_bytes"] == found["dynakv"].metrics["kv_memory_peak_bytes"]


def test_a_system_that_takes_less_than_its_grant_is_named_beside_the_advice() -> None:
    # Half of a full cache limits kvswap; vllm takes what it needs of all the memory.
    found = kvferry.compare(changed(DECODING, budget={"kv_share": 0.5}), ["kvswap", "vllm"], intervals=False)
    assert "of which a system may take less; vllm takes no more of a larger one" in " ".join(repr(found).split())


def test_the_report_says_it() -> None:
    from kvferry.api.report_page.page import _of_comparison
    from kvferry.api.report_page.results import Comparison, RunResult

    spans = pd.DataFrame({"resource": ["gpu"], "label": ["A"], "start_s": [0.0], "end_s": [1.0], "n_bytes": [0.0]})
    described = {"scenario": "s", "outcome": "done", "provenance": {}}
    runs = [
        RunResult(name, {**described, "system": name, "metrics": peak(n_bytes)}, "", spans, spans)
        for name, n_bytes in {"a": 5.9e6, "b": 485e6}.items()
    ]
    assert any(line.startswith(TOLD) for line in _of_comparison(Comparison("two", runs), count()).said)

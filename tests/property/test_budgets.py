"""More memory for KV makes no system slower, unless the run says what the memory went to."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DECODING, changed

import kvferry
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS

# Clusters take the memory that they take, and as long to cluster.
SYSTEMS = sorted({*DECODE_SYSTEMS} - {"dynakv", "pqcache", "clusterkv", "no-cluster"})
# Every token is decoded: a part of them would leave a large buffer half empty.
BOARD = changed(
    DECODING,
    device={"extends": "jetson-agx-orin-kvswap", "storage": "emmc"},
    model={"extends": "llama-3.2-1b", "name": "two layers", "layers": 2},
    runtime="kvswap-prototype",
    workload={"context": 2048, "batch": 1, "output": 24},
)
# With more memory, more of what prefill wrote is written back while decoding: not less and not more of it.
WHOLE = {"os-paging"}
WIDER = "a larger budget makes them wider, which takes longer"
# Buffers are sized by estimates about the mean of many tokens. The largest difference that was seen is 1.06 %.
NOISE = 0.015


def rates(system: str, storage: str, shares: list[float]) -> Iterator[tuple[float, list[str]]]:
    """Tokens/s and notes where the budget has room for the system."""
    for share in sorted(shares):
        asked = {"system": system, "device.storage": storage, "budget.kv_share": round(share, 4)}
        asked["measure"] = "end_to_end" if system in WHOLE else "decode"
        try:
            found = kvferry.run(BOARD, asked, intervals=False)
        except kvferry.InputError:
            continue
        if found.outcome == "done":
            yield found.metrics["throughput_tokens_per_s"], list(found.run.notes)


@given(
    st.sampled_from(SYSTEMS), st.sampled_from(["emmc", "nvme"]), st.lists(st.floats(0.02, 1), min_size=2, max_size=3)
)
@settings(max_examples=15, deadline=None)
def test_more_memory_makes_nothing_slower_but_for_wider_keys(system: str, storage: str, shares: list[float]) -> None:
    best, told = 0.0, False
    for rate, notes in rates(system, storage, shares):
        assert told or rate >= (1 - NOISE) * best, (system, storage, shares)
        best, told = max(best, rate), any(WIDER in note for note in notes)


def test_keys_are_no_wider_than_published() -> None:
    (narrow, _), (wide, _), (widest, _) = found = list(rates("infinigen-star", "nvme", [0.25, 0.6, 1.0]))
    assert [any(WIDER in note for note in notes) for _, notes in found] == [True, False, False]
    assert wide == widest < narrow

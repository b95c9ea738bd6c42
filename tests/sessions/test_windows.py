"""Conversations with a model whose layers attend to a window: all KV in memory, attended to as far as windows say."""

from typing import Any

import pytest
from tiny import TURNS, tiny

from kvferry.pipelines.checks import names_in_use
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_model, load_scenario
from kvferry.specs.errors import InputError

IN_MEMORY = TURNS | {"system": "in-memory", "workload": TURNS["workload"] | {"in_cloud": "nothing"}}


def windowed(window: int | None) -> dict[str, Any]:
    more = {} if window is None else {"window": window, "full_layers": [3]}
    return load_model("tiny").model_dump(exclude_none=True) | more


@pytest.mark.parametrize("keep", ["memory", "drop"])
def test_a_window_that_holds_all_changes_nothing_and_a_shorter_one_is_faster(keep: str) -> None:
    runs = [run_scenario(tiny(IN_MEMORY, model=windowed(n), policies={"keep": keep})) for n in (None, 10_000, 100)]
    dense, whole, short = (run.sessions.turns for run in runs if run.sessions is not None)
    for one, same, faster in zip(dense, whole, short, strict=True):
        assert (same.first_token_s, same.end_s) == pytest.approx((one.first_token_s, one.end_s), rel=1e-9)
        assert same.bound_s == pytest.approx(one.bound_s, rel=1e-9)
        # No copy of KV is smaller: turns go on behind all of it.
        assert faster.from_memory == one.from_memory
        assert faster.end_s - faster.arrival_s < one.end_s - one.arrival_s
        assert faster.bound_s is not None
        assert faster.bound_s <= faster.first_token_s - faster.arrival_s + 1e-12
    assert runs[2].memory_peak_bytes == runs[0].memory_peak_bytes


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"policies": {"keep": "memory-flash"}}, "policies.keep: loading KV is not modelled for tiny.*memory or drop"),
        ({"policies": {"decode": "kvswap"}}, "newest 100 tokens alone.*all KV in memory and paged attention"),
        ({"workload": TURNS["workload"]}, "workload.in_cloud: loading KV is not modelled.*nothing would do"),
    ],
)
def test_kv_that_is_loaded_is_refused(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        load_scenario(IN_MEMORY | {"model": windowed(100)} | changes, check=names_in_use)

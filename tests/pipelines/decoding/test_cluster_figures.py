"""What layouts of clusters come to in a run: entries per read, bytes moved, room taken."""

from functools import cache

import pytest
from tiny import tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.run import run_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

LAYOUTS = ("sequence-order", "cluster-by-cluster", "cluster-pools", "dual-head")


def scenario(layout: str, **policies: object) -> Scenario:
    return tiny(
        {
            "name": "layouts",
            "system": "dynakv",
            "device": {"extends": "laptop-cpu", "storage": "nvme"},
            "model": "byte-small",
            "link": {"rate": "1 MB/s"},
            "workload": {"kind": "decode", "context": 256, "output": 96},
            "budget": {"kv": "4 MB"},
            "policies": {"layout": {"name": layout, "group_tokens": 16}, **policies},
        }
    )


@cache
def figures(layout: str, **policies: object) -> dict[str, float]:
    wanted = scenario(layout, **policies)
    return metrics_for(wanted, run_scenario(wanted))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_counted(layout: str) -> None:
    found = figures(layout)
    assert 1 <= found["access_entries"] <= found["access_entries_max"]
    assert found["write_amplification"] >= 1
    assert found["space_overhead"] >= 0
    assert (found["moved_bytes"] == 0) == (layout == "sequence-order")


def test_layouts_differ_as_they_should() -> None:
    """Clusters in one piece are read in fewer commands than tokens in their order, pairs move less than what lies one
    behind the other, and take more room."""
    tokens, packed, _, pairs = (figures(layout) for layout in LAYOUTS)
    assert tokens["access_entries"] < min(packed["access_entries"], pairs["access_entries"])
    assert pairs["moved_bytes"] < packed["moved_bytes"]
    assert pairs["space_overhead"] > packed["space_overhead"]


def test_bytes_that_cuts_read_are_whole_entries_of_keys_and_values() -> None:
    """A vector of keys and one of values per head and layer, as the tiny model has them."""
    wanted = scenario("sequence-order")
    read_bytes, model = figures("sequence-order")["cut_read_bytes"], wanted.model
    entry_bytes = 2 * model.head_dim * model.kv_value_bytes
    assert read_bytes >= entry_bytes and read_bytes % entry_bytes == 0


def test_page_buffers_write_less() -> None:
    pages = {"page": "1 KiB"}
    without, with_buffers = (figures("dual-head", **pages, page_buffers=buffers, hot_steps=64) for buffers in (0, 2))
    assert with_buffers["write_amplification"] < without["write_amplification"]


def test_more_keys_than_memory_has_room_for_are_refused() -> None:
    large = scenario("cluster-pools")
    workload = large.workload.model_copy(update={"context": 200_000, "batch": 64})
    budget = large.budget.model_copy(update={"kv_bytes": 4e9})
    large = large.model_copy(update={"workload": workload, "budget": budget})
    with pytest.raises(InputError, match=r"workload\.context: .* make [0-9,]+ numbers; at most 536,870,912 will do"):
        run_scenario(large)

"""Values of an axis that sets a whole part of a scenario are told apart, whatever columns they set."""

from pathlib import Path

import pandas as pd
import pytest

from kvferry.analysis.axis_values import columns_under, written_values
from kvferry.analysis.settings import column_of, key_of
from kvferry.analysis.study_plots import draw_plots
from kvferry.analysis.study_spec import PlotSpec

LINKS = pd.DataFrame(
    {
        "seed": 1,
        "outcome": "done",
        "link.rate_bytes_per_s": [125e6, 125e6, None, None],
        "link.trace": [None, None, "wifi-campus", "wifi-campus"],
        "link.rtt_s": 0.004,
        "workload.context": [1024, 2048, 1024, 2048],
        "link_bytes": [15.8e6, 31.0e6, 15.9e6, 31.1e6],
        "ttft_s": [0.2, 0.3, 0.4, 0.6],
    }
)


def test_a_key_of_a_scenario_means_no_metric() -> None:
    assert column_of("link", LINKS.columns) is None
    assert column_of("link.rtt", LINKS.columns) == "link.rtt_s"
    assert column_of("link_bytes", LINKS.columns) == "link_bytes"


@pytest.mark.parametrize(
    ("column", "key"),
    [("link.rtt_s", "link.rtt"), ("link.rate_bytes_per_s", "link.rate"), ("device.name", "device"), ("seed", "seed")],
)
def test_a_column_is_about_a_key(column: str, key: str) -> None:
    assert key_of(column) == key


def test_a_value_is_all_settings_under_its_key() -> None:
    assert columns_under("link", LINKS.columns) == ["link.rate_bytes_per_s", "link.trace", "link.rtt_s"]
    assert columns_under("link.rtt", LINKS.columns) == ["link.rtt_s"]
    assert columns_under("device", ["device.name", "device.memory.capacity_bytes", "devices"]) == [
        "device.name",
        "device.memory.capacity_bytes",
    ]


def test_values_are_written_with_what_tells_them_apart() -> None:
    found = written_values(LINKS, "link")
    assert found == ["link.rate 1.00 Gbit/s"] * 2 + ["link.trace wifi-campus"] * 2


def test_a_value_that_sets_nothing_says_so() -> None:
    table = pd.DataFrame({"policies.schedule.name": [None, "greedy-literal"]})
    assert written_values(table, "policies.schedule") == [
        "policies.schedule not set",
        "policies.schedule greedy-literal",
    ]


def test_values_of_one_name_are_told_apart_by_more() -> None:
    table = pd.DataFrame({"device.name": ["mine", "mine", "other"], "device.compute.flops": [1.2e14, 3e13, 3e13]})
    first, second, third = written_values(table, "device")
    assert first == "device mine, device.compute.flops 120,000,000,000,000"
    assert len({first, second, third}) == 3


def behind(tmp_path: Path, frame: pd.DataFrame, axes: list[str], **plot: object) -> str:
    drawn = draw_plots(frame, [PlotSpec.model_validate({"name": "it", **plot})], tmp_path, axes)
    assert not drawn.not_drawn
    return drawn.behind["it"]


def test_no_mark_mixes_links_of_different_keys(tmp_path: Path) -> None:
    """Two links, drawn over the context: each mark is one point. Pooled, it is two."""
    axes = ["link", "workload.context"]
    line = {"kind": "line", "x": "workload.context", "y": "ttft_s"}
    assert behind(tmp_path, LINKS, axes, **line).startswith("each mark: 1 point,")
    assert behind(tmp_path, LINKS, axes, **line, pool=["link"]).startswith("each mark: 2 points,")


def test_no_mark_mixes_devices_of_one_name(tmp_path: Path) -> None:
    frame = LINKS.assign(**{"device.name": "mine", "device.compute.flops": [1e14, 1e14, 3e13, 3e13]})
    found = behind(
        tmp_path, frame, ["device", "workload.context"], kind="bar", x="device", y="ttft_s", by="workload.context"
    )
    assert found.startswith("each bar: 1 point,")


def test_no_mark_mixes_whole_workloads(tmp_path: Path) -> None:
    frame = LINKS.drop(columns=["link.rate_bytes_per_s", "link.trace"])
    assert behind(
        tmp_path,
        frame.assign(**{"link.rtt_s": [0.001, 0.001, 0.05, 0.05]}),
        ["workload", "link.rtt"],
        kind="line",
        x="link.rtt",
        y="ttft_s",
    ).startswith("each mark: 1 point,")

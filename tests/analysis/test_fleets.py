"""Figures of many devices with a cloud: sums and peaks over all of them, and whose energy it is."""

from collections.abc import Iterator
from io import StringIO

import pytest
from assisted import BY_HAND, ran
from by_hand import by_hand
from tiny import changed, tiny

from kvferry.analysis.metrics import metrics_for
from kvferry.analysis.remarks import remarks_on
from kvferry.analysis.tables import compare_table, run_table, show
from kvferry.pipelines.record import Run
from kvferry.scenarios.loader import load_scenario

# Ten requests of forty devices: the first device has none.
FLEET = {"devices": 40, "requests": 10, "arrivals": {"rate": "60 requests/hour"}}


@pytest.fixture(autouse=True, scope="module")
def _costs() -> Iterator[None]:
    with by_hand():
        yield


@pytest.fixture(scope="module")
def fleet(_costs: None) -> Run:
    run = ran(workload=FLEET, seed=3)
    assert run.tally.bytes_of("uplink") == 0, "the first device has a request: take another seed"
    return run


def test_bytes_are_sums_over_all_devices_and_memory_that_of_the_fullest(fleet: Run) -> None:
    scenario = tiny(changed(BY_HAND, workload=FLEET))
    found = metrics_for(scenario, fleet)
    # 4 kB up; a first response and four tokens of 100 B down.
    assert found["uplink_bytes"] == 10 * 4000
    assert found["link_bytes"] == pytest.approx(10 * (found["first_response_bytes"] + 4 * 100))
    # What one device holds that has a request.
    one = metrics_for(tiny(BY_HAND), ran())
    assert found["kv_memory_peak_bytes"] == one["kv_memory_peak_bytes"] > 0
    assert found["memory_peak_bytes"] == one["memory_peak_bytes"]


def test_shares_of_time_are_means_over_all_devices(fleet: Run) -> None:
    scenario = tiny(changed(BY_HAND, workload=FLEET))
    columns = fleet.assisted.columns  # type: ignore[union-attr]
    took_s = columns["last_s"].max() - columns["arrival_s"].min()
    # Prefill of 250 tokens, and nine tokens decoded.
    busy_s = 10 * (0.250 + 9 * 0.020)
    assert metrics_for(scenario, fleet)["compute_utilisation"] == pytest.approx(busy_s / (40 * took_s))


def test_the_busy_share_of_the_clouds_machines(fleet: Run) -> None:
    found = metrics_for(tiny(changed(BY_HAND, workload=FLEET)), fleet)
    # Of each request 0.1 s of prefill; and forty tokens in steps of 10 ms, some of which two requests share.
    busy_s = 10 * 0.1 + 40 / found["cloud_batch"] * 0.010
    assert found["cloud_utilisation"] == pytest.approx(busy_s / fleet.duration_s)
    assert {"prefill_utilisation", "decode_utilisation"}.isdisjoint(found)
    assert "cloud_utilisation" not in metrics_for(tiny(BY_HAND), ran(system="device-only"))


def test_one_device_has_the_figures_that_it_had() -> None:
    scenario = load_scenario("pd_device/assist", ["workload.output=8"])
    assert metrics_for(scenario, ran())["uplink_bytes"] == 4000


def test_energy_says_whose_it_is(fleet: Run) -> None:
    scenario = load_scenario("pd_device/assist", ["workload.output=8"])
    found = metrics_for(scenario, fleet)
    of_cloud_j = sum(fleet.machines["cloud"].energy_j.values()) / 10
    assert found["cloud_energy_j"] == pytest.approx(of_cloud_j)
    assert found["total_energy_j"] == pytest.approx(found["energy_j"] + of_cloud_j)
    out = StringIO()
    show(run_table(found), out)
    for label in ("devices' energy/request", "cloud's energy/request", "both together"):
        assert label in out.getvalue()
    # Without a cloud, the devices' is all.
    alone = metrics_for(scenario, ran(system="device-only"))
    assert alone["total_energy_j"] == alone["energy_j"]
    assert "cloud_energy_j" not in alone


def test_energy_of_a_cloud_without_power_is_not_summed_up() -> None:
    scenario = load_scenario("pd_device/assist", ["workload.output=8", "machines.cloud.device.base_w=0 W"])
    run = ran()
    assert {"cloud_energy_j", "total_energy_j"}.isdisjoint(metrics_for(scenario, run))
    lines = remarks_on({"pd-device": (scenario, run)})
    assert any(
        line.startswith("the cloud's energy is not counted: ascend-cloud has no power for base") for line in lines
    )


def test_a_comparison_shows_the_longest_gap_and_the_promised_pace() -> None:
    systems = {
        name: metrics_for(tiny(BY_HAND), ran("policies.assist={name: optimised}", system=name))
        for name in ("pd-device", "refinement-only", "device-only")
    }
    out = StringIO()
    show(compare_table(systems), out)
    heading = next(line for line in out.getvalue().splitlines() if "TTFT, mean" in line)
    for label in ("largest gap", "promised TPOT", "both together", "devices' energy/request"):
        assert label in heading

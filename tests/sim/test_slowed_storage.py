"""Storage whose every part takes a factor as long, and that is never faster than its peaks."""

from tiny import DECODING, changed

from kvferry.scenarios.loader import load_scenario, load_storage
from kvferry.sim.slowed import with_slowed_storage
from kvferry.specs.scenario import Scenario
from kvferry.specs.storage import StorageSpec


def on(storage: StorageSpec) -> Scenario:
    scenario = load_scenario(changed(DECODING))
    return scenario.model_copy(update={"device": scenario.device.model_copy(update={"storage": storage})})


def slowed(storage: StorageSpec, factor: float) -> StorageSpec:
    found = with_slowed_storage(on(storage), factor).device.storage
    assert found is not None
    return found


def test_every_time_of_a_flash_device_is_as_many_times_as_long() -> None:
    own = load_storage("nvme")
    slow, fast = slowed(own, 2.0), slowed(own, 0.5)
    assert own.queue is not None and slow.queue is not None and fast.queue is not None
    for key in ("host_s", "command_s", "write_command_s", "partial_s", "page_read_s", "page_program_s", "buffer_s"):
        assert getattr(slow.queue, key) == 2 * getattr(own.queue, key) == 4 * getattr(fast.queue, key), key
    assert slow.queue.host_bytes_per_s == own.queue.host_bytes_per_s / 2
    assert [rate * 2 for row in slow.write for rate in row.bytes_per_s] == [
        rate for row in own.write for rate in row.bytes_per_s
    ]
    for key in ("bus_bytes_per_s", "channel_bytes_per_s"):
        peak = getattr(own.queue, key)
        assert (getattr(slow.queue, key), getattr(fast.queue, key)) == (peak / 2, peak), key
    mapped = load_storage("emmc")
    assert mapped.map is not None and slowed(mapped, 2.0).map == mapped.map.model_copy(
        update={"miss_s": 2 * mapped.map.miss_s}
    )
    assert slowed(own, 1.0) == own


def test_a_plain_rate_is_a_peak() -> None:
    own = StorageSpec(name="plain", bytes_per_s=1e9, latency_s=1e-3)
    assert (slowed(own, 2.0).bytes_per_s, slowed(own, 2.0).latency_s) == (5e8, 2e-3)
    assert (slowed(own, 0.5).bytes_per_s, slowed(own, 0.5).latency_s) == (1e9, 5e-4)

"""Storage profiles: found by name, sourced, and what they say in the words of those who measured."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import simpy
import yaml

from kvferry.machine.ops import Extents
from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_device, load_scenario, load_storage
from kvferry.sim.flash_curve import random_rate
from kvferry.sim.storage import map_miss_s
from kvferry.sim.storage_curve import StorageCurves
from kvferry.sim.storage_queue import QueueStorage
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.specs.storage import StorageSpec

ROOT = Path(__file__).resolve().parents[2]
DEEP = 256


def numbers(tree: object, path: str = "") -> Iterator[str]:
    """The paths of all leaves that hold a number, a unit or not."""
    if isinstance(tree, dict | list):
        for key, below in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from numbers(below, f"{path}.{key}" if path else str(key))
    elif re.match(r"\d", str(tree)):
        yield path


@pytest.mark.parametrize("name", names("storage"))
def test_every_number_of_a_storage_device_has_a_source(name: str) -> None:
    assert load_storage(name).name == name
    tree = yaml.safe_load((ROOT / f"scenarios/storage/{name}.yaml").read_text())
    sources = tree.pop("sources")
    leaves = list(numbers(tree))
    assert len(leaves) > (0 if "extends" in tree else 10)
    assert [leaf for leaf in leaves if not any(f"{leaf}.".startswith(f"{key}.") for key in sources)] == []
    # "half" and "true" are no numbers, and have sources too.
    known = [*leaves, *tree, *(f"queue.{key}" for key in tree["queue"])]
    assert [key for key in sources if not any(f"{leaf}.".startswith(f"{key}.") for leaf in known)] == []


@pytest.mark.parametrize(("name", "peak"), [("nvme", 1.8e9), ("emmc", 250e6)])
def test_small_reads_waste_the_disks_of_kvswap(name: str, peak: float) -> None:
    curves = StorageCurves(load_storage(name))

    def rate(block_bytes: int) -> float:
        return DEEP * block_bytes / curves.batch_s(np.full(DEEP, block_bytes))

    # KVSwap 2.3: up to 1.8 GB/s and about 250 MB/s; below 6 % of it at 512 B.
    assert rate(4 << 20) == pytest.approx(peak, rel=0.01)
    assert rate(512) < 0.06 * peak
    rates = [rate(512 << doubling) for doubling in range(12)]
    assert (np.diff(rates) > -1).all()


# One command at a time, random reads: (bytes, bytes/s), as the profiles' sources have them.
MEASURED_ALONE = {
    "nvme": ((4096, 49.8e6), (16384, 149e6), (524288, 1283e6), (1 << 20, 1459e6), (1 << 24, 1729e6)),
    "emmc": ((4096, 28.4e6), (16384, 86e6)),
}
# What one queue model cannot be, and docs/storage.md says: (profile, depth, size) of writes.
NOT_MET = {("nvme", 1, 1 << 20), ("emmc", 32, 4096), ("emmc", 32, 65536)}


@pytest.mark.parametrize("name", ["nvme", "emmc"])
def test_the_queue_model_reaches_what_was_measured(name: str) -> None:
    storage = load_storage(name)
    assert storage.queue is not None
    points = [(False, 1, block, measured) for block, measured in MEASURED_ALONE[name]]
    for row in storage.write:
        points += [(True, row.depth, *point) for point in zip(row.block_bytes, row.bytes_per_s, strict=True)]
    for writes, depth, block, measured in points:
        if not (writes and (name, depth, block) in NOT_MET):
            rate = random_rate(storage.queue, int(block), depth, storage.duplex == "half", writes)
            assert rate == pytest.approx(measured, rel=0.06), (writes, depth, block)


@pytest.mark.parametrize("name", names("storage"))
def test_curve_and_queue_agree_on_reads_of_any_size_at_any_depth(name: str) -> None:
    storage = load_storage(name)
    assert storage.queue is not None
    curve = StorageCurves(storage).read
    # No more commands are under way than the profile lets in.
    for depth in sorted({min(depth, storage.queue_depth) for depth in (1, 4, 16, 32)}):
        # Where commands begin to wait for each other, chance decides how many dies are idle.
        bend = 0.2 if depth == 16 else 0.1
        for block in (512, 4096, 8192, 16384, 32768, 262144):
            rate = random_rate(storage.queue, block, depth, storage.duplex == "half")
            seconds = curve.command_s(np.array([block]), depth)[0]
            assert block / seconds == pytest.approx(rate, rel=bend), (depth, block)


@pytest.mark.parametrize("name", names("storage"))
def test_both_models_agree_on_long_batches(name: str) -> None:
    storage = load_storage(name).model_copy(update={"write": (), "map": None})
    rng = np.random.default_rng(3)
    for block, depth, n in ((4096, 1, 60), (4096, 32, 2500), (16384, 16, 1200), (65536, 32, 600), (1 << 20, 4, 40)):
        at_depth = storage.model_copy(update={"queue_depth": depth})
        # The curve is that of the whole device; only so many commands are let in.
        curve_s = StorageCurves(at_depth).batch_s(np.full(n, block))
        env = simpy.Environment()
        # Apart from each other, and on any die.
        offsets = np.arange(n) * (4 << 20) + rng.integers(0, 128, n) * 16384
        ticket = QueueStorage(env, at_depth, lambda span: None).read(Extents(offsets, np.full(n, block)))
        env.run()
        assert curve_s == pytest.approx(ticket.end_s, rel=0.2 if depth == 16 else 0.06), (block, depth)


def test_a_map_that_is_outgrown_halves_small_reads_of_ufs() -> None:
    storage = load_storage("ufs-4.0")
    assert storage.map is not None
    curves, lengths = StorageCurves(storage), np.full(1000, 4096)
    near_s = curves.batch_s(lengths, extra_s=map_miss_s(storage.map, 128e6))
    far_s = curves.batch_s(lengths, extra_s=map_miss_s(storage.map, 16e9))
    # PowerInfer-2's text: about 1.0 and 0.45 GB/s.
    assert lengths.sum() / near_s == pytest.approx(1.0e9, rel=0.06)
    assert lengths.sum() / far_s == pytest.approx(0.45e9, rel=0.05)


def without_sources(scenario: Scenario) -> StorageSpec:
    assert scenario.device.storage is not None
    return scenario.device.storage.model_copy(update={"sources": {}})


def test_a_device_names_its_storage_and_another_can_be_set(tmp_path: Path) -> None:
    assert load_device("jetson-agx-orin-sparkv").storage == load_storage("nvme")
    scenario = {
        "name": "x",
        "system": "local-prefill",
        "device": "jetson-agx-orin-sparkv",
        "model": "tiny",
        "link": {"rate": "1 MB/s"},
        "workload": {"kind": "context-reuse", "context": "1Ki tokens"},
    }
    emmc = load_scenario(scenario, ["device.storage=emmc"])
    assert emmc.device.storage == load_storage("emmc")
    shallow = load_scenario(scenario, ["device.storage=emmc", "device.storage.queue_depth=1"])
    assert shallow.device.storage is not None
    # What replaces a value is its source.
    assert shallow.device.storage.sources["queue_depth"].endswith("device.storage.queue_depth=1")
    assert without_sources(shallow) == without_sources(emmc).model_copy(update={"queue_depth": 1})
    own = load_scenario(scenario, ["device.storage={extends: nvme, queue_depth: 4}"])
    assert without_sources(own) == load_storage("nvme").model_copy(update={"queue_depth": 4, "sources": {}})
    simple = load_scenario(scenario, ["device.storage={bytes_per_s: 1 GB/s, latency_s: 80 us}"])
    assert simple.device.storage is not None
    assert simple.device.storage.latency_s == pytest.approx(80e-6)
    with pytest.raises(InputError, match=r"--set device.storage=nvm.*device\.storage: unknown storage 'nvm'.*'nvme'\?"):
        load_scenario(scenario, ["device.storage=nvm"])


def test_a_device_file_may_name_storage_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("{bytes_per_s: 1 GB/s}")
    (tmp_path / "device.yaml").write_text("extends: tiny\nstorage: mine.yaml")
    storage = load_device(str(tmp_path / "device.yaml")).storage
    assert storage is not None
    assert storage.bytes_per_s == 1e9
    (tmp_path / "device.yaml").write_text("extends: tiny\nstorage: other.yaml")
    with pytest.raises(InputError, match=r"device.yaml:2: storage: 'other.yaml' "):
        load_device(str(tmp_path / "device.yaml"))


@pytest.mark.parametrize(
    ("storage", "complaint"),
    [
        ("{model: queue, bytes_per_s: 1 GB/s}", r"storage\.queue: is missing"),
        ("{extends: nvme, queue: {page_bytes: 10 KiB}}", r"storage\.queue\.page_bytes: is no whole number of sectors"),
        ("{}", r"storage\.read: is missing: rows of measured bandwidth, or a single bytes_per_s"),
        ("{extends: nvme, bytes_per_s: 1 GB/s}", r"storage\.bytes_per_s: stands beside measured rows"),
        ("{extends: nvme, latency_s: 1 ms}", r"storage\.latency_s: goes with bytes_per_s"),
        ("{extends: nvme, model: tape}", r"storage\.model: 'tape' is none of curve, queue"),
        ("{read: [{depth: 1, block_bytes: [4 KiB], bytes_per_s: [1 GB/s, 2 GB/s]}]}", r"has 2 entries for 1 sizes"),
        ("{read: [{depth: 1, block_bytes: [8 KiB, 4 KiB], bytes_per_s: [1 GB/s, 2 GB/s]}]}", r"must ascend"),
        (
            "{read: [{depth: 4, block_bytes: [4 KiB], bytes_per_s: [1 GB/s]},"
            " {depth: 1, block_bytes: [4 KiB], bytes_per_s: [1 GB/s]}]}",
            r"storage\.read: needs one row for each depth, ascending; what came is \[4, 1\]",
        ),
    ],
)
def test_what_is_wrong_with_a_storage_is_reported(storage: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "device.yaml").write_text(f"extends: tiny\nstorage: {storage}")
    with pytest.raises(InputError, match=complaint):
        load_device(str(tmp_path / "device.yaml"))

"""Storage profiles: found by name, sourced, and what they say in the words of those who measured."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from kvferry.scenarios.library import names
from kvferry.scenarios.loader import load_device, load_scenario, load_storage
from kvferry.sim.storage_curve import StorageCurves
from kvferry.specs.errors import InputError

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
    assert len(leaves) > 10
    assert [leaf for leaf in leaves if not any(f"{leaf}.".startswith(f"{key}.") for key in sources)] == []
    # "half" is no number, and has a source too.
    told = [*leaves, *tree]
    assert [key for key in sources if not any(f"{leaf}.".startswith(f"{key}.") for leaf in told)] == []


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


def test_a_device_names_its_storage_and_another_can_be_set(tmp_path: Path) -> None:
    assert load_device("jetson-agx-orin-64gb").storage == load_storage("nvme")
    scenario = {
        "name": "x",
        "system": "local-prefill",
        "device": "jetson-agx-orin-64gb",
        "model": "tiny",
        "link": {"rate": "1 MB/s"},
        "workload": {"kind": "context-reuse", "context": "1Ki tokens"},
    }
    emmc = load_scenario(scenario, ["device.storage=emmc"])
    assert emmc.device.storage == load_storage("emmc")
    shallow = load_scenario(scenario, ["device.storage=emmc", "device.storage.queue_depth=1"])
    assert shallow.device.storage == load_storage("emmc").model_copy(update={"queue_depth": 1})
    own = load_scenario(scenario, ["device.storage={extends: nvme, queue_depth: 4}"])
    assert own.device.storage == load_storage("nvme").model_copy(update={"queue_depth": 4})
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
        ("{}", r"storage\.read: is missing: rows of measured bandwidth, or a single bytes_per_s"),
        ("{extends: nvme, bytes_per_s: 1 GB/s}", r"storage\.bytes_per_s: stands beside measured rows"),
        ("{extends: nvme, latency_s: 1 ms}", r"storage\.latency_s: goes with bytes_per_s"),
        ("{extends: nvme, model: tape}", r"storage\.model: 'tape' is none of curve"),
        ("{read: [{depth: 1, block_bytes: [4 KiB], bytes_per_s: [1 GB/s, 2 GB/s]}]}", r"has 2 entries for 1 sizes"),
        ("{read: [{depth: 1, block_bytes: [8 KiB, 4 KiB], bytes_per_s: [1 GB/s, 2 GB/s]}]}", r"must ascend"),
        (
            "{read: [{depth: 4, block_bytes: [4 KiB], bytes_per_s: [1 GB/s]},"
            " {depth: 1, block_bytes: [4 KiB], bytes_per_s: [1 GB/s]}]}",
            r"storage\.read: needs one row for each depth, ascending; what came is \[4, 1\]",
        ),
    ],
)
def test_what_is_wrong_with_a_storage_is_told(storage: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "device.yaml").write_text(f"extends: tiny\nstorage: {storage}")
    with pytest.raises(InputError, match=complaint):
        load_device(str(tmp_path / "device.yaml"))

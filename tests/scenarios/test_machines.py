"""Further machines of a scenario: names, files, groups, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from tiny import DECODING, LOADING, changed

from kvferry.pipelines.checks import check_names, names_in_use
from kvferry.scenarios.loader import dump_scenario, load_scenario, scenario_hash
from kvferry.scenarios.schema import scenario_schema
from kvferry.specs.errors import InputError
from kvferry.specs.machine import DEVICE, MOST_MACHINES

CLOUD = {"device": "laptop-cpu", "model": "tiny"}
PHONES = {"device": "tiny", "model": "tiny", "link": {"rate": "5 Mbit/s", "rtt": "20 ms"}, "count": 3}


def machines(**of: Any) -> dict[str, Any]:
    return changed(LOADING, machines=of)


def refusal(described: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_scenario(described, overrides)
    return str(caught.value)


def test_machines_are_read_as_the_device_is() -> None:
    scenario = load_scenario(machines(cloud=CLOUD, phone=PHONES))
    assert scenario.machine_names == (DEVICE, "cloud", "phone.0", "phone.1", "phone.2")
    assert scenario.seen_by("cloud").device == load_scenario(changed(LOADING, device="laptop-cpu")).device
    assert scenario.link_of("cloud") is None
    link = scenario.link_of("phone.2")
    assert link is not None
    assert (link.rate_bytes_per_s, link.rtt_s) == (625e3, 0.02)
    assert scenario.seen_by(DEVICE) is scenario
    assert load_scenario(dump_scenario(scenario)) == scenario


def test_a_machine_sees_the_scenario_as_its_own() -> None:
    own = {**PHONES, "live": {"weights": "random"}}
    described = changed(
        machines(phone=own), budget={"memory": "0.5 GB"}, load={"share": 0.3}, live={"family": "llama", "threads": 2}
    )
    scenario = load_scenario(described)
    seen = scenario.seen_by("phone.1")
    assert (seen.link, seen.load, seen.budget.memory_bytes) == (scenario.link_of("phone.1"), None, None)
    assert (seen.live.weights, seen.live.threads, seen.live.family) == ("random", 2, "qwen3")
    # Keys of the workload's own live settings stay.
    assert seen.context_reuse.live.attention == "dense"
    assert load_scenario(machines(cloud=CLOUD)).seen_by("cloud").live == load_scenario(LOADING).live


def test_overrides_reach_machines() -> None:
    scenario = load_scenario(machines(cloud=CLOUD, phone=PHONES), ["machines.cloud.device=tiny", "machines.phone=null"])
    assert (list(scenario.machines), scenario.seen_by("cloud").device.name) == (["cloud"], "tiny")
    added = load_scenario(LOADING, ["machines.cloud={device: tiny, model: tiny}"])
    assert added.machine_names == (DEVICE, "cloud")
    assert scenario_hash(added) != scenario_hash(load_scenario(LOADING))


def test_an_override_of_a_machine_is_its_values_source() -> None:
    override = "machines.cloud.device.memory.bytes_per_s=1 GB/s"
    scenario = load_scenario(machines(cloud=CLOUD), [override])
    assert scenario.machines["cloud"].device.sources["memory.bytes_per_s"] == f"--set {override}"
    assert "memory.bytes_per_s" not in scenario.device.sources


def test_paths_of_machines_start_at_their_file(tmp_path: Path) -> None:
    (tmp_path / "there.yaml").write_text("extends: tiny\nname: there\nstorage: nvme\n")
    (tmp_path / "rates.csv").write_text("time_s,bytes_per_s\n0,1e6\n1,2e6\n")
    (tmp_path / "s.yaml").write_text(
        "name: s\nsystem: ferry\ndevice: tiny\nmodel: tiny\nlink: {rate: 8 Mbit/s, up: {trace: rates.csv}}\n"
        "workload: {kind: context-reuse, context: 4096}\n"
        "machines:\n  cloud:\n    device: there.yaml\n    model: tiny\n    link: {trace: rates.csv}\n"
    )
    scenario = load_scenario(tmp_path / "s.yaml")
    cloud = scenario.seen_by("cloud")
    assert cloud.device.storage is not None
    assert cloud.link.trace == str(tmp_path / "rates.csv") == (scenario.link.up and scenario.link.up.trace)
    before = scenario_hash(scenario)
    (tmp_path / "rates.csv").write_text("time_s,bytes_per_s\n0,1e6\n1,3e6\n")
    assert scenario_hash(load_scenario(tmp_path / "s.yaml")) != before
    (tmp_path / "s.yaml").write_text((tmp_path / "s.yaml").read_text().replace("there.yaml", "gone.yaml"))
    with pytest.raises(InputError, match="s.yaml:9: machines.cloud.device: 'gone.yaml' is not there"):
        load_scenario(tmp_path / "s.yaml")


@pytest.mark.parametrize(
    ("name", "machine", "message"),
    [
        (DEVICE, CLOUD, "device: device is the machine that the scenario's own device, model and link describe"),
        ("a.b", CLOUD, "a.b: 'a.b' names no machine: at most 24 letters, digits, _ and -, a letter or digit first"),
        ("c" * 25, CLOUD, f"{'c' * 25}: '{'c' * 25}' names no machine"),
        ("a", {**CLOUD, "count": 0}, "a.count: 0: must be at least 1"),
        ("a", {**CLOUD, "rtt": "4 ms"}, "a.rtt: unknown key; known here: count, device, link, live, model"),
        ("a", {**CLOUD, "device": "tinny"}, "a.device: unknown device 'tinny'"),
        ("a", {**CLOUD, "link": {}}, "a.link: needs a trace"),
        ("a", {**CLOUD, "live": {"attention": "dense"}}, "a.live.attention: unknown key"),
        # All machines of a real run share the process's threads.
        ("a", {**CLOUD, "live": {"threads": 2}}, "a.live.threads: unknown key"),
        ("a", {**CLOUD, "device": {"extends": "tiny", "main": "npu"}}, "a.device.main: 'npu' is no processor"),
        ("a", 3, "a: 3 is not a mapping"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(name: str, machine: Any, message: str) -> None:
    assert f"machines.{message}" in refusal(machines(**{name: machine}))


def test_so_many_machines_and_no_more() -> None:
    most = {**CLOUD, "count": MOST_MACHINES}
    assert len(load_scenario(machines(a=most)).machine_names) == MOST_MACHINES + 1
    assert "machines: are 10,001 with all groups; at most 10,000 will do" in refusal(machines(a=most, b=CLOUD))
    assert refusal(changed(LOADING, machines=[CLOUD])) == "(mapping): machines: a list is not a mapping (key: value)"


def test_a_machine_that_is_not_there() -> None:
    scenario = load_scenario(machines(cloud=CLOUD, phone=PHONES))
    for name in ("phone.3", "phone", "cloud.0", "phone.03", "nobody"):
        with pytest.raises(InputError, match="known: cloud, device, phone.0 to phone.2"):
            scenario.seen_by(name)


@pytest.mark.parametrize("described", [LOADING, DECODING])
def test_a_workload_of_one_device_refuses_more(described: dict[str, Any]) -> None:
    scenario = load_scenario(changed(described, machines={"cloud": CLOUD}))
    kind = described["workload"]["kind"]
    with pytest.raises(InputError, match=f"^machines.cloud: {kind} runs on the device alone; leave it out$"):
        check_names(scenario)
    placed = refusal_of_file(changed(described, machines={"cloud": CLOUD}))
    assert "machines.cloud: " in placed


def refusal_of_file(described: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        load_scenario(described, check=names_in_use)
    return str(caught.value)


def test_traces_of_machines_must_exist() -> None:
    away = {"trace": "no-such-trace"}
    described = machines(cloud={**CLOUD, "link": {"rate": "1 MB/s", "up": away}}, phone={**PHONES, "link": away})
    message = refusal_of_file(changed(described, link={"up": away}))
    for key in ("link.up.trace", "machines.cloud.link.up.trace", "machines.phone.link.trace"):
        assert f"{key}: " in message


def test_the_schema_lets_machines_be_named() -> None:
    machine = scenario_schema()["$defs"]["MachineSpec"]
    assert "tiny" in machine["properties"]["device"]["anyOf"][0]["examples"]
    assert machine["required"] == ["device", "model"]

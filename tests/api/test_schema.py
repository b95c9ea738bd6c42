"""The JSON schemas agree with the program: what it reads is valid, and what it refuses is not, as far as a schema can
tell."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_scenarios import BOARD, GOOD, ONE_FAULT
from tiny import ASSISTED, DECODING, LIVE, LOADING, changed

from kvferry.api.schema import KINDS, schema
from kvferry.pipelines.checks import names_in_use
from kvferry.scenarios.library import BUNDLED, names
from kvferry.scenarios.loader import dump_scenario, load_scenario
from kvferry.specs.document import parse_document, read_document
from kvferry.specs.errors import InputError
from kvferry.specs.units import KINDS as QUANTITIES
from kvferry.specs.units import _pattern, quantity

jsonschema = pytest.importorskip("jsonschema")
FOLDERS = {
    "engine": "engines",
    "runtime": "runtimes",
    "device": "devices",
    "storage": "storage",
    "model": "models",
    "study": "studies",
    "search": "searches",
    "use": "uses",
}
# What a schema cannot tell: names and files that are not there, numbers of another size than the text looks, sums and
# other rules over several keys, and what YAML itself refuses.
BEYOND = (
    "is not there", "is a folder", "is a pipe", "1000000000: must be", "make 7,812,800,000 chunks",
    "units (token chunks", "tokens for each of 3", "through 4 layers", "is no processor of the device", "overlap or",
    "not valid YAML", "stands twice", "is not read", "contains itself", "merge keys", "is a word", "lone surrogate",
    "nested more than", "a text of 10,001", "is no key", ".nan is not a finite", ".inf is not a finite",
)  # fmt: skip


@pytest.fixture(scope="module")
def validators() -> dict[str, Any]:
    found = {kind: schema(kind) for kind in KINDS}
    checked: dict[str, Any] = {}
    for one in found.values():
        # Most of what they define is the same in all of them, and a check takes a second.
        new = {name: record for name, record in one["$defs"].items() if checked.get(name) != record}
        jsonschema.Draft202012Validator.check_schema(one | {"$defs": new})
        checked |= new
    return {kind: jsonschema.Draft202012Validator(one) for kind, one in found.items()}


def faults(validator: Any, content: Any) -> list[str]:
    return [f"{list(error.absolute_path)}: {error.message:.200}" for error in validator.iter_errors(content)]


def bundled(kind: str) -> Iterator[Path]:
    if kind == "scenario":
        return (BUNDLED / f"{name}.yaml" for name in names("scenario"))
    return (BUNDLED / FOLDERS[kind]).glob("*.yaml")


@pytest.mark.parametrize("kind", KINDS)
def test_every_bundled_file_is_valid(kind: str, validators: dict[str, Any]) -> None:
    files = list(bundled(kind))
    assert files
    for file in files:
        assert not faults(validators[kind], read_document(file).plain()), file


@pytest.mark.parametrize("name", names("scenario"))
def test_every_resolved_scenario_is_valid(name: str, validators: dict[str, Any]) -> None:
    assert not faults(validators["scenario"], dump_scenario(load_scenario(name)))


@pytest.mark.parametrize("described", [LOADING, DECODING, ASSISTED, *LIVE.values()])
def test_scenarios_of_the_tests_are_valid(described: dict[str, Any], validators: dict[str, Any]) -> None:
    assert not faults(validators["scenario"], described)


@pytest.mark.parametrize(("good", "bad", "message"), ONE_FAULT)
def test_what_is_refused_is_not_valid_as_far_as_a_schema_can_tell(
    good: str, bad: str, message: str | None, validators: dict[str, Any]
) -> None:
    assert not faults(validators["scenario"], yaml.safe_load(GOOD))
    if message is None or any(words in message for words in BEYOND):
        return
    content = parse_document(GOOD.replace(good, bad, 1), "s.yaml", Path.cwd()).plain()
    assert faults(validators["scenario"], content), message


@pytest.mark.parametrize("described", [LOADING, DECODING])
def test_a_link_is_needed_where_something_is_fetched(described: dict[str, Any], validators: dict[str, Any]) -> None:
    without = {key: value for key, value in described.items() if key != "link"}
    assert [fault for fault in faults(validators["scenario"], without) if "'link' is a required" in fault] == (
        [] if described is DECODING else ["[]: 'link' is a required property"]
    )
    assert not faults(validators["scenario"], {"extends": "quickstart", "name": "mine"})


def test_most_of_the_faults_can_be_told() -> None:
    told = [message for _, _, message in ONE_FAULT if message and not any(words in message for words in BEYOND)]
    assert len(told) > len(ONE_FAULT) / 2


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({"system": "fery"}, False),
        ({"system": "kvswap"}, False),
        ({"link": {"rate": "50 MBit/s", "trace": None}}, False),
        ({"link": {"rate": "50 mbps", "trace": None}}, False),
        ({"link": {"rate": "50 Mbit/s"}}, False),
        ({"link": {"rate": "50 Mbit/s", "trace": None}}, True),
        ({"budget": {"kv": "1 GiB"}}, False),
        ({"device": {"extends": "tiny", "memory": {"capacity_bytes": "2 GB"}}}, True),
        ({"device": {"memory": {"capacity_bytes": "2 GB"}}}, False),
        ({"policies": {"codec": None, "schedule": {"name": "greedy", "reading": "literal"}}, "system": "sparkv"}, True),
        ({"policies": {"schedule": {"name": "greedy", "raeding": "literal"}}, "system": "sparkv"}, False),
        ({"policies": {"schedule": "greedy"}, "system": "ferry"}, False),
        ({"policies": {"codec": "hufman"}}, False),
        ({"policies": {"objective": "1 s"}, "system": "cachegen"}, True),
        ({"policies": {"objective": 1}, "system": "cachegen"}, False),
        ({"device": "rtx-5080-laptp"}, False),
        ({"device": {"extends": "tinny"}}, False),
        ({"device": {"extends": "tiny", "storage": "emc"}}, False),
        ({"device": {"extends": "tiny", "storage": "./emc"}}, True),
        ({"model": "tinny"}, False),
        ({"costs": "rooflin"}, False),
        ({"costs": {"truth": "table"}}, True),
        ({"link": {"trace": "wifi-campu"}}, False),
        ({"load": {"trace": "wifi-campus"}}, False),
        ({"load": {"trace": "load-bursty"}}, True),
        ({"extends": "quickstrt"}, False),
        ({"policies": {"schedul": "greedy"}}, False),
        ({"policies": {"schedule": "gready"}}, False),
        ({"policies": {"group_tokens": 4}}, False),
        ({"system_policies": {"fery": {"adapt": False}}}, False),
        ({"system_policies": {"sparkv": {"adopt": False}}}, False),
        ({"system_policies": {"ferry": None, "sparkv": {"adapt": False}}}, True),
        ({"extends": "quickstart", "machines": {"cloud": None}}, True),
        ({"load": {"share": 0.3, "trace": "x.csv"}}, False),
        ({"precision": {"weight_bits": 4}}, True),
        ({"precision": {"weights": "Q4_K_m"}}, True),
        ({"precision": {"weights": "q4_k_x"}}, False),
        ({"workload": {"kind": "decode", "context": 100, "batch": -1}}, False),
        ({"workload": {"kind": "decode", "context": 100, "batch": "max"}, "system": "vllm"}, True),
    ],
)
def test_single_changes(change: dict[str, Any], valid: bool, validators: dict[str, Any]) -> None:
    described = changed(LOADING, link={"trace": "wifi-campus", "rate": None})
    assert not faults(validators["scenario"], described)
    assert bool(faults(validators["scenario"], changed(described, **change))) is not valid


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({"policies": {"selector": {"name": "low-rank-keys", "compression": 4}}}, True),
        ({"policies": {"selector": {"name": "low-rank-keys", "foo": 1}}}, False),
        ({"policies": {"selector": {"name": "window", "compression": 4}}}, False),
        ({"policies": {"selector": {"compression": 4}}}, True),
        ({"policies": {"selector": {"compresion": 4}}}, False),
        ({"policies": {"compression": "four"}}, False),
        ({"policies": {"cache_share": 0.1}}, False),
        ({"policies": {"cache_share": 0.1, "residency": "virtual-cache"}}, True),
        ({"policies": {"cache_share": 0.1}, "system": "dynakv"}, True),
        ({"policies": {"residency": "reuse"}, "system": "vllm"}, False),
        ({"policies": {"residency": "reuse", "placement": "storage", "selector": "landmarks"}, "system": "vllm"}, True),
        ({"runtime": "kvswap-prototipe"}, False),
        ({"runtime": "kvswap-prototype"}, True),
        ({"engine": "lama.cpp"}, False),
        ({"system_policies": {"quest": {"selector": {"foo": 1}}}}, False),
        ({"system_policies": {"quest": {"selector": {"per_head": False}}}}, True),
    ],
)
def test_policies_of_decode_systems(change: dict[str, Any], valid: bool, validators: dict[str, Any]) -> None:
    assert bool(faults(validators["scenario"], changed(DECODING, **change))) is not valid
    assert refuses(changed(DECODING, **change)) is not valid


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({"assist": {"tokens": 4}}, True),
        ({"assist": {"tokens": 0}}, False),
        ({"assist": {"tokns": 4}}, False),
        ({"assist": "optimized"}, False),
        ({"serving": {"slots": 3, "tpot": "30 ms"}}, True),
        ({"serving": {"tpot": 30}}, False),
        ({"assist": {"ratio": 0.5}, "system": "tokens-only"}, False),
        ({"assist": {"draft": 3}}, False),
        ({"assist": {"patience": "1 s"}, "system": "cloud-only"}, True),
        ({"serving": {"slots": 3}, "system": "device-only"}, False),
    ],
)
def test_policies_of_assist_systems(change: dict[str, Any], valid: bool, validators: dict[str, Any]) -> None:
    system = change.get("system", "pd-device")
    described = {**ASSISTED, "system": system, "policies": {k: v for k, v in change.items() if k != "system"}}
    assert bool(faults(validators["scenario"], described)) is not valid
    assert refuses(described) is not valid


def refuses(described: dict[str, Any]) -> bool:
    """Whether the program does."""
    try:
        return bool(list(names_in_use(load_scenario(described))))
    except InputError:
        return True


def test_a_file_that_extends_says_as_little_as_it_likes(validators: dict[str, Any]) -> None:
    policies = {"policies": {"group_tokens": 4, "selector": None, "reuse": True, "codec": "kivi"}}
    for good in ({}, {"workload": {"output": 3}}, {"seed": None}, policies):
        assert not faults(validators["scenario"], {"extends": "a.yaml", **good})
    assert faults(validators["scenario"], {"extends": "a.yaml", "policies": {"group_tokns": 4}})
    for bad in ({"extends": "a.yaml", "wrkload": {}}, {"extends": "a.yaml", "workload": {"outptu": 3}}, {"name": "a"}):
        assert faults(validators["scenario"], bad)


def test_a_file_that_extends_a_bundled_one_names_a_system_of_its_kind(validators: dict[str, Any]) -> None:
    valid = validators["scenario"].is_valid
    assert valid({"extends": "pd_device/assist", "system": "cloud-only"})
    assert not valid({"extends": "pd_device/assist", "system": "kvswap"})
    assert not valid({"extends": "pd_device/assist", "workload": {"prompt": "2Ki"}, "system": "kvswap"})
    assert valid({"extends": "kvswap/throughput", "system": "kvswap"})
    # What a file of one's own is of is not known.
    assert valid({"extends": "./mine.yaml", "system": "kvswap"})


def test_studies_and_searches(validators: dict[str, Any]) -> None:
    base = {"base": "quickstart"}
    good = {**base, "axes": {"seed": {"from": 1, "to": 5, "points": 5}, "system": ["ferry"]}, "seeds": 3}
    assert not faults(validators["study"], good)
    for axes in (
        {"sytem": ["ferry"]},
        {"system": ["fery"]},
        {"link.rtt": [4]},
        {"link.rt": ["4 ms"]},
        {"workload.context": ["4 ms"]},
        {"policies.selector.foo": [1]},
        {"policies.selector": [{"name": "window", "foo": 1}]},
        {"device": ["tinny"]},
        {"machines.cloud.device": ["tinny"]},
        {"system_policies.fery.adapt": [True]},
        {"device.storage": ["emc"]},
    ):
        assert faults(validators["study"], {**base, "axes": axes}), axes
    for bad in ({"zip": [{"sytem": ["ferry"]}]}, {"samples": [{"points": 2, "keys": {"sytem": ["ferry"]}}]}):
        assert faults(validators["study"], {**base, **bad})
    for axes in (
        {"system": ["ferry", "sparkv"], "link.rate": ["4 Mbit/s", None], "link": [{"rate": "4 Mbit/s"}]},
        {"policies.selector": ["window", {"name": "window", "window_tokens": 4}, {"compression": 4}, None]},
        {"machines.cloud.count": [1, 2], "device": ["tiny", "./mine.yaml", {"extends": "tiny", "main": "cpu"}]},
        {"device.processors.gpu.flop_per_s": ["3 Tflop/s"], "link.outages.0.start": ["3 s"]},
        {"system_policies.sparkv.adapt": [True, False]},
    ):
        assert not faults(validators["study"], {**base, "axes": axes}), axes
    for plot, valid in (
        ("ttft_s", True),
        ("energy_gpu_j", True),
        ("link.rtt", True),
        ("ttft", False),
        ("linkk", False),
    ):
        drawn = {**base, "plots": [{"kind": "cdf", "x": plot}]}
        assert bool(faults(validators["study"], drawn)) is not valid, plot
    for bad in ({"axes": good["axes"]}, {**good, "axes": {"seed": 3}}, {**good, "seeds": 0}, {**good, "axis": {}}):
        assert faults(validators["study"], bad)
    good = {
        **base,
        "space": {"system": ["ferry"]},
        "objectives": ["ttft_s", {"metric": "energy_gpu_j", "better": "low"}],
    }
    assert not faults(validators["search"], good)
    for bad in (
        {**good, "objectives": ["ttft"]},
        {**good, "space": {}},
        {**good, "space": {"sytem": ["ferry"]}},
        {**good, "space": {"system": ["fery"]}},
        {**good, "base": 7},
        {**good, "sampler": "grid"},
    ):
        assert faults(validators["search"], bad)


def test_devices_and_models(validators: dict[str, Any]) -> None:
    board = yaml.safe_load(BOARD)
    assert not faults(validators["device"], board)
    assert faults(validators["device"], board | {"base_w": 5})
    assert not faults(validators["device"], {"extends": "tiny", "base_w": "5 W"})
    assert faults(validators["model"], {"extends": "tiny", "weight_bitts": 4})
    assert not faults(validators["model"], {"extends": "tiny", "weight_bits": 4})


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(InputError, match="unknown kind of file 'trace'; known: device, engine, model"):
        schema("trace")


PREFIXES = ("", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "m", "u", "n", "kilo", "mega", "milli", "K")
UNITS = ("s", "min", "h", "b", "bit", "B", "bytes", "Bit", "bps", "flop", "value", "values", "W", "J", "Hz", "requests")


@pytest.mark.parametrize("kind", QUANTITIES)
def test_units_are_those_that_are_read(kind: str) -> None:
    pattern = re.compile(_pattern(kind))
    for prefix, unit, per in itertools.product(
        PREFIXES, UNITS, ("", "/s", " / s", "/min", " per hour", "/ms", "/value")
    ):
        text = f"3.5 {prefix}{unit}{per}"
        try:
            quantity(text, kind)
            is_read = True
        except ValueError:
            is_read = False
        assert (pattern.search(text) is not None) == is_read, text
    written = jsonschema.Draft202012Validator({"type": "string", "pattern": _pattern(kind)})
    for number, valid in (("-4", False), ("+4", True), (".5", True), ("1e3", True), ("", False), ("1,000", False)):
        assert written.is_valid(QUANTITIES[kind].example.replace(QUANTITIES[kind].example.split()[0], number)) == valid
    assert written.is_valid("0" + QUANTITIES[kind].example.lstrip("0123456789.")) == QUANTITIES[kind].zero


@pytest.mark.parametrize(
    ("assist", "valid"),
    [({"token": 3}, False), ({"tokens": 3}, True), ({"name": "tokens-only", "assist": {"tokens": 3}}, True)],
)
def test_what_assists_has_known_keys_where_the_kind_is_not_said(
    validators: dict[str, Any], assist: dict[str, Any], valid: bool
) -> None:
    told = faults(validators["scenario"], {"extends": "mine.yaml", "policies": {"assist": assist}})
    assert (told == []) is valid, told

"""Bad input of every kind: one readable line per fault, with file, line, key, what came and what would do."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from bad_scenarios import BOARD, GOOD, LINK_KEYS, ONE_FAULT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvferry.scenarios.loader import load_device, load_scenario
from kvferry.scenarios.resolve import path_keys
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario


@pytest.fixture(autouse=True)
def files(here: Path) -> None:
    Path("board.yaml").write_text(BOARD)
    Path("s.yaml").write_text(GOOD)


def complaint(source: str = "s.yaml", *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        load_scenario(source, overrides)
    return str(caught.value)


def complaint_about(text: str | bytes) -> str:
    Path("s.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return complaint()


def test_the_good_one_is_good() -> None:
    assert load_scenario("s.yaml").name == "small"


@pytest.mark.parametrize(("good", "bad", "message"), ONE_FAULT)
def test_one_change_one_line(good: str, bad: str, message: str | None) -> None:
    assert good in GOOD
    said = complaint_about(GOOD.replace(good, bad, 1))
    assert "\n" not in said
    assert said.startswith("s.yaml:")
    if message is not None:
        assert said == message


def test_a_misspelt_name_gets_the_nearest() -> None:
    said = complaint_about(GOOD.replace("board.yaml", "rtx-5080-laptp"))
    assert said.startswith("s.yaml:3: device: unknown device 'rtx-5080-laptp'; known: ")
    assert said.endswith(" Did you mean 'rtx-5080-laptop'?")
    assert complaint("quikstart").endswith("Did you mean 'quickstart'?")


def test_an_unknown_key_is_placed_where_it_stands() -> None:
    said = complaint_about(GOOD + "likn:\n  x: 1\n")
    assert said.startswith("s.yaml:11: likn: unknown key; known here: backend, budget, ")
    assert said.endswith("; did you mean 'link'?")


def test_every_fault_of_a_file_has_its_line_in_order() -> None:
    bad = GOOD.replace("4 ms", "4").replace("small", "../x").replace("rate:", "rat:").replace("tiny", "tinny")
    bad = bad.replace("board.yaml", "gone.yaml").replace("4Ki tokens", "none")
    lines = complaint_about(bad).split("\n")
    assert [line.split(": ")[:2] for line in lines] == [
        ["s.yaml:1", "name"],
        ["s.yaml:3", "device"],
        ["s.yaml:4", "model"],
        ["s.yaml:6", "link.rat"],
        ["s.yaml:7", "link.rtt"],
        ["s.yaml:10", "workload.context"],
    ]


@pytest.mark.parametrize(("value", "came"), [("5", "5"), ("[gpu]", "a list"), ("gpu", "'gpu'")])
def test_processors_that_are_no_mapping(value: str, came: str) -> None:
    said = complaint("s.yaml", "device={extends: tiny}", f"device.processors={value}")
    assert said.endswith(f"device.processors: {came} is not a mapping (key: value)")


def test_more_faults_than_anyone_reads_are_counted() -> None:
    lines = complaint_about(GOOD + "".join(f"x{i}: 1\n" for i in range(50))).split("\n")
    assert len(lines) == 31
    assert lines[-1] == "... and 20 more"


def test_a_fault_in_another_file_is_placed_there() -> None:
    Path("board.yaml").write_text(BOARD.replace("kind: gpu", "kind: gpuu").replace("30 Tflop/s", "30"))
    assert complaint().split("\n") == [
        "board.yaml:4: device.processors.gpu.flop_per_s: 30 has no unit; write it like '33 Tflop/s'",
        "board.yaml:4: device.processors.gpu.kind: 'gpuu' is none of gpu, cpu, npu; did you mean 'gpu'?",
    ]
    Path("board.yaml").write_text(BOARD.replace("gpu, flop", "gpu flop"))
    assert complaint().startswith("s.yaml:3: device: board.yaml:4: not valid YAML: ")
    Path("board.yaml").write_text(BOARD.replace("main: gpu", "main: tpu"))
    assert complaint() == "board.yaml:2: device.main: 'tpu' is no processor of this device; it has gpu"


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (
            "64 GiB,",
            "64 GB, reserved_bytes: 100 GB,",
            "board.yaml:5: device.memory.reserved_bytes: leaves nothing of 64 GB",
        ),
        (
            "unified: true",
            "unified: false",
            "board.yaml:5: device.memory.copy_bytes_per_s: is missing; "
            "memory that is not unified has a copy path, say 25 GB/s",
        ),
        ("unified: true", "unified: 1", "board.yaml:5: device.memory.unified: 1 is not true or false"),
        ("unified: true", "unified: yes", "board.yaml:5: device.memory.unified: 'yes' is not true or false"),
        (
            "kind: gpu",
            "kind: gpu, compiled_tokens: [0]",
            "board.yaml:4: device.processors.gpu.compiled_tokens.0: 0: must be at least 1",
        ),
    ],
)
def test_a_device_that_cannot_be(good: str, bad: str, message: str) -> None:
    assert good in BOARD
    Path("board.yaml").write_text(BOARD.replace(good, bad))
    assert complaint() == message


def test_heads_that_cannot_share() -> None:
    assert complaint("s.yaml", "model.kv_heads=3") == (
        "--set model.kv_heads=3: model.kv_heads: 3 cannot share 4 query heads evenly"
    )


def test_keys_and_values_of_less_than_a_byte() -> None:
    with pytest.raises(InputError) as caught:
        load_scenario("s.yaml", ["model.head_dim=1", "model.kv_value_bytes=0.1"])
    assert str(caught.value) == (
        "--set model.kv_value_bytes=0.1: model.kv_value_bytes: 0.1 bytes for each of 2 numbers are less than a byte "
        "per token and head; at least 0.5 will do"
    )


def test_a_budget_beyond_the_device() -> None:
    override = "budget.memory=100 GB"
    assert complaint("s.yaml", override) == (
        f"--set {override}: budget.memory: 100 GB is more than the 68.72 GB that the device leaves free"
    )
    assert load_scenario("s.yaml", ["budget.memory=64 GiB"]).budget.memory_bytes == 64 * 2**30


def test_an_efficiency_that_no_kernel_has() -> None:
    Path("board.yaml").write_text(BOARD.replace("kind: gpu", "kind: gpu, efficiency: {gathr: 0.5}"))
    said = complaint()
    assert said.startswith(
        "board.yaml:4: device.processors.gpu.efficiency.gathr: 'gathr' is none of gemm, product, gemv"
    )
    assert said.endswith("; did you mean 'gather'?")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("link.rtt=4", "--set link.rtt=4: link.rtt: 4 has no unit; write it like '4 ms'"),
        ("link.rt=4 ms", f"--set link.rt=4 ms: link.rt: unknown key; {LINK_KEYS}; did you mean 'rtt'?"),
        ("rtt", "--set rtt: not KEY=VALUE; write it like link.rtt='4 ms'"),
        ("=5", "--set =5: not KEY=VALUE; write it like link.rtt='4 ms'"),
        ("link..rtt=5 ms", "--set link..rtt=5 ms: not KEY=VALUE; write it like link.rtt='4 ms'"),
        ("a" + ".a" * 30 + "=1", f"--set {('a' + '.a' * 30 + '=1')}: not KEY=VALUE; write it like link.rtt='4 ms'"),
        (
            "link.rtt.x=5 ms",
            "--set link.rtt.x=5 ms: 'x' leads nowhere: what stands there is '4 ms', not a mapping",
        ),
        ("model=tinyy", None),
        ("link.rtt={", None),
        ("link.rtt=!!python/none x", None),
        ("load.trace=gone.csv", "--set load.trace=gone.csv: load.trace: 'gone.csv' is not there"),
        ("link=null", "--set link=null: link: null is not a mapping (key: value)"),
    ],
)
def test_an_override_is_named(override: str, message: str | None) -> None:
    said = complaint("s.yaml", override)
    assert said.startswith(f"--set {override}")
    assert "\n" not in said
    if message is not None:
        assert said == message


def test_a_place_in_a_list_of_thousands_of_digits() -> None:
    outages = "link.outages=[{start: 2 s, duration: 2 s}]"
    assert complaint("s.yaml", outages, f"link.outages.{'1' * 5000}=1").endswith(
        "leads nowhere: what stands there is a list of 1, not a mapping"
    )
    assert load_scenario("s.yaml", [outages, "link.outages.0.start=1 s"]).link.outages[0].start_s == 1


def test_a_key_that_is_no_text() -> None:
    text = GOOD.replace("device: board.yaml", "device: {name: a, processors: {1: {kind: gpu}, ~: {}, [a]: {}}}")
    assert complaint_about(text) == "s.yaml:3: device.processors: a key is a word, not a mapping or a list"
    for mapping in ({1: {"kind": "gpu"}}, {None: 1}, {(1, 2): 3}):
        with pytest.raises(InputError):
            load_scenario({**yaml.safe_load(GOOD), "device": {"processors": mapping}})
    assert path_keys({"device": {"processors": {1: {}}}, 2: 3})


def test_circles_are_seen() -> None:
    for name, base in (("a", "b"), ("b", "c"), ("c", "a")):
        Path(f"{name}.yaml").write_text(f"name: {name}\nextends: {base}.yaml\n")
    said = "c.yaml:2: extends: a circle, a.yaml -> b.yaml -> c.yaml -> a.yaml; one of them must stand on its own"
    assert complaint("a.yaml") == said
    with pytest.raises(InputError) as caught:
        load_device("a.yaml")
    assert str(caught.value) == said
    assert complaint_about(GOOD.replace("board.yaml", "a.yaml")) == f"s.yaml:3: device: {said}"
    Path("s.yaml").write_text("extends: s.yaml")
    assert complaint() == "s.yaml:1: extends: a circle, s.yaml -> s.yaml; one of them must stand on its own"


def test_a_long_chain_ends() -> None:
    for i in range(12):
        Path(f"c{i}.yaml").write_text(f"extends: c{i + 1}.yaml")
    assert complaint("c0.yaml") == "c9.yaml:1: extends: more than 10 files deep"


def test_extends_is_a_name() -> None:
    assert complaint_about("extends: 7") == "s.yaml:1: extends: 7 is not the name or path of a scenario"
    assert complaint_about("extends: ''").startswith("s.yaml:1: extends: unknown scenario ''; known: ")
    assert complaint_about("a: 1\nextends: quikstart").endswith("Did you mean 'quickstart'?")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "s.yaml:1: the file is empty; a mapping (key: value) is needed"),
        ("# nothing\n", "s.yaml:1: the file is empty; a mapping (key: value) is needed"),
        ("- a\n- b\n", "s.yaml:1: a scenario is a mapping (key: value); what came is a list"),
        ("hello", "s.yaml:1: a scenario is a mapping (key: value); what came is 'hello'"),
        (b"name: a\nsystem: \xff\n", "s.yaml:2: byte 0xff is not UTF-8; save it as UTF-8"),
        ("name: a".encode("utf-16"), "s.yaml:1: byte 0xff is not UTF-8; save it as UTF-8"),
        ("#" * 1_000_001, "s.yaml has more than 1,000,000 bytes, which no scenario needs"),
        ("[" + "1, " * 30_000 + "]", "s.yaml:1: 19999: more than 20,000 values once its aliases are written out"),
        ("[" + "1, " * 60_000 + "]", "s.yaml:1: more than 20,000 values, which no scenario needs"),
        ("a: &a\n- *a", "s.yaml:1: a.0: this alias contains itself; write the value out"),
    ],
)
def test_files_that_are_none(content: str | bytes, message: str) -> None:
    assert complaint_about(content) == message


def test_a_billion_laughs() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True):
        bomb += f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    said = complaint_about(bomb)
    assert said.startswith("s.yaml:")
    assert said.endswith(": more than 20,000 values once its aliases are written out")


def test_places_that_are_no_files(here: Path) -> None:
    os.mkfifo("pipe.yaml")
    assert complaint("pipe.yaml") == "'pipe.yaml' is a pipe or a device, not a regular file"
    assert complaint(str(here)) == f"{str(here)!r} is a folder, not a file"
    assert complaint("/dev/zero") == "'/dev/zero' is a pipe or a device, not a regular file"
    assert complaint("gone.yaml") == "'gone.yaml' is not there"
    assert complaint("a\0b") == "'a\\x00b' is not there"
    assert complaint("../" * 2000 + "x.yaml").endswith(" is not there")
    assert (
        complaint("quickstart.yaml")
        == "'quickstart.yaml' is not there; the bundled scenario of that name is called 'quickstart'"
    )


def test_a_name_does_not_lead_out_of_the_bundled_folder() -> None:
    assert complaint("../scenarios/sparkv/laptop") == "'../scenarios/sparkv/laptop' is not there"
    assert complaint("devices/rtx-5080-laptop").startswith("unknown scenario 'devices/rtx-5080-laptop'")


# --- whatever comes, it is a scenario or an InputError ---------------------------------------------------

quick = settings(
    deadline=5_000, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
words = st.sampled_from(
    ["name", "system", "device", "model", "link", "rate", "rtt", "workload", "kind", "context", "extends", "policies"]
    + ["tiny", "board.yaml", "s.yaml", "4 ms", "1e9", ".nan", "850 Mbit/s", "context-reuse", "null", "true", "~", "---"]
    + [*"-:,[]{}&*!|>'\"%@`#?\n \t", "<<", "\n  "]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | words
values = st.recursive(
    scalars, lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=8) | words, below, max_size=4)
)


def scenario_or_complaint(text: str, *overrides: str) -> None:
    Path("s.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert isinstance(load_scenario("s.yaml", overrides), Scenario)
    except InputError as error:
        assert str(error)  # noqa: PT017
        str(error).encode()


@quick
@given(st.text(max_size=200) | st.lists(words, max_size=40).map(" ".join))
def test_any_text(text: str) -> None:
    scenario_or_complaint(text)


@quick
@given(st.data())
def test_any_value_anywhere(data: st.DataObject) -> None:
    tree: Any = yaml.safe_load(GOOD)
    tree["policies"], tree["load"], tree["budget"] = {"a": {"name": "b"}}, {"share": 0.5}, {"memory": "1 GiB"}
    below, key = tree, data.draw(st.sampled_from(sorted(tree)))
    while isinstance(below[key], dict) and data.draw(st.booleans()):
        below, key = below[key], data.draw(st.sampled_from(sorted(below[key])))
    below[data.draw(st.just(key) | words)] = data.draw(values)
    scenario_or_complaint(yaml.safe_dump(tree, sort_keys=False))


@quick
@given(
    st.text(max_size=60)
    | st.tuples(st.sampled_from(["link.rtt", "model", "a.b", "link.outages.0"]), st.text()).map("=".join)
)
def test_any_override(override: str) -> None:
    scenario_or_complaint(GOOD, override)

"""Mistakes that newcomers made: the message says what to type instead."""

import json
import re
from pathlib import Path

import pytest

import kvferry
from kvferry.analysis.search import load_search
from kvferry.analysis.study import load_study
from kvferry.cli.progress import Estimate
from kvferry.codecs import pool
from kvferry.pipelines.plugins import use
from kvferry.pipelines.run import Run, run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.document import parse_document
from kvferry.specs.errors import InputError
from kvferry.specs.units import shown_size
from kvferry.traces.importers import import_trace

pytestmark = pytest.mark.usefixtures("here")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\n\tb: 2\n", "f.yaml:2: not valid YAML: a tab; YAML is indented by blanks, two for each level"),
        ("a: {b: 1\nc: 2\n", "f.yaml:1: not valid YAML: '{' opens here and is not closed before line 2"),
        ("a: 1\nb: [1\n", "f.yaml:2: not valid YAML: '[' opens here and is not closed before the end of the file"),
        ('a: "b\nc: 1\n', "f.yaml:1: not valid YAML: a quotation mark opens here and is not closed"),
        ("a: {b: 1}}\n", "f.yaml:1: not valid YAML: "),
    ],
)
def test_yaml_that_is_none(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse_document(text, "f.yaml", Path())
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("workload.arrivals=0.2", "0.2 is not a mapping (key: value); write it like {rate: 0.2 requests/s}"),
        ("load={share: 30 %}", "load.share: '30 %' is not a number; write it like 0.3"),
        ("link={rate:1 Mbit/s}", "link.rate:1 Mbit/s: lacks a blank behind its colon; write it like rate: 1 Mbit/s"),
        ("system=[ferry, sparkv]", "several: kvferry compare SCENARIO --systems ferry,sparkv"),
        ("model=model.gguf", "'model.gguf' is not there; a GGUF file, a Hugging Face folder, a YAML file or a bundled"),
        ("model=models/typo", "'models/typo' is not there; a Hugging Face folder or a bundled name would do"),
        ("model=empty", "'empty' has no config.json; name a Hugging Face folder, a YAML or a GGUF file"),
        ("model=./empty", "'./empty' has no config.json; name a Hugging Face folder, a YAML or a GGUF file"),
        ("device=RTX 4060", "'RTX 4060' is not there; the bundled device of that name is called 'rtx-4060'"),
        ("device.storage=ssd", "unknown storage 'ssd'; did you mean 'nvme'?"),
        ("system=kvswap", "with workload.kind decode it would do (try: kvferry run kvswap/throughput), or here one of"),
        ("workload.trace=lines.jsonl", "lines.jsonl:1: JSON lines, which a session reads: kvferry run"),
    ],
)
def test_a_value_of_another_shape(setting: str, said: str) -> None:
    Path("empty").mkdir()
    Path("lines.jsonl").write_text('{"conversation": 0, "arrival": 10, "output": 2}\n')
    with pytest.raises(InputError) as error:
        kvferry.run("quickstart", [setting])
    assert said in str(error.value)


def test_what_a_devices_file_lacks_is_said_of_that_file() -> None:
    Path("board.yaml").write_text("name: board\nprocessors: {gpu: {kind: gpu}}\n")
    with pytest.raises(InputError) as error:
        kvferry.load("quickstart", {"device": "board.yaml"})
    lines = str(error.value).splitlines()
    assert "board.yaml:1: device.main: is missing; write it like main: gpu" in lines
    assert all(line.startswith("board.yaml:") for line in lines)


@pytest.mark.parametrize(
    ("load", "text", "said"),
    [
        (kvferry.load, "base: quickstart\naxes: {seed: [1]}\n", "this is a study: kvferry sweep f.yaml"),
        (kvferry.load, "base: quickstart\nspace: {}\n", "this is a search: kvferry search f.yaml"),
        (load_study, "name: a\nworkload: {}\n", "this is a scenario: kvferry run f.yaml; a study names it as `base: f"),
        (load_study, "base: quickstart\nspace: {}\n", "this is a search: kvferry search f.yaml"),
        (load_search, "base: quickstart\naxes: {}\n", "this is a study: kvferry sweep f.yaml"),
    ],
)
def test_a_file_of_another_kind(load: object, text: str, said: str) -> None:
    Path("f.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        load("f.yaml")  # type: ignore[operator]
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_scenarios_name_where_a_study_is_wanted() -> None:
    with pytest.raises(InputError, match="'quickstart' is a scenario: kvferry run quickstart"):
        load_study("quickstart")


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n",
        '{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0]}\n' * 2,
    ],
)
def test_a_log_of_requests_is_no_log_of_a_link(text: str) -> None:
    Path("log").write_text(text)
    with pytest.raises(InputError, match="is a log of requests, not of a link: --set workload.trace=log replays it"):
        import_trace(Path("log"))


def test_nothing_is_estimated_from_the_first_points() -> None:
    now_s = 0.0
    estimate = Estimate(lambda: now_s)
    assert estimate.in_words(0, 2400) == ""
    now_s = 18.0
    assert estimate.in_words(7, 2400) == ""
    assert estimate.in_words(8, 2400) == "about 90 min left"


def test_weights_that_do_not_fit_are_told_in_fewer_bits() -> None:
    why = kvferry.run("quickstart", {"model": "qwen2.5-14b", "precision": {"weight_bits": 16}}).why
    assert "--set precision.weight_bits=4: 9.72 GB" in why and "15.5 GB are free" in why


def test_fewer_bits_are_named_only_where_they_fit() -> None:
    # In 4 bits this model takes 5.59 GB, as its embeddings keep 16: more than the 4.91 GB that do not fit.
    why = kvferry.run("decode", ["device=rtx-3050-laptop"]).why
    assert "weights needs 4.91 GB, 3.40 GB are free" in why
    assert "; a smaller model would do, or some layers elsewhere: --set budget.offload=cpu" in why
    assert "precision." not in why


def test_weights_of_a_named_format_are_told_in_another_that_the_engine_reads() -> None:
    """A number of bits does not stand beside a format, as the decode scenario has one: that hint was refused."""
    settings = ["device=rtx-4060", "precision.weights=fp16"]
    why = kvferry.run("decode", settings).why
    assert " or fewer bits of weights (--set precision.weights=q6_k: 6.59 GB) would do" in why
    assert kvferry.run("decode", [*settings[:1], "precision.weights=q6_k"]).outcome == "done"
    # Experts in MXFP4 are those of a mixture alone, and vLLM reads other formats than llama.cpp.
    why = kvferry.run("decode", [*settings, "engine=vllm"]).why
    assert "--set precision.weights=gptq: 5.73 GB" in why
    assert "precision.weights=" in kvferry.run("decode", ["device=rtx-4080", "model=gpt-oss-20b"]).why


def test_sizes_are_in_powers_of_ten() -> None:
    assert [shown_size(one) for one in (5, 32_768, 33_554_432, 16_060_000_000)] == [
        "5 B",
        "32.8 kB",
        "33.6 MB",
        "16.06 GB",
    ]
    # What would do is never less than what is needed.
    assert [shown_size(one, up=True) for one in (33_510_000, 1_001_000_000)] == ["33.6 MB", "1.01 GB"]


def test_a_codec_worker_may_take_longer_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (18.0, 0.0, 0.0))
    assert pool.patience_s() == 9 * pool.SILENCE_S
    monkeypatch.setattr("os.getloadavg", lambda: (1.0, 0.0, 0.0))
    assert pool.patience_s() == pool.SILENCE_S


# A board whose memory holds a 3B model and 32K hidden states, and not what a chunk of 2,048 tokens takes beside them.
_BOARD = [
    "device={extends: jetson-orin-nano-8gb, name: board, storage: nvme, memory: {capacity_bytes: 4.6 GiB}}",
    "model=llama-3.2-3b",
    "workload={kind: decode, context: 32Ki, output: 8}",
]


def test_a_smaller_chunk_is_named_where_prefill_is_what_does_not_fit() -> None:
    """KV is on storage already: to put it there would not do."""

    def ran(*settings: str) -> Run:
        return run_scenario(load_scenario("kvswap/throughput", ["budget={}", "policies={}", *_BOARD, *settings]))

    why = ran().why
    assert "on storage" not in why
    found = re.search(r"; budget\.prefill_chunk of (\d+) would do$", why)
    assert found, why
    assert ran(f"budget.prefill_chunk={found[1]}").outcome == "done"
    # The largest that does.
    assert ran(f"budget.prefill_chunk={2 * int(found[1])}").outcome == "out_of_memory"
    # Weights and a whole prompt's states alone are too many.
    why = ran("device.memory.capacity_bytes=4.3 GiB").why
    assert why.endswith("; a shorter context or fewer bits of weights or KV would do")


def test_a_file_that_is_no_plugin_is_told_its_ending() -> None:
    Path("nano.yaml").write_text("name: nano\n")
    for name in ("nano.yaml", "./nano.yaml"):
        with pytest.raises(InputError, match=r"nano\.yaml: is no plugin: a Python file is, whose name ends in \.py"):
            use(name)
    # A module's name is still one.
    with pytest.raises(InputError, match=r"^nano\.other: cannot be imported"):
        use("nano.other")


def test_an_objective_that_is_no_metric_is_one_fault() -> None:
    described = {"base": "quickstart", "space": {"link.scale": [0.5, 1]}, "objectives": ["ttft"]}
    Path("search.yaml").write_text(json.dumps(described))
    with pytest.raises(InputError) as error:
        load_search("search.yaml")
    (line,) = str(error.value).splitlines()
    assert line.endswith("objectives.0: 'ttft' is no metric; did you mean 'ttft_s'?")

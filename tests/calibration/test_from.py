"""Profiles from what llama-bench, fio and iperf3 wrote: numbers by hand, files that are not what they should be."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from kvferry.calibration.fio import rates_of
from kvferry.calibration.from_files import profile_from, recognised
from kvferry.calibration.json_value import MOST_BYTES, JsonValue, read_json
from kvferry.calibration.llama_bench import read_llama_bench
from kvferry.cli.main import app
from kvferry.machine.ops import DecodeStep, Prefill
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_device, load_model, load_scenario
from kvferry.sim.costs.cost_model import main_costs
from kvferry.specs.errors import InputError

DATA = Path(__file__).parents[1] / "data" / "calibrate"
BENCH, FIO, IPERF = (DATA / f"{name}.json" for name in ("llama-bench", "fio", "iperf3"))
PHONE = load_device("oneplus-12")


def loaded(path: Path) -> Any:
    return json.loads(path.read_text())


def written(folder: Path, content: Any, name: str = "given.json") -> Path:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder / name


def scenario(folder: Path) -> Any:
    return load_scenario(
        {
            "name": "phone",
            "system": "ferry",
            "device": str(folder / "profile.yaml"),
            "model": str(folder / "model.yaml"),
            "link": {"trace": str(folder / "link.csv"), "rtt": "4 ms"},
            "workload": {"kind": "context-reuse", "context": 4096},
            "costs": "table",
        }
    )


def test_all_three_make_a_profile_that_a_scenario_runs_on(tmp_path: Path) -> None:
    said: list[str] = []
    profile_from([BENCH, FIO, IPERF], tmp_path, PHONE, say=said.append)
    device = load_device(str(tmp_path / "profile.yaml"))
    loaded_scenario = scenario(tmp_path)
    run = run_scenario(loaded_scenario)
    assert run.outcome == "done"
    assert (device.main, device.processors["cpu"].threads) == ("cpu", 4)
    assert device.memory == PHONE.memory
    assert [line.partition(":")[0] for line in said] == ["llama-bench", "iperf3"]
    # every number below processors, memory, storage ... has a source
    for key in ("processors.cpu.efficiency", "memory.capacity_bytes", "storage", "base_w"):
        assert key in device.sources
    assert (
        device.sources["memory.capacity_bytes"]
        == "not measured; oneplus-12: OnePlus data sheet, the largest; DynaKV Tab. 3"
    )


def test_tables_give_the_medians_that_llama_bench_saw(tmp_path: Path) -> None:
    # 512 tokens: 10.0, 10.2, 10.4 s; 64 generated tokens after 4,096: 4.5 s, seen from 4,128 on average
    profile_from([BENCH, FIO, IPERF], tmp_path, PHONE)
    whole = scenario(tmp_path)
    costs = main_costs("table", whole.device, whole.model)
    assert costs.cost(Prefill(512, 0)).duration_s == pytest.approx(10.2)
    assert costs.cost(Prefill(128, 4096)).duration_s == pytest.approx(3.5)
    assert costs.cost(DecodeStep(1, 4128)).duration_s == pytest.approx(4.5 / 64)
    # and the roofline is fitted to the same: a few percent
    roofline = main_costs("roofline", whole.device, whole.model)
    for op in (Prefill(512, 0), Prefill(128, 4096), DecodeStep(1, 4128)):
        assert roofline.cost(op).duration_s == pytest.approx(costs.cost(op).duration_s, rel=0.05)


def test_the_model_is_as_wide_as_llama_bench_ran_it(tmp_path: Path) -> None:
    # 768 MB of 1,235.8 M weights: 4.97 bits; KV of 16 bits
    profile_from([BENCH], tmp_path, PHONE)
    model = load_model(str(tmp_path / "model.yaml"))
    assert model.name == "llama-3.2-1b"
    assert model.weight_bits == model.embedding_bits == pytest.approx(4.9716, abs=1e-4)
    assert model.kv_value_bytes == 2.0
    assert model.weight_bytes == pytest.approx(768e6, rel=1e-3)


def test_fio_becomes_a_curve(tmp_path: Path) -> None:
    # numjobs 8 and iodepth 1 are eight at once
    profile_from([FIO], tmp_path, PHONE)
    storage = load_device(str(tmp_path / "profile.yaml")).storage
    assert storage is not None
    assert [(row.depth, row.block_bytes, row.bytes_per_s) for row in storage.read] == [
        (1, (4096.0, 65536.0), (60e6, 500e6)),
        (8, (4096.0, 65536.0), (300e6, 1500e6)),
    ]
    assert storage.queue_depth == 8
    assert (tmp_path / "storage.csv").read_text().splitlines()[1] == "4096,1,6e+07,0.000,fio"


def clones(count: int) -> Any:
    """As fio tells of 8 jobs without --group_reporting: each is an entry, with its own rate."""
    entry = {
        "jobname": "k4",
        "groupid": 0,
        "job options": {"numjobs": "8", "iodepth": "2", "bs": "4k"},
        "read": {"bw_bytes": 10_000_000},
    }
    return {"global options": {"rw": "randread"}, "jobs": [entry] * count}


def test_jobs_that_fio_reports_one_by_one_are_added_up() -> None:
    (one_by_one,) = rates_of(clones(8), "f")
    assert (one_by_one.depth, one_by_one.bytes_per_s) == (16, 80e6)
    (grouped,) = rates_of(clones(1), "f")
    assert (grouped.depth, grouped.bytes_per_s) == (16, 10e6)
    again = clones(8)
    again["jobs"] = [*again["jobs"], *(dict(job, groupid=1) for job in again["jobs"])]
    assert [rate.bytes_per_s for rate in rates_of(again, "f")] == [80e6, 80e6]
    with pytest.raises(InputError, match=r"f: jobs\[0\]: numjobs is 8, and 3 entries .*--group_reporting"):
        rates_of(clones(3), "f")


def test_what_fio_measured_twice_counts_as_repetitions(tmp_path: Path) -> None:
    again = loaded(FIO)
    again["jobs"] = [dict(again["jobs"][0], read={"bw_bytes": 80_000_000})]
    profile_from([FIO, written(tmp_path, again)], tmp_path / "out", PHONE)
    storage = load_device(str(tmp_path / "out" / "profile.yaml")).storage
    assert storage is not None and storage.read[0].bytes_per_s[0] == 70e6


def test_iperf3_becomes_a_trace_without_its_slow_start(tmp_path: Path) -> None:
    # 400, 420, 380 and 400 Mbit/s are left
    profile_from([IPERF], tmp_path, PHONE)
    document = json.loads((tmp_path / "calibration.json").read_text())
    assert document["link"] == {
        "trace": "link.csv",
        "mean_bytes_per_s": pytest.approx(50e6),
        "rtt_s": pytest.approx(0.0042),
    }
    assert load_device(str(tmp_path / "profile.yaml")).main == "npu"


def test_one_depth_cannot_tell_attention_from_the_rest(tmp_path: Path) -> None:
    flat = [result for result in loaded(BENCH) if result["n_depth"] == 0]
    profile_from([written(tmp_path, flat)], tmp_path / "out", PHONE)
    device = load_device(str(tmp_path / "out" / "profile.yaml"))
    share = device.processors["cpu"].efficiency
    assert share["attention"] == share["gemm"] and share["decode_attention"] == share["gemv"]
    assert "one depth cannot tell them apart" in device.sources["processors.cpu.efficiency"]
    # one context is no grid either: nothing to interpolate
    assert device.processors["cpu"].measured is None


def test_json_lines_and_words_before_the_json_are_read(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(result) for result in loaded(BENCH))
    assert len(recognised([written(tmp_path, lines)]).llama_bench) == 1
    warned = "fio: pid=1, err=0\nnote: both iodepth >= 1 and synchronous I/O engine\n" + FIO.read_text()
    assert len(recognised([written(tmp_path, warned)]).fio) == 1


def test_a_gpu_is_a_gpu() -> None:
    results = loaded(BENCH)
    for result in results:
        result |= {"backends": "CUDA", "gpu_info": "NVIDIA GeForce RTX 4060", "n_gpu_layers": -1}
    bench = read_llama_bench([JsonValue(results, "f")])
    assert (bench.on_gpu, bench.hardware) == (True, "NVIDIA GeForce RTX 4060")
    for result in results:
        result["n_gpu_layers"] = 0
    assert not read_llama_bench([JsonValue(results, "f")]).on_gpu


def changed(path: Path, *keys: Any, to: Any = None) -> Any:
    """A file's content with one value another one, or gone."""
    content = copy.deepcopy(loaded(path))
    holder = content
    for key in keys[:-1]:
        holder = holder[key]
    if to is None:
        del holder[keys[-1]]
    else:
        holder[keys[-1]] = to
    return content


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is not JSON"),
        ("[", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('[{"n_prompt": NaN, "n_gen": 0}]', "is not JSON"),
        ("[]", "neither llama-bench"),
        ("{}", "neither llama-bench"),
        ('{"a": 1}', "it has keys a"),
        ("3", "neither llama-bench"),
        (changed(BENCH, 0, "model_n_params"), r"model_n_params is 1235814400, and None in|has no 'model_n_params'"),
        (changed(BENCH, 1, "n_gen"), r"given.json\[1\]: has no 'n_gen'"),
        (changed(BENCH, 1, "n_prompt", to="many"), r"given.json\[1\]: n_prompt: 'many' is not a number"),
        (changed(BENCH, 1, "n_prompt", to=-1), r"n_prompt: -1 does not lie between"),
        (changed(BENCH, 1, "samples_ns", 0, to=0), r"samples_ns\[0\]: 0 does not lie between"),
        (changed(BENCH, 1, "samples_ns", to="fast"), r"samples_ns: a list is needed; it holds 'fast'"),
        (changed(BENCH, 1, "n_threads", to=8), r"n_threads is 8, and 4 in .*one model and one setting"),
        (changed(BENCH, 1, "model_type", to="qwen3 8B"), r"model_type is 'qwen3 8B'"),
        ([dict(loaded(BENCH)[0], n_gen=32)], "neither prompts"),
        ([dict(result, type_k="q3_x") for result in loaded(BENCH)], "type_k is 'q3_x'; known: f32"),
        ([dict(result, model_n_params=5.5e9) for result in loaded(BENCH)], "none of the bundled models .*--model"),
        ([dict(result, model_size=1e17) for result in loaded(BENCH)], r"model_size: 1e\+17 does not lie between 1 and"),
        ([dict(result, samples_ns=[1]) for result in loaded(BENCH)], "processors.cpu.bytes_per_s: .*is out of range"),
        (changed(FIO, "jobs", 0, "job options", "numjobs", to="9999"), "storage.queue_depth: 9999: must be at most"),
        (changed(FIO, "jobs", 0, "read", "bw_bytes", to=1e18), "storage.read.0.bytes_per_s.0: .*is out of range"),
        (
            [dict(result, model_n_params=10**400) for result in loaded(BENCH)],
            r"model_n_params: 10+\.\.\. \(401 characters\) does not lie",
        ),
        (changed(BENCH, 1, "samples_ns", 0, to=10**400), r"samples_ns\[0\]: 10+\.\.\. \(401 characters\) does not lie"),
        (
            changed(FIO, "jobs", 0, "read", "bw_bytes", to=-(10**400)),
            r"bw_bytes: -10+\.\.\. \(402 characters\) does not",
        ),
        (changed(IPERF, "intervals", 0, "sum", "bits_per_second", to=10**400), "not a report of iperf3 --json"),
        (changed(IPERF, "end", "streams", 0, "sender", "mean_rtt", to=10**400), r"mean_rtt: 10+\.\.\. .* does not lie"),
        (changed(FIO, "jobs", to={}), "jobs: a list is needed"),
        (changed(FIO, "jobs", to=[]), "none of them reads"),
        (changed(FIO, "jobs", 0, "read"), r"jobs\[0\]: has no 'read'"),
        (changed(FIO, "jobs", 0, "read", "bw_bytes", to="fast"), r"read.bw_bytes: 'fast' is not a number"),
        (changed(FIO, "jobs", 0, "job options", "bs", to="4 kilo"), "'4 kilo' is no block size"),
        (changed(FIO, "jobs", 0, "job options", "iodepth", to="0"), "'0' is no count"),
        (changed(FIO, "global options", "rw", to="read"), "none reads at random"),
        (changed(IPERF, "intervals", to=[]), "intervals"),
        ({"start": {}, "end": {}, "intervals": [], "error": "unable to connect"}, "iperf3 failed: unable to connect"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_key(tmp_path: Path, content: Any, said: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InputError, match=said) as caught:
        profile_from([path], tmp_path / "out", PHONE)
    assert "given.json" in str(caught.value)
    assert not (tmp_path / "out" / "profile.yaml").exists()


def test_files_are_bounded_and_must_be_there(tmp_path: Path) -> None:
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(InputError, match="at most"):
        read_json(huge)
    with pytest.raises(InputError, match="no such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(InputError, match="not a regular file"):
        read_json(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not text"):
        read_json(tmp_path / "binary")


def test_two_links_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a second file of iperf3"):
        profile_from([IPERF, IPERF], tmp_path, PHONE)


def test_a_model_of_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--model qwen3-8b has 8\.19 G"):
        profile_from([BENCH], tmp_path, PHONE, model="qwen3-8b")


# --- the command -----------------------------------------------------------------------------------------------


def test_from_takes_all_the_files_that_follow(tmp_path: Path) -> None:
    ended = CliRunner().invoke(
        app,
        ["calibrate", "-o", str(tmp_path / "p"), "--base", "oneplus-12", "--from", str(BENCH), str(FIO), str(IPERF)],
    )
    assert (ended.exit_code, ended.stdout.strip()) == (0, str(tmp_path / "p" / "profile.yaml"))
    heading, *_ = (tmp_path / "p" / "profile.yaml").read_text().splitlines()
    assert heading.startswith("# Made by kvferry calibrate --from llama-bench.json, fio.json, iperf3.json, on 20")
    assert yaml.safe_load((tmp_path / "p" / "profile.yaml").read_text())["name"] == "p"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--model"),
        (["a.json"], "files come after --from"),
        (["--from", str(BENCH), "--threads", "4", "--parts", "codec"], "--threads, --parts: nothing is measured here"),
        (["--from", "none.json"], "none.json: no such file"),
        (["--from", str(BENCH), "--base", "oneplus-13"], "Did you mean 'oneplus-12'"),
    ],
)
def test_mistakes_are_reported(arguments: list[str], said: str, tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["calibrate", "-o", str(tmp_path / "out"), *arguments])
    assert isinstance(ended.exception, InputError)
    assert said in str(ended.exception)


def test_what_the_files_do_not_tell_is_the_bases_storage_too(tmp_path: Path) -> None:
    profile_from([BENCH], tmp_path, PHONE)
    device = load_device(str(tmp_path / "profile.yaml"))
    assert PHONE.storage is not None
    assert device.storage == PHONE.storage
    assert device.sources["storage"] == "not measured; oneplus-12"

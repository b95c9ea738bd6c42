"""How sure a run's figures are: of a decode step that only reads, by hand; and which figures have no interval."""

import json
from itertools import count
from math import exp
from pathlib import Path
from typing import Any

import pytest
from tiny import DECODING, LOADING, changed

import kvferry.api.intervals as api
from kvferry.analysis.reproduction.left_out import Spread
from kvferry.api import reruns
from kvferry.api.comparison import compare
from kvferry.api.result import Result, run
from kvferry.pipelines import run as pipelines
from kvferry.pipelines.decoding.sizing import NoRoom
from kvferry.pipelines.record import Run
from kvferry.policies.engine_memory import offload_of
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario

# Reading alone: no launches, no arithmetic that takes time; half of the bandwidth is reached.
READING: dict[str, Any] = changed(
    DECODING,
    system="vllm",
    device={
        "extends": "tiny",
        "processors": {
            "gpu": {
                "kind": "gpu",
                "flop_per_s": "1e6 Tflop/s",
                "bytes_per_s": "100 GB/s",
                "efficiency": {"gemv": 0.5, "decode_attention": 0.5},
                "dispatch_s": "0 s",
                "layer_s": "0 s",
            }
        },
        "engine": {"name": "made-up", "processors": {"gpu": {}}, "sources": {}},
    },
    budget={"in_memory_kv": "1 GiB"},
)
RATES = Spread({"a": [0.1], "b": [-0.2], "c": [0.3], "d": [0.4]}, "made up")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> dict[str, Spread | None]:
    """What left-out devices say, by what a step is bound by; of storage, what cells of papers say."""
    found: dict[str, Spread | None] = {"reading": RATES}
    monkeypatch.setattr(api, "known_spread", lambda engine, kind, by: found.get(by))
    monkeypatch.setattr(api, "storage_spread", lambda: found["storage"])
    return found


def test_a_step_that_only_reads_is_off_by_what_its_bandwidth_is(known: dict[str, Spread | None]) -> None:
    """Of four devices, the largest error holds eight of ten of a fifth: 0.4, a factor of 1.49 up and down."""
    found = run(READING)
    rate = found.metrics["decode_tokens_per_s"]
    assert RATES.half_width() == pytest.approx(0.4)
    assert found.intervals["decode_tokens_per_s"] == pytest.approx((rate / exp(0.4), rate * exp(0.4)))
    tpot_s = found.metrics["tpot_s"]
    assert found.intervals["tpot_s"] == pytest.approx((tpot_s / exp(0.4), tpot_s * exp(0.4)))
    assert "ttft_s" not in found.intervals and "end_to_end_tokens_per_s" not in found.intervals
    told = found.envelope["evidence"]
    assert told["decoding"] == {"of": "made up", "devices": 4, "rows": 4, "factor": pytest.approx(exp(0.4))}
    assert list(told["not_known"]) == ["energy", "prefill"]
    assert any(line.startswith("80 % intervals: made up: 4 rates of 4 devices") for line in found.remarks)
    assert any(line.startswith("not in them: energy, prefill") for line in found.remarks)
    assert "80 % interval" in repr(found)


def test_nothing_reads_faster_than_all_of_the_bandwidth(known: dict[str, Spread | None]) -> None:
    """At nine tenths of it there is a tenth to gain, whatever errors say."""
    gpu = READING["device"]["processors"]["gpu"]
    device = {**READING["device"], "processors": {"gpu": {**gpu, "efficiency": {"gemv": 0.9, "decode_attention": 0.9}}}}
    found = run(changed(READING, device=device))
    rate = found.metrics["decode_tokens_per_s"]
    assert found.intervals["decode_tokens_per_s"] == pytest.approx((rate / exp(0.4), rate / 0.9))


def test_with_rates_of_prefill_the_first_token_has_an_interval(known: dict[str, Spread | None]) -> None:
    known["prefill"] = known["power"] = RATES
    loading = changed(LOADING, system="local-prefill", device=READING["device"])
    for described, lacking in (
        (READING, {}),
        (loading, {"energy": "power was measured of decoding from memory alone"}),
    ):
        found = run(described)
        low, high = found.intervals["ttft_s"]
        assert low < found.metrics["ttft_s"] < high
        assert found.envelope["evidence"]["not_known"] == lacking


def test_the_first_token_s_interval_holds_products_in_int8_and_in_fp16(known: dict[str, Spread | None]) -> None:
    """Prefill of either kind that is known exactly: the ends are both kinds. Where it is known less well, the interval
    holds both."""
    card = ["device=rtx-4090", "model=llama-3.1-8b", "precision.weights=q4_k_m", "workload.output=4"]
    in_fp16 = "device={extends: rtx-4090, processors: {gpu: {int8_flop_per_s: null}}}"
    other = run("decode", [in_fp16, *card[1:]], intervals=False).metrics
    known |= {"prefill": Spread({name: [1e-9] for name in "abcd"}, "made up"), "reading": None, "power": RATES}
    exact = run("decode", card)
    ttft_s = exact.metrics["ttft_s"]
    assert 1.5 * ttft_s < other["ttft_s"] < 2 * ttft_s  # twice the rate, but for attention and the first step
    assert exact.intervals["ttft_s"] == pytest.approx((ttft_s, other["ttft_s"]), rel=1e-6)
    assert "tpot_s" not in exact.intervals and other["tpot_s"] == pytest.approx(exact.metrics["tpot_s"])
    assert exact.envelope["evidence"]["precision"] == {"over": ["INT8", "FP16"]}
    assert any("INT8 or FP16 products of prompts" in line for line in exact.remarks)
    known["prefill"] = Spread({name: [0.1] for name in "abcd"}, "made up")
    low, high = run("decode", card).intervals["ttft_s"]
    assert low < ttft_s < other["ttft_s"] < high
    # With weights of 16 bits nothing is open.
    known["prefill"] = Spread({name: [1e-9] for name in "abcd"}, "made up")
    assert "precision" not in run("decode", [*card[:2], "precision.weights=bf16", card[3]]).envelope["evidence"]


def test_a_rate_with_prefill_has_an_interval_of_both_parts(known: dict[str, Spread | None]) -> None:
    """Prefill that is known exactly leaves what decoding makes of the whole; what is not known leaves no interval."""
    of_whole = {"end_to_end_tokens_per_s", "throughput_tokens_per_s", "seconds_per_token"}
    whole = changed(READING, measure="end_to_end")
    assert not of_whole & run(whole).intervals.keys()
    known["prefill"] = Spread({name: [1e-9] for name in "abcd"}, "made up")
    found = run(whole)
    ends = [
        run(api.slowed(found.scenario, decoding=exp(by)), intervals=False).metrics["end_to_end_tokens_per_s"]
        for by in (0.4, -0.4)
    ]
    assert found.intervals["end_to_end_tokens_per_s"] == pytest.approx(tuple(ends), rel=1e-6)
    assert of_whole <= found.intervals.keys()


def test_energy_is_off_by_what_power_and_time_are(known: dict[str, Spread | None]) -> None:
    """Power alone: a factor, whatever the run. With the time of decoding, both ends lie further out, and less far than
    both factors together."""
    known |= {"prefill": Spread({name: [1e-9] for name in "abcd"}, "made up"), "reading": None, "power": RATES}
    power = run(READING)
    joules = power.metrics["energy_j"]
    assert power.intervals["energy_j"] == pytest.approx((joules / exp(0.4), joules * exp(0.4)), rel=1e-6)
    known["reading"] = RATES
    low, high = run(READING).intervals["energy_j"]
    assert joules / exp(0.8) < low < joules / exp(0.4) < joules * exp(0.4) < high < joules * exp(0.8)
    known["power"] = None
    assert "energy_j" not in run(READING).intervals, "its time alone says little"


def test_equal_runs_are_equal_bytes_and_the_flag_leaves_the_rest_as_it_is(known: dict[str, Spread | None]) -> None:
    first, second = (json.dumps(run(READING).envelope) for _ in range(2))
    assert first == second
    plain = run(READING, intervals=False)
    assert plain.intervals == {} and plain.sureness is None
    kept = {key: value for key, value in json.loads(first).items() if key not in ("intervals", "evidence")}
    assert kept == json.loads(json.dumps(plain.envelope))


def test_without_evidence_it_says_so(known: dict[str, Spread | None]) -> None:
    known.clear()
    found = run(READING)
    assert found.envelope["intervals"] == {}
    assert set(found.envelope["evidence"]["not_known"]) == {"energy", "prefill", "decoding"}
    (line,) = [line for line in found.remarks if line.startswith("no intervals: ")]
    assert line == "no intervals: energy, prefill, decoding: measured on no device beside those of a fit"
    assert "interval" not in repr(found)
    no_engine = run(LOADING)
    assert any("prefill: tiny names no engine" in line for line in no_engine.remarks)
    assert any("--set engine=llama.cpp names one" in line for line in no_engine.remarks)


def test_both_systems_meet_the_same_samples(known: dict[str, Spread | None]) -> None:
    """Both read the same weights: the one that also copies KV is slower in every sample, though intervals meet."""
    known["reading"] = Spread({name: [0.9] for name in "abcd"}, "made up")
    compared = compare(READING, ["full-flash", "full-eager"])
    fast, slow = sorted(compared.results, key=lambda name: compared[name].metrics["tpot_s"])
    assert compared[fast].intervals["tpot_s"][1] > compared[slow].intervals["tpot_s"][0]
    assert compared.beats == {fast: {slow: 1.0}, slow: {fast: 0.0}}
    assert f"{fast} beats {slow} in 100 %" in " ".join(repr(compared).split())
    assert "~ " not in repr(compared).split("~:")[0]


def _study(folder: Path, errors: list[float], device: str = "mine") -> dict[str, Any]:
    """A profile that is calibrated, for all that a result knows, with a study beside it."""
    (folder / "measured").mkdir(exist_ok=True)
    metrics = [{"ttft_s": {"simulated": 1.0, "measured": exp(error)}} for error in errors]
    rows = [{"name": str(n), "headline": "ttft_s", "metrics": one} for n, one in enumerate(metrics)]
    report = {"study": "s", "rows": rows, "provenance": {"device": {"name": device}}}
    (folder / "fidelity.json").write_text(json.dumps(report))
    processors = {"gpu": {"measured": str(folder / "measured")}}
    return changed(LOADING, device={"extends": "tiny", "name": "mine", "processors": processors})


def test_a_calibrated_profile_has_the_errors_of_its_study(tmp_path: Path) -> None:
    described = _study(tmp_path, [0.1, -0.2, 0.3, 0.4])
    found = run(described)
    ttft_s = found.metrics["ttft_s"]
    assert found.intervals["ttft_s"] == pytest.approx((ttft_s / exp(0.4), ttft_s * exp(0.4)))
    assert "load_s" not in found.intervals, "the study does not have it"
    assert found.envelope["evidence"]["runs"]["of"] == "4 scenarios of the fidelity study s"
    for few in (_study(tmp_path, [0.1, 0.2, 0.3]), _study(tmp_path, [0.1] * 4, "another's")):
        assert run(few).intervals == {}


def test_a_study_that_is_none_is_named(tmp_path: Path) -> None:
    described = _study(tmp_path, [0.1] * 4)
    (tmp_path / "fidelity.json").write_text("[]")
    with pytest.raises(InputError, match=r"fidelity\.json: is no report of kvferry fidelity; write it again"):
        run(described)


def test_a_profile_of_a_paper_has_the_errors_of_methods_that_were_left_out() -> None:
    found = run("kvswap/throughput", {"workload.batch": 1, "workload.decoded": 8, "workload.context": 2048})
    low, high = found.intervals["decode_tokens_per_s"]
    assert low < found.metrics["decode_tokens_per_s"] < high
    assert "methods or models, each left out of the fit" in found.envelope["evidence"]["runs"]["of"]
    assert "ttft_s" not in found.intervals


@pytest.mark.parametrize("storage", [{"bytes_per_s": "5 GB/s", "latency_s": "1 us"}, DECODING["device"]["storage"]])
def test_the_ends_are_what_a_run_on_such_a_device_comes_to(
    storage: dict[str, str], known: dict[str, Spread | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """KV on storage: whether reading it or computing decides may differ from end to end."""
    known["storage"] = Spread({name: [1e-9] for name in "abcd"}, "known exactly")
    device = {**DECODING["device"], "engine": READING["device"]["engine"], "storage": storage}
    known.update({"arithmetic": RATES, "fixed costs": RATES})
    found: Result = run(changed(DECODING, device=device), {"runtime": "ideal"})
    ends = []
    for factor in (exp(-0.4), exp(0.4)):
        there = api.slowed(found.scenario, decoding=factor)
        ends.append(run(there, intervals=False).metrics["tpot_s"])
    assert found.intervals["tpot_s"] == pytest.approx(tuple(ends), rel=1e-6)


def test_where_storage_takes_all_of_the_time_a_step_is_off_by_what_storage_is(known: dict[str, Spread | None]) -> None:
    """Of three storages, the largest error, which holds three of a further four: 0.3."""
    known |= dict.fromkeys(("reading", "arithmetic", "fixed costs"), Spread({n: [1e-9] for n in "abcd"}, "exact"))
    known["storage"] = Spread({"a": [0.1, 0.3], "b": [0.2], "c": [-0.1]}, "steps of papers")
    slow = {"bytes_per_s": "100 kB/s", "latency_s": "10 ms"}
    device = {**DECODING["device"], "engine": READING["device"]["engine"], "storage": slow}
    found = run(changed(DECODING, device=device), {"runtime": "ideal"})
    # No plain rate is ever faster than the profile says; latency is.
    slower = run(api.with_slowed_storage(found.scenario, exp(0.3)), intervals=False).metrics["tpot_s"]
    faster = run(api.with_slowed_storage(found.scenario, exp(-0.3)), intervals=False).metrics["tpot_s"]
    tpot_s = found.metrics["tpot_s"]
    assert found.intervals["tpot_s"] == pytest.approx((faster, slower), rel=1e-6)
    assert slower == pytest.approx(tpot_s * exp(0.3), rel=0.01) and tpot_s / exp(0.3) < faster < tpot_s
    told = found.envelope["evidence"]["storage"]
    assert told == {"of": "steps of papers", "devices": 3, "rows": 4, "factor": pytest.approx(exp(0.3)), "level": 0.75}
    assert any("(the largest error, which holds 3 of 4)" in line for line in found.remarks)


def test_storage_alone_is_no_interval_where_computing_takes_most(known: dict[str, Spread | None]) -> None:
    """It is known how far reading is off, and not how far the rest is, which is more than half."""
    known |= {"reading": None, "storage": RATES}
    device = {**DECODING["device"], "engine": READING["device"]["engine"]}
    fast = {"bytes_per_s": "50 GB/s", "latency_s": "1 ns"}
    found = run(changed(DECODING, device={**device, "storage": fast}), {"runtime": "ideal"})
    assert found.intervals == {}
    assert found.envelope["evidence"]["not_known"]["storage"].endswith("takes more than half of the time")
    slow = {"bytes_per_s": "100 kB/s", "latency_s": "10 ms"}
    found = run(changed(DECODING, device={**device, "storage": slow}), {"runtime": "ideal"})
    assert "tpot_s" in found.intervals and "storage" in found.envelope["evidence"]


def test_a_runtime_on_which_memory_holds_no_selection_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Run:
        raise NoRoom("budget.memory: holds no selection")

    monkeypatch.setattr("kvferry.pipelines.run.run_whole", full)
    found = run("offload", ["workload.output=4"])
    assert found.outcome == "done" and found.sureness is not None


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the third run: of the first one, and what says how sure it is, half."""
    runs, really = count(), pipelines.run_scenario

    def run_scenario(*asked: Any, **more: Any) -> Run:
        return really(*asked, **more) if next(runs) < 2 else Run(outcome="interrupted", why="0 of 1 requests")

    monkeypatch.setattr(pipelines, "run_scenario", run_scenario)


@pytest.mark.usefixtures("cut")
def test_an_interval_of_which_half_was_run_is_none_and_the_run_is_kept() -> None:
    found = run("offload", ["workload.output=4"])
    assert (found.outcome, found.sureness, found.interrupted) == ("done", None, "the run without its intervals")
    assert "intervals" not in found.envelope


def test_a_comparison_keeps_what_was_run_before_its_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Scenario]()

    def sureness_of(scenario: Scenario, *_: Any) -> None:
        asked.append(scenario)
        raise KeyboardInterrupt

    monkeypatch.setattr("kvferry.api.comparison.sureness_of", sureness_of)
    found = compare("offload", ["vllm", "full-flash"], ["workload.output=4"])
    assert found.interrupted and list(found.results) == ["vllm", "full-flash"]
    assert [one.sureness for one in found.results.values()] == [None, None]
    assert len(asked) == 1


def test_a_first_token_that_waits_for_weights_has_no_interval() -> None:
    """Of 512 tokens' experts the copies take nearly all: their errors are not known, and no width is none."""
    settings = ["model=qwen3-30b-a3b", "budget.offload.what=experts", "workload.context=512", "workload.output=4"]
    found = run("offload", settings).intervals
    assert "tpot_s" in found and not {"ttft_s", "end_to_end_tokens_per_s"} & found.keys()
    # 2,048 tokens of a dense model take longer than its weights.
    assert "ttft_s" in run("offload", ["workload.output=4"]).intervals


def test_weights_elsewhere_are_run_for_a_few_tokens_at_each_end(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario("offload")
    before = pipelines.run_scenario(scenario)
    ran: list[tuple[int, Any]] = []

    def noting(other: Scenario, *rest: Any) -> Run:
        ran.append((other.decode.workload.output, other.decode.budget.offload))
        return whole(other, *rest)

    whole = pipelines.run_whole
    monkeypatch.setattr(pipelines, "run_whole", noting)
    ours = api.intervals_at(scenario, before)
    assert [output for output, _ in ran] == 7 * [4]
    # Fewer tokens would leave room for more layers.
    offload = offload_of(scenario)
    assert offload is not None and {spec.layers for _, spec in ran} == {offload.layers}
    monkeypatch.setattr(reruns, "_FIRST_TOKENS", 1000)
    theirs = api.intervals_at(scenario, before)
    assert [output for output, _ in ran[7:]] == 7 * [64]
    assert ours.keys() == theirs.keys()
    for key, ends in theirs.items():
        # The largest of few gaps is not that of all.
        assert ours[key] == pytest.approx(ends, rel=1e-2 if key == "largest_gap_s" else 1e-3), key

"""Where it is only assumed what software takes, figures have an interval, and an order that hangs on it is no claim."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import DECODING, TURNS, changed

from kvferry.api.comparison import Comparison, compare
from kvferry.api.result import run
from kvferry.api.sweep import sweep
from kvferry.specs.errors import InputError

BOARDS = ("jetson-agx-orin-kvswap", "jetson-agx-orin-sparkv")


def settings(board: str, **more: Any) -> dict[str, Any]:
    return {"workload.batch": 1, "workload.decoded": 24, "device": board, **more}


def rate(board: str, **more: Any) -> float:
    return run("kvswap/throughput", settings(board, **more)).metrics["throughput_tokens_per_s"]


@pytest.fixture(scope="module")
def compared() -> dict[str, Comparison]:
    return {board: compare("kvswap/throughput", ["kvswap", "vllm"], settings(board)) for board in BOARDS}


def test_one_board_under_its_two_profiles_names_no_two_winners(compared: dict[str, Comparison]) -> None:
    fitted, other = (compared[board] for board in BOARDS)
    known = fitted["kvswap"].sureness
    assert known is not None and "runtime" not in known.evidence, "known: these rows are what it was fitted on"
    best = {
        board: max(one.results, key=lambda name: one[name].metrics["throughput_tokens_per_s"])
        for board, one in compared.items()
    }
    assert set(best.values()) == {"vllm"}
    low, high = other["kvswap"].intervals["throughput_tokens_per_s"]
    assert low < other["vllm"].metrics["throughput_tokens_per_s"] < high
    text = repr(other)
    assert "~" in next(line for line in text.splitlines() if line.lstrip().startswith("kvswap "))
    assert "which of the two is better is not known" in " ".join(text.split())
    assert any("(ideal, kvswap-prototype)" in line for line in other.remarks)


def test_the_ends_of_an_interval_are_the_runs_on_those_runtimes(compared: dict[str, Comparison]) -> None:
    """What a user gets who names them, as far as 16 tokens tell on one with far larger buffers."""
    found = compared[BOARDS[1]]["kvswap"]
    ends = tuple(rate(BOARDS[1], runtime=name) for name in ("kvswap-prototype", "ideal"))
    assert found.intervals["throughput_tokens_per_s"] == pytest.approx(ends, rel=1e-3)
    assert found.metrics["throughput_tokens_per_s"] == ends[0]
    assert "tpot_s" in found.intervals
    assert "kv_buffer_bytes" not in found.intervals, "no latency and no rate"


def test_a_result_says_what_it_assumes(compared: dict[str, Comparison]) -> None:
    found = compared[BOARDS[1]]["kvswap"]
    envelope = json.loads(json.dumps(found.envelope))
    assert envelope["evidence"]["runtime"] == {"over": ["ideal", "kvswap-prototype"]}
    low, high = envelope["intervals"]["tpot_s"]
    assert low < envelope["metrics"]["tpot_s"] == pytest.approx(high)
    assert "decoding" in envelope["evidence"]["not_known"], "nothing says how far this profile is off"
    told = envelope["provenance"]["runtime"]
    assert (told["name"], told["assumed"], told["scale"]) == ("kvswap-prototype", True, pytest.approx(1.3 / 2.2))
    assert any("is assumed on jetson-agx-orin-sparkv: kvswap-prototype" in line for line in found.remarks)
    assert any("what it comes to on the known runtimes (ideal, kvswap-prototype)" in one for one in found.remarks)
    assert " to " in repr(found), "the table has the interval"
    known = compared[BOARDS[0]]["kvswap"]
    assert known.envelope["provenance"]["runtime"]["assumed"] is False
    assert not any("assumed" in line for line in known.remarks)


def test_one_remark_names_each_system_with_what_it_runs_on() -> None:
    described = changed(DECODING, device=BOARDS[1])
    systems = ["kvswap", "vllm", "infinigen", "dynakv"]
    lines = [line for line in compare(described, systems).remarks if "is assumed on" in line]
    assert len(lines) == 1
    assert f"assumed on {BOARDS[1]}: kvswap, infinigen: kvswap-prototype" in lines[0]
    assert "; dynakv: dynakv-prototype" in lines[0] and "vllm" not in lines[0]


def test_a_conversation_says_what_it_attends_to_and_what_it_assumes() -> None:
    found = compare(changed(TURNS, device=BOARDS[1]), ["on-flash", "kvswap-on-flash"])
    assert found.marks.keys() == {"kvswap-on-flash"}
    assert found["on-flash"].metrics["attended_share"] == 1.0
    text = repr(found)
    assert "kvswap-on-flash *" in text and "* attends to a part of the tokens" in text
    assert any("kvswap-on-flash: kvswap-prototype, fitted on" in line for line in found.remarks)
    envelope = found["kvswap-on-flash"].envelope
    assert envelope["provenance"]["runtime"]["assumed"] is True
    assert envelope["evidence"]["runtime"] == {"over": ["ideal", "kvswap-prototype"]}
    low, high = envelope["intervals"]["tpot_s"]
    assert low < envelope["metrics"]["tpot_s"] == pytest.approx(high)
    assert "runtime" not in found["on-flash"].envelope["provenance"]


def test_one_word_leaves_the_further_runs_out() -> None:
    found = run("kvswap/throughput", settings(BOARDS[1]), intervals=False)
    assert found.sureness is None and found.intervals == {}
    assert not {"intervals", "evidence"} & found.envelope.keys()
    assert any("is assumed on" in line for line in found.remarks), "that it is assumed is still said"
    alone = compare("kvswap/throughput", ["kvswap"], settings(BOARDS[1]), intervals=False)
    assert alone["kvswap"].sureness is None and alone.beats == {}


FEW = {"workload.batch": 1, "workload.decoded": 4, "device": BOARDS[1]}


def test_over_seeds_an_order_that_hangs_on_the_runtime_is_no_claim_either() -> None:
    systems = ["kvswap", "vllm"]
    alone, found = compare("kvswap/throughput", systems, FEW), compare("kvswap/throughput", systems, FEW, seeds=2)
    assert found.beats == alone.beats == {"vllm": {"kvswap": 0.5}, "kvswap": {"vllm": 0.5}}
    assert found.unclear == alone.unclear == {"kvswap"}
    text = repr(found)
    assert "~" in next(line for line in text.splitlines() if line.lstrip().startswith("kvswap "))
    assert "80 % interval of tokens/s, decoding: kvswap 6.29 to 10.2" in text
    assert "found at the first seed, vllm beats kvswap in 50.0 %" in " ".join(text.split())
    (pair,) = found.pairs
    assert "(100%; in 50.0 % of all samples of what is not known exactly)" in str(pair)
    assert found["kvswap"].envelope["evidence"]["runtime"] == {"over": ["ideal", "kvswap-prototype"]}
    without = compare("kvswap/throughput", systems, FEW, seeds=2, intervals=False)
    assert without.beats == {} and without.unclear == set()


def test_nor_is_it_in_a_sweep(tmp_path: Path) -> None:
    described = {
        "name": "board",
        "base": "kvswap/throughput",
        "axes": {"system": ["vllm", "kvswap"], "seed": [0, 1]},
    }
    (tmp_path / "study.yaml").write_text(json.dumps(described))
    found = sweep(tmp_path / "study.yaml", FEW, output=tmp_path / "out", jobs=1)
    (pair,) = found.summary["pairs"]
    assert pair.startswith("vllm beats kvswap at 2 of 2 points (100%; their 80 % intervals meet at 2), ")


def test_a_workload_that_has_no_use_for_a_runtime_refuses_it() -> None:
    with pytest.raises(InputError, match=r"runtime: is of decoding"):
        run("quickstart", {"runtime": "ideal"})

"""Where it is only assumed what software takes, figures have an interval, and an order that hangs on it is no claim."""

import json
from typing import Any

import pytest
from tiny import DECODING, TURNS, changed

from kvferry.api.comparison import Comparison, compare
from kvferry.api.result import run
from kvferry.specs.errors import InputError

BOARDS = ("jetson-agx-orin-kvswap", "jetson-agx-orin-64gb")


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
    """What a user gets who names them."""
    found = compared[BOARDS[1]]["kvswap"]
    ends = tuple(rate(BOARDS[1], runtime=name) for name in ("kvswap-prototype", "ideal"))
    assert found.intervals["throughput_tokens_per_s"] == pytest.approx(ends)
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
    assert any("is assumed on jetson-agx-orin-64gb: kvswap-prototype" in line for line in found.remarks)
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


def test_a_workload_that_has_no_use_for_a_runtime_refuses_it() -> None:
    with pytest.raises(InputError, match=r"runtime: is of decoding"):
        run("quickstart", {"runtime": "ideal"})

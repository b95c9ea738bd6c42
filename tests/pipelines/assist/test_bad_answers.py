"""Whatever a cloud answers, the device finishes, and says what was wrong."""

from typing import Any

import pytest

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.assist import service
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mask", 5),
        ("mask", b"\0"),
        ("tpot_s", "x"),
        ("tpot_s", None),
        ("tpot_s", float("nan")),
        ("tpot_s", -1.0),
        ("tpot_s", 1e6),
        ("tpot_s", True),
        ("token", {}),
        ("tokenizer", {}),
    ],
)
def test_a_value_that_is_none(key: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    good = service.first_answer
    monkeypatch.setattr(service, "first_answer", lambda *args, **more: good(*args, **more) | {key: value})
    found = load_scenario("pd_device/assist", ["workload.output=60"])
    run = run_scenario(found)
    assert run.outcome == "done"
    (note,) = run.notes
    assert f"what the cloud has sent is no answer: its {key} is" in note
    figures = metrics_for(found, run)
    assert figures["requests_finished"] == 1
    assert figures["largest_gap_s"] < 1

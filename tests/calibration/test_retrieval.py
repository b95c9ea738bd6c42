"""Ops of decoding with a retrieval head, measured in place: a small calibration that a scenario runs on."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvferry.calibration.calibrate import calibrate
from kvferry.calibration.decoding import Point, step_seconds
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.retrieval import OPS, retrieving
from kvferry.calibration.settings import Settings
from kvferry.machine.span import Span
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_device, load_scenario
from kvferry.specs.errors import InputError
from kvferry.traces.chunks import CHUNK_TOKENS

pytestmark = pytest.mark.torch

QUICK = Settings(model="tiny", random_weights=True, context=CHUNK_TOKENS, quick=True)


def test_waiting_for_copies_is_in_no_op() -> None:
    def ms(resource: str, label: str, start: float, end: float) -> Span:
        return Span(resource, label, start / 1e3, end / 1e3)

    spans = [
        ms("cpu", "OutputHead", 0, 10),
        ms("cpu", "Retrieve", 11, 14),
        # Compared until 16, when the first layer's copy is handed over; attention waits for it until 20.
        ms("cpu", "Bookkeep", 15, 15),
        ms("copy", "Copy", 16, 20),
        ms("cpu", "DecodeAttention", 21, 25),
        ms("cpu", "FeedForward", 25, 26),
        ms("cpu", "OutputHead", 26, 28),
    ]
    (only,) = step_seconds(spans)
    expected = {"Retrieve": 4, "Bookkeep": 2, "DecodeAttention": 5, "FeedForward": 1, "OutputHead": 2}
    assert {op: round(1e3 * s, 6) for op, s in only.items()} == expected


def test_every_op_was_measured_at_its_point() -> None:
    found = retrieving(Rig(QUICK), Point(2, 600, 32))
    assert [m.what for m in found] == list(OPS)
    heads = Rig(QUICK).spec.kv_heads
    assert all(m.at == {"batch": 2.0, "keys": 609.5, "context": 33.0, "blocks": 64.0 * heads} for m in found)
    assert all(len(m.values) == 6 and min(m.values) > 0 for m in found)


def test_a_scenario_is_priced_by_what_was_measured(tmp_path: Path) -> None:
    calibrate(QUICK, tmp_path, load_device("laptop-cpu"), parts=["retrieval", "dispatch"])
    described = {
        "name": "measured",
        "system": "specontext",
        "device": {"extends": str(tmp_path / "profile.yaml"), "storage": "nvme"},
        "model": str(tmp_path / "model.yaml"),
        "link": {"rate": "1 Gbit/s"},
        "workload": {"kind": "decode", "context": 1500, "output": 20},
        "policies": {"selected_tokens": 96},
        "budget": {"kv": "100 MiB"},
        "costs": "table",
    }
    run = run_scenario(load_scenario(described))
    assert run.outcome == "done"
    rows = (tmp_path / "measured" / "tiny" / "retrieve.csv").read_text().split()
    assert rows[0] == "keys,batch,seconds"


def test_both_ways_to_measure_a_step_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--parts: decode and retrieval measure the same ops"):
        calibrate(QUICK, tmp_path, load_device("laptop-cpu"), parts=["decode", "retrieval"])

"""KV that streams while it is measured."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

from kvferry.calibration import unplanned_load
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.settings import Settings
from kvferry.calibration.streamed_kv import streaming

pytestmark = pytest.mark.torch


def test_a_phase_has_a_piece_however_long_that_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine so busy that none comes in time: no seconds make no measurement, and its journal was refused."""
    monkeypatch.setattr(unplanned_load, "_WINDOW_S", 1e-6)
    rig = Rig(Settings(model="tiny", random_weights=True, quick=True))
    found = streaming(rig, tmp_path, "huffman", 256)
    assert [one.what for one in found] == ["decode huffman", "placing"]
    assert all(Measurement.from_json(one.to_json()) == one for one in found)

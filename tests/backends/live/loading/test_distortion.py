"""What an encoding loses of the KV of the model that runs."""

import numpy as np
import pytest

pytest.importorskip("torch")
from tiny import LIVE_LOADING, changed

from kvferry.backends.live.loading.distortion import relative_errors
from kvferry.codecs import codec
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario

pytestmark = pytest.mark.torch


def test_errors_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec that takes a tenth off all numbers loses a tenth; off the values alone, as large as the keys, less."""
    keys = values = np.ones((2, 4), np.float32)
    chunks = [((0, layer, 0), keys, values) for layer in range(2)]
    monkeypatch.setattr(codec, "encode", lambda name, k, v, level, depth: (k, v, level))
    monkeypatch.setattr(codec, "decode", lambda data: (data[0] * (0.9 if data[2] else 1.0), data[1] * 0.9))
    first, second, *_ = relative_errors(chunks, "cachegen", 2)
    assert first == pytest.approx(0.1 / 2**0.5) and second == pytest.approx(0.1)


def test_a_run_measures_its_own_model() -> None:
    run = run_scenario(load_scenario(changed(LIVE_LOADING)))
    assert run.outcome == "done", run.why
    errors = run.measured["kv_relative_errors"]
    assert len(errors) >= 1 and 0 < errors[0] < 0.5
    assert errors == sorted(errors)

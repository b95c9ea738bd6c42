"""Keys of a real run, recorded, have the modelled world do to clusters what the real one did."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import LIVE_PLAIN, changed

from kvferry.analysis.metrics import metrics_for
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.specs.errors import InputError
from kvferry.specs.scenario import Scenario
from kvferry.traces.key_recording import KeyRecording

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
CONTEXT, OUTPUT = 150, 30
POLICIES: dict[str, dict[str, Any]] = {
    "dynakv": {"group_tokens": 8, "selected_share": 0.3, "threshold": 0.8},
    "pqcache": {"group_tokens": 8, "selected_share": 0.3},
    "clusterkv": {"group_tokens": 8, "selected_share": 0.3, "window_tokens": 12, "window_clusters": 3},
    "no-cluster": {"selected_share": 0.3},
}


def scenario(system: str, **changes: Any) -> Scenario:
    described = LIVE_PLAIN | {"system": system, "policies": POLICIES[system]}
    described = changed(described, workload={"context": CONTEXT, "batch": 1, "output": OUTPUT})
    return load_scenario(changed(described, **changes))


@pytest.mark.parametrize("system", POLICIES)
def test_the_simulator_does_to_clusters_what_the_real_run_did(tmp_path: Path, system: str) -> None:
    path = tmp_path / "keys.npz"
    real = scenario(system, live={"record_keys": str(path)})
    live = run_scenario(real)
    modelled = scenario(system, backend="sim", live=None, workload={"recorded_keys": str(path)})
    simulated = run_scenario(modelled)
    recorded = KeyRecording.load(path)
    assert recorded.keys.shape == (3, 2, CONTEXT + OUTPUT - 1, 16)
    assert recorded.queries.shape == (3, 2, 2, CONTEXT + OUTPUT - 1, 16)
    figures = [metrics_for(one, run) for one, run in ((real, live), (modelled, simulated))]
    counted = (
        "reuse_rate",
        "access_entries",
        "access_entries_max",
        "space_overhead",
        "moved_bytes",
        "write_amplification",
    )
    found = [[of.get(name) for name in counted] for of in figures]
    assert found[0] == found[1]
    moves = [Counter(span.label for span in run.spans if span.resource == "storage") for run in (live, simulated)]
    assert moves[1]["Write"] == moves[0]["Write"] > 0
    # Each of these writes covers blocks in part: a read of its own here, within the write of a real disk.
    assert moves[1]["Read"] == moves[0]["Read"] + moves[0]["Write"]
    assert (found[0][1] is None) == (system == "no-cluster")
    if system != "no-cluster":
        # Other keys make other clusters.
        generated = scenario(system, backend="sim", live=None)
        assert metrics_for(generated, run_scenario(generated))["read_bytes"] != figures[1]["read_bytes"]


@pytest.mark.parametrize("paired_by", [0, 8])
def test_a_file_that_stands_for_a_device_moves_what_the_modelled_one_does(tmp_path: Path, paired_by: int) -> None:
    """In whole blocks of the device, with a read before each write that covers some in part; where pairs are made anew,
    too."""
    path, both = tmp_path / "keys.npz", {"device": {"storage": "ufs-4.0"}, "policies": {"paired_by": paired_by}}
    live = run_scenario(scenario("dynakv", **both, live={"paced": True, "record_keys": str(path)}))
    simulated = run_scenario(
        scenario("dynakv", **both, backend="sim", live=None, workload={"recorded_keys": str(path)})
    )
    # What is written behind the last token may have been told of or not.
    moves = [
        sorted(
            (span.label, span.n_bytes)
            for span in run.spans
            if span.resource == "storage" and span.start_s < run.requests[0].token_times_s[-1]
        )
        for run in (live, simulated)
    ]
    assert moves[0] == moves[1]
    assert {label for label, _ in moves[0]} == {"Read", "Write"}


def test_a_recording_that_is_too_short_is_refused(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    keys = random.normal(size=(3, 2, 60, 4)).astype(np.float32)
    KeyRecording(keys, keys[:, :, None]).save(path := tmp_path / "keys.npz")
    wanted = scenario("dynakv", backend="sim", live=None, workload={"recorded_keys": str(path)})
    with pytest.raises(InputError, match="workload.recorded_keys: 60 tokens were recorded, this run has 180"):
        run_scenario(wanted)


def test_keys_that_cannot_be_written_are_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"live.record_keys: {tmp_path} is a folder; name a file"):
        run_scenario(scenario("dynakv", live={"record_keys": str(tmp_path)}))

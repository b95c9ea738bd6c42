"""Ops of decoding with KV on storage, measured in place: by hand, and a small calibration that a scenario runs on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvferry.calibration import decoding
from kvferry.calibration.calibrate import calibrate
from kvferry.calibration.decoding import OPS, Point, grid, step_seconds
from kvferry.calibration.measured_model import Rig
from kvferry.calibration.measurement import Measurement
from kvferry.calibration.settings import Settings
from kvferry.calibration.tables import tables
from kvferry.machine.ops import Bookkeep, DecodeAttention, FeedForward, OutputHead, Select
from kvferry.machine.span import Span
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_device, load_scenario
from kvferry.sim.costs.cost_model import main_costs
from kvferry.traces.chunks import CHUNK_TOKENS

pytestmark = pytest.mark.torch

QUICK = Settings(model="tiny", random_weights=True, context=CHUNK_TOKENS, quick=True)


def test_what_lies_between_ops_is_in_the_op_after_it_and_waiting_for_reads_is_in_none() -> None:
    def ms(resource: str, label: str, start: float, end: float) -> Span:
        return Span(resource, label, start / 1e3, end / 1e3)

    spans = [
        ms("cpu", "PrefillLayer", 0, 50),
        ms("storage", "Write", 50, 90),
        ms("cpu", "OutputHead", 50, 60),
        # The write ends before the first step: it counts for no op, as the clock of decoding begins at 90.
        ms("cpu", "Select", 91, 94),
        # One layer: what was chosen is looked up until 97, and its read handed over at 98.
        ms("cpu", "Bookkeep", 97, 97),
        ms("storage", "Read", 98, 110),
        ms("cpu", "DecodeAttention", 112, 116),
        ms("cpu", "FeedForward", 117, 118),
        ms("cpu", "OutputHead", 118, 120),
        ms("cpu", "Select", 121, 124),
        ms("cpu", "Bookkeep", 126, 126),
        # What is read has arrived before attention could begin.
        ms("storage", "Read", 127, 128),
        ms("cpu", "DecodeAttention", 129, 133),
        ms("cpu", "FeedForward", 133, 135),
        ms("cpu", "OutputHead", 136, 138),
    ]
    first, second = step_seconds(spans)
    assert {op: round(1e3 * s, 6) for op, s in first.items()} == {
        # From the end of the write.
        "Select": 4,
        "Bookkeep": 4,
        "DecodeAttention": 6,
        "FeedForward": 2,
        "OutputHead": 2,
    }
    # Waiting for the read is the rest: from 127 to 128.
    assert sum(second.values()) == pytest.approx((138 - 120 - 1) / 1e3)
    assert second["Select"] == pytest.approx(4e-3)


def test_tables_are_what_was_measured_without_dispatch() -> None:
    def given(what: str, *values: float, **at: float) -> Measurement:
        return Measurement(what=what, unit="s", values=values, at=at)

    found = tables(
        [
            given("dispatch", 1e-3),
            *(given("select", 3e-3 * k * b, 5e-3 * k * b, keys=k, batch=b, units=7.0) for k in (1, 2) for b in (1, 3)),
            # Over one batch only: no axis.
            *(given("decode_attention", 2e-3 * c, context=c, batch=4.0) for c in (1, 2)),
            given("feed_forward", 1e-3, batch=4.0),
            given("output_head", 5e-4, batch=1.0),
            given("output_head", 9e-3, batch=2.0),
        ]
    )
    rows = {name: content.decode().split() for name, content in found.items()}
    assert rows["select.csv"][0] == "keys,batch,seconds"
    assert [float(row.split(",")[2]) for row in rows["select.csv"][1:]] == pytest.approx([3e-3, 11e-3, 7e-3, 23e-3])
    assert rows["decode_attention.csv"][0] == "context,seconds"
    assert "feed_forward.csv" not in rows
    # Never below nothing.
    assert [float(row.split(",")[1]) for row in rows["output_head.csv"][1:]] == pytest.approx([0, 8e-3])


def test_large_models_have_smaller_batches() -> None:
    rig = Rig(Settings(model="tiny", random_weights=True))
    everything = grid(rig)
    assert {point.batch for point in everything} == {1, 4, 16}
    assert Point(4, 8192, 384) in everything and Point(4, 4096, 128) in everything
    assert Point(4, 8192, 128) not in everything
    rig.spec = rig.spec.model_copy(update={"layers": 1000})  # type: ignore[misc]
    assert {point.batch for point in grid(rig)} == {1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("device")
    calibrate(QUICK, folder, load_device("laptop-cpu"), parts=["decode", "dispatch"])
    return folder


def scenario(folder: Path, **changes: Any) -> Any:
    described: dict[str, Any] = {
        "name": "measured",
        "system": "kvswap",
        "device": {"extends": str(folder / "profile.yaml"), "storage": "emmc"},
        "model": str(folder / "model.yaml"),
        "link": {"rate": "1 Gbit/s"},
        "workload": {"kind": "decode", "context": 1500, "output": 20},
        "policies": {"group_tokens": 8, "selected_tokens": 96, "compression": 8},
        "budget": {"kv": "100 MiB"},
        "costs": "table",
    }
    return load_scenario(described | changes)


def test_a_scenario_is_priced_by_what_was_measured(folder: Path) -> None:
    run = run_scenario(scenario(folder))
    assert run.outcome == "done"
    whole = scenario(folder)
    costs = main_costs("table", whole.device, whole.model)
    for name, op in {
        "select": Select(2, 256, 12, 0, 0, keys=2048),
        "bookkeep": Bookkeep(16),
        "decode_attention": DecodeAttention(2, 64 + 4.5, True),
        "feed_forward": FeedForward(2),
        "output_head": OutputHead(2),
    }.items():
        csv = (folder / "measured" / "tiny" / f"{name}.csv").read_text().split()
        *axes, _ = csv[0].split(",")
        rows = {tuple(map(float, row.split(",")[:-1])): float(row.split(",")[-1]) for row in csv[1:]}
        assert np.isfinite(list(rows.values())).all()
        wanted = {"keys": 2048.0, "batch": 2.0, "blocks": 16.0, "context": 68.5}
        assert costs.cost(op).duration_s == pytest.approx(rows[tuple(wanted[axis] for axis in axes)])


def test_the_file_is_gone_and_every_op_was_measured_everywhere(folder: Path, tmp_path: Path) -> None:
    assert not list(folder.glob("**/*.bin"))
    point = Point(2, 1024, 64)
    found = decoding.decoding(Rig(QUICK), tmp_path, point)
    assert [m.what for m in found] == list(OPS)
    assert all(m.at == {"batch": 2.0, "keys": 1024.0, "context": 68.5, "blocks": 16.0} for m in found)
    assert all(len(m.values) == 2 and min(m.values) > 0 for m in found)
    assert list(tmp_path.iterdir()) == []

"""What is read of the next layer while one computes (DynaKV 6.1): by hand, and where it lies in time."""

import numpy as np
import pytest

from kvferry.pipelines.decoding.delays import Delays
from kvferry.pipelines.decoding.systems import DECODE_SYSTEMS
from kvferry.pipelines.decoding.workload import plan_for
from kvferry.pipelines.run import run_scenario
from kvferry.policies.decode.read_ahead import ReadAhead
from kvferry.scenarios.loader import load_scenario

SMALL = ("model=tiny", "workload.context=256", "workload.output=160", "workload.decoded=20")


def test_reads_that_end_within_the_window_by_hand() -> None:
    # They end at 2 + 1, at 6 and at 12 s.
    limit = ReadAhead(window_s=6, command_s=2, byte_s=0.5)
    assert limit.fits(np.array([2, 2, 8])).tolist() == [True, True, False]


def test_the_window_is_what_a_layer_computes_once_its_kv_is_there() -> None:
    """A storage of 1 ms and 1 MB/s: a read of one block of 4 KiB takes 5.096 ms, and half a block belongs to each."""
    storage = "device.storage={model: curve, bytes_per_s: 1 MB/s, latency_s: 1 ms, block_bytes: 4 KiB}"
    scenario = load_scenario("dynakv/latency", [*SMALL, storage])
    plan = plan_for(scenario, DECODE_SYSTEMS["dynakv"])
    limit = plan.staying.ahead
    assert limit is not None and limit == Delays(scenario.device, scenario.model).read_ahead(plan)
    assert (limit.byte_s, limit.command_s) == pytest.approx((1e-6, 5.096e-3 - 2.048e-3))
    parts = plan.model.layers * [limit.window_s]
    assert 0 < sum(parts) < Delays(scenario.device, scenario.model).step_s(plan)
    assert plan_for(scenario, DECODE_SYSTEMS["pqcache"]).staying.ahead is None


@pytest.mark.parametrize(("residency", "reads"), [("virtual-cache", True), ("none", False)])
def test_the_first_layer_is_read_beside_the_output_head(residency: str, reads: bool) -> None:
    slow = "device.processors.cpu.efficiency.gemv=0.001"
    scenario = load_scenario("dynakv/latency", [*SMALL, slow, f"policies.residency={residency}"])
    run = run_scenario(scenario)
    of_last_layers = slice(scenario.model.layers - 1, None, scenario.model.layers)
    last = [span for span in run.spans if span.label == "DecodeAttention"][of_last_layers]
    heads = [span for span in run.spans if span.label == "OutputHead"][-len(last) :]
    began = [span.start_s for span in run.spans if span.label == "Read"]
    # From the last layer's attention to the end of the head; behind the last token nothing is to come.
    steps = [
        any(attention.start_s <= start_s < head.end_s for start_s in began)
        for attention, head in zip(last, heads, strict=True)
    ]
    assert any(steps) is reads and not steps[-1]

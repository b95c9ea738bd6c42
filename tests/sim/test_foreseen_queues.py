"""A processor and a storage by arithmetic, by hand."""

import pytest
import simpy

from kvferry.machine.span import Span
from kvferry.sim.cost import Cost
from kvferry.sim.foreseen_queues import ForeseenQueues
from kvferry.sim.processor import Processor
from kvferry.sim.storage_curve import CurveStorage
from kvferry.specs.device import ProcessorSpec
from kvferry.specs.storage import StorageSpec


def test_batches_one_behind_the_other_slow_what_is_computed_beside_them() -> None:
    env, spans = simpy.Environment(), list[Span]()
    spec = ProcessorSpec(kind="gpu", flop_per_s=1e9, bytes_per_s=1e9, dispatch_s=1.0)
    processor = Processor(env, "gpu", spec, lambda op: Cost(0.0), None, None, spans.append)
    storage = CurveStorage(
        env, StorageSpec(bytes_per_s=1.0, latency_s=0.0, queue_depth=1, block_bytes=1, duplex="half"), spans.append
    )
    queues = ForeseenQueues(processor, storage, beside=0.5)
    # The second has to wait for the first, the third begins after a pause.
    assert [queues.batch(label, after_s, 2.0, 20.0) for label, after_s in [("Read", 1), ("Write", 2), ("Read", 8)]] == [
        3.0,
        5.0,
        10.0,
    ]
    # Dispatched at 1 s, it has done 2 s of its work when the storage is idle, 5 s at 8 s, and the last at 10 s.
    assert queues.op("Decode", 0.0, 6.0, 40.0) == 10.0
    env.run(until=7.0)
    queues.record(env.now)
    assert [(span.label, span.start_s, span.end_s, span.n_bytes) for span in spans] == [
        ("Read", 1.0, 3.0, 20.0),
        ("Write", 3.0, 5.0, 20.0),
    ]
    assert storage.busy.busy_s(0.0, 7.0) == pytest.approx(4.0)
    env.run(until=12.0)
    queues.record(env.now)
    assert sorted((span.label, span.end_s) for span in spans[2:]) == [("Decode", 10.0), ("Read", 10.0)]
    assert storage.busy.busy_s(0.0, 12.0) == pytest.approx(6.0)


def test_what_ends_in_a_pause_of_the_storage_is_slowed_before_it_alone() -> None:
    env, spans = simpy.Environment(), list[Span]()
    spec = ProcessorSpec(kind="gpu", flop_per_s=1e9, bytes_per_s=1e9, dispatch_s=0.0)
    processor = Processor(env, "gpu", spec, lambda op: Cost(0.0), None, None, spans.append)
    storage = CurveStorage(env, StorageSpec(bytes_per_s=1.0, latency_s=0.0, queue_depth=1, block_bytes=1), spans.append)
    queues = ForeseenQueues(processor, storage, beside=0.5)
    assert queues.batch("Read", 3.0, 2.0, 20.0) == 5.0
    # 3 s of it are done before the read begins, one beside it, and the rest behind it.
    assert queues.op("Decode", 0.0, 4.25, 40.0) == 5.25

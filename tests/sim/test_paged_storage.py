"""A file behind a page cache: what faults, what is dropped, and how long it takes, by hand."""

import numpy as np
import pytest
import simpy

from kvferry.analysis.metrics import metrics_for
from kvferry.machine.ops import Extents
from kvferry.machine.span import Span
from kvferry.pipelines.run import run_scenario
from kvferry.scenarios.loader import load_scenario
from kvferry.sim.paged_storage import MOST_RUNS, READ_AHEAD_BYTES, PageCache, PagedStorage
from kvferry.specs.storage import StorageSpec

RUN = READ_AHEAD_BYTES


def runs(*numbers: int) -> Extents:
    """4 KiB in each of these runs of pages."""
    return Extents(np.array(numbers) * RUN + 4096, np.full(len(numbers), 4096))


def test_what_was_used_longest_ago_goes_first() -> None:
    cache = PageCache(10 * RUN, 3 * RUN)
    assert cache.use(runs(0, 1, 2)) == ([0, 1, 2], [0, 1, 2])
    # 0 is used again, so 1 goes for 3, and 2 for 1.
    assert cache.use(runs(0, 3, 1)) == ([0, 3, 1], [3, 1])
    assert cache.use(runs(0)) == ([0], [])
    assert cache.held_bytes == 3 * RUN


def test_reading_all_again_and_again_finds_nothing_unless_all_fits() -> None:
    whole = Extents((0,), (4 * RUN,))
    for most, found in ((3, 4), (4, 0)):
        cache = PageCache(4 * RUN, most * RUN)
        cache.use(whole)
        assert len(cache.use(whole)[1]) == found


def test_runs_of_a_large_file_are_longer_and_come_a_read_ahead_at_a_time() -> None:
    cache = PageCache(2 * MOST_RUNS * RUN, 8 * RUN)
    assert cache.run_bytes == 2 * RUN
    _, faults = cache.use(Extents((0, 9 * RUN), (2 * RUN, 1)))
    assert list(cache.commands(faults)) == [(0, RUN), (RUN, RUN), (8 * RUN, RUN), (9 * RUN, RUN)]


def test_faults_come_one_after_the_other() -> None:
    # 1 ms for a command and 128 KiB at 131 MB/s: 2 ms a fault, alone or not.
    spec = StorageSpec(bytes_per_s=RUN / 1e-3, latency_s=1e-3, duplex="half")
    env, spans = simpy.Environment(), list[Span]()
    storage = PagedStorage(env, spec, spans.append, file_bytes=10 * RUN, most_bytes=2 * RUN)
    tickets = [storage.write(runs(0)), storage.read(runs(0, 1)), storage.read(runs(2, 3)), storage.read(runs(3))]
    env.run()
    # Run 0 is written; 1 faults behind it, then 2 and 3.
    assert [ticket.end_s for ticket in tickets] == pytest.approx([2e-3, 4e-3, 8e-3, 8e-3])
    moved = {label: sum(span.n_bytes for span in spans if span.label == label) for label in ("Read", "Write")}
    assert moved == {"Read": 3 * RUN, "Write": RUN}


@pytest.mark.parametrize("held", [1, 4])
def test_as_much_is_written_however_much_memory_there_is(held: int) -> None:
    env, spans = simpy.Environment(), list[Span]()
    spec = StorageSpec(bytes_per_s=RUN / 1e-3, latency_s=1e-3, duplex="half")
    storage = PagedStorage(env, spec, spans.append, file_bytes=10 * RUN, most_bytes=held * RUN)
    storage.write(runs(0, 1, 2))
    storage.read(runs(2))
    env.run()
    # Three writes; what was written last is there still.
    moved = {label: sum(span.n_bytes for span in spans if span.label == label) for label in ("Read", "Write")}
    assert moved == {"Read": 0, "Write": 3 * RUN}


def test_paging_is_slower_than_reading_the_same_in_long_reads() -> None:
    settings = ["workload.context=4Ki", "workload.batch=1", "workload.output=4", "workload.decoded=null"]
    paged, read = (
        load_scenario("kvswap/throughput", [f"system={system}", *settings]) for system in ("os-paging", "flexgen")
    )
    paged_figures, read_figures = (metrics_for(one, run_scenario(one)) for one in (paged, read))
    assert paged_figures["tpot_s"] > 1.5 * read_figures["tpot_s"]
    # Nothing is found in memory of what was read a token before.
    assert paged_figures["read_bytes"] >= read_figures["read_bytes"]

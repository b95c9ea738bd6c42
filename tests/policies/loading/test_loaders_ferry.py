"""Ferry, and what it is made of, followed by hand."""

import math
from dataclasses import replace
from unittest.mock import Mock, patch

import numpy as np
import pytest

from kvferry.policies.loading.ferry import Ferry, needed_streams
from kvferry.policies.loading.loader import LoadFacts
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.throughput import Throughput

FACTS = LoadFacts(now_s=0.0, planned_bytes_per_s=1.0, rtt_s=0.0)


def problem(compute_s: object, stream_bytes: object, coupling: Coupling = "all_heads") -> LoadProblem:
    """One column per token chunk: [T][L] lists."""
    compute, stream = np.array(compute_s, dtype=float), np.array(stream_bytes, dtype=float)
    return LoadProblem(compute_s=compute[:, :, None], stream_bytes=stream[:, :, None], coupling=coupling)


class World:
    """Asks a loader and keeps the progress, as the pipeline would; nothing finishes by itself."""

    def __init__(self, load: LoadProblem, loader: Ferry, facts: LoadFacts = FACTS) -> None:
        self.load, self.loader, self.facts = load, loader, facts
        self.progress = LoadProgress(load)
        loader.start(load, facts)

    def compute(self) -> int | None:
        wanted = self.loader.next_compute(self.progress, self.facts)
        if wanted is None:
            return None
        assert self.progress.computable(wanted.units[0])
        self.progress.hand_over_compute(wanted.units[0])
        return wanted.units[0]

    def stream(self) -> int | None:
        wanted = self.loader.next_stream(self.progress, self.facts)
        if wanted is None:
            return None
        (unit,) = wanted.units
        self.progress.hand_over_stream(unit, self.load.stream_bytes.ravel()[unit])
        return unit


# --- needed streams -------------------------------------------------------------------------------------------------


def mask(rows: list[list[int]]) -> np.ndarray:
    return np.array(rows, dtype=bool)[:, :, None]


def test_what_planned_units_attend_to_is_needed_with_all_above_it() -> None:
    load = problem(np.ones((3, 3)), np.ones((3, 3)), "per_head")
    # Chunk 1 is to be computed up to layer 1, which attends to layers 0 and 1 of chunk 0. Of that nothing is
    # there: the whole column comes, from the top down. No chunk needs chunk 2.
    planned = mask([[0, 0, 0], [1, 1, 0], [0, 0, 0]])
    absent = mask([[1, 1, 1], [1, 1, 1], [1, 1, 1]])
    assert needed_streams(load, planned, absent).tolist() == [2, 1, 0]
    # Layer 1 of chunk 0 planned too, layer 0 there: nothing is needed.
    assert needed_streams(load, mask([[0, 1, 0], [1, 1, 0], [0, 0, 0]]), mask([[0, 1, 1]] + [[1, 1, 1]] * 2)).size == 0


def test_nobody_attends_to_the_last_layer() -> None:
    couplings: tuple[Coupling, ...] = ("per_head", "all_heads")
    for coupling in couplings:
        load = problem(np.ones((2, 2)), np.ones((2, 2)), coupling)
        assert needed_streams(load, mask([[1, 0], [1, 1]]), mask([[1, 1], [1, 1]])).size == 0


def test_all_heads_attends_one_layer_below() -> None:
    load = problem(np.ones((2, 3)), np.ones((2, 3)))
    # (1, 1) attends to (0, 0) alone; computing only (1, 0) attends to nothing.
    absent = np.ones((2, 3, 1), dtype=bool)
    assert needed_streams(load, mask([[0, 0, 0], [1, 0, 0]]), absent).tolist() == []
    assert needed_streams(load, mask([[0, 0, 0], [1, 1, 0]]), absent).tolist() == [2, 1, 0]


def test_heads_need_only_their_own() -> None:
    ones = np.ones((2, 2, 2))
    load = LoadProblem(compute_s=ones, stream_bytes=ones, coupling="per_head")
    planned = np.zeros((2, 2, 2), dtype=bool)
    planned[1, 0, 1] = True
    # Units are (2 t + l) 2 + c: head 1 of chunk 0, layer 1 then layer 0.
    assert needed_streams(load, planned, np.ones((2, 2, 2), dtype=bool)).tolist() == [3, 1]


# --- throughput -----------------------------------------------------------------------------------------------------


def test_throughput_forgets_what_was_expected() -> None:
    seen = Throughput(10.0, memory_s=1.0, least_per_s=0.1)
    seen.look(0.0, 0.0, True)
    seen.look(0.04, 3.0, True)  # within a step: nothing yet
    assert seen.per_s == 10.0
    # After 1 s at 4/s, 1/e of the expectation is left: 4 + (10 - 4) / e.
    seen.look(1.0, 4.0, True)
    assert seen.per_s == pytest.approx(4 + 6 / math.e)


def test_throughput_looks_away_while_nothing_is_to_be_done() -> None:
    seen = Throughput(10.0, memory_s=1.0, least_per_s=0.1)
    seen.look(0.0, 0.0, True)
    seen.look(1.0, 0.0, False)  # idle for some of it
    seen.look(5.0, 0.0, True)
    assert seen.per_s == 10.0
    seen.look(6.0, 0.0, True)  # an outage: busy, and nothing came
    assert seen.per_s == pytest.approx(10 / math.e)


# --- ferry ----------------------------------------------------------------------------------------------------------


def test_the_paths_meet_in_the_order_of_worth() -> None:
    # Independent of each other (one layer); seconds per byte 1, 4, 2, 3: order 0, 2, 3, 1.
    world = World(problem([[1], [4], [2], [3]], [[1], [1], [1], [1]]), Ferry())
    assert [world.compute(), world.stream(), world.compute(), world.stream()] == [0, 1, 2, 3]
    assert (world.compute(), world.stream()) == (None, None)


def test_the_link_brings_first_what_the_processor_waits_for() -> None:
    # Chunk 0 is dear to compute, chunk 1 cheap, chunk 2 dearest; 3 of 9 bytes are best computed: chunk 1.
    # Its layers 1 and 2 attend to chunk 0, so that goes before chunk 2, from the top down.
    load = problem([[9, 9, 9], [3, 1, 1], [10, 10, 10]], np.ones((3, 3)))
    world = World(load, Ferry())
    assert [world.stream() for _ in range(4)] == [2, 1, 0, 8]
    assert world.compute() == 3
    chain = World(load, Ferry(needed_first=False))
    assert [chain.stream() for _ in range(3)] == [8, 7, 6]


def test_without_work_that_pays_the_processor_takes_what_it_can() -> None:
    load = problem([[9, 9, 9], [3, 1, 1], [10, 10, 10]], np.ones((3, 3)))
    world = World(load, Ferry())
    # (1, 1) waits for (0, 0); until that comes, the least bad is computed.
    assert [world.compute(), world.compute()] == [3, 0]
    assert world.compute() == 4


@patch.object(Ferry, "_plan", autospec=True, side_effect=Ferry._plan)
def test_a_faster_link_makes_a_new_guess(plan: Mock) -> None:
    load = problem(np.ones((4, 2)), np.ones((4, 2)))
    world = World(load, Ferry())
    assert plan.call_count == 1
    world.stream()
    world.loader.next_stream(world.progress, LoadFacts(0.1, 1.0, 0.0))
    world.progress.streamed_bytes = 20.0
    world.loader.next_stream(world.progress, LoadFacts(0.6, 1.0, 0.0))
    assert plan.call_count == 2


def test_the_processor_races_the_link_for_what_comes_last() -> None:
    # The link takes chunk 1, the processor chunk 0. Free again, it would have chunk 1 after 2 s, the link after 5 s.
    world = World(problem([[1], [2]], [[4], [5]]), Ferry())
    assert [world.stream(), world.compute()] == [1, 0]
    world.progress.computed(0)
    assert world.compute() == 1
    assert world.compute() is None


def test_no_race_that_the_processor_would_lose() -> None:
    # Chunk 1 would take it 6 s.
    world = World(problem([[1], [6]], [[4], [5]]), Ferry())
    assert [world.stream(), world.compute(), world.compute()] == [1, 0, None]


def test_the_link_races_the_processor() -> None:
    # The processor has taken both, 2 s and 9 s. The link, asked then, has the second after 5 s.
    world = World(problem([[2], [9]], [[4], [5]]), Ferry())
    assert [world.compute(), world.compute()] == [0, 1]
    assert world.stream() == 1
    assert world.stream() is None


def test_the_link_races_the_unit_that_runs_while_another_waits() -> None:
    # The processor runs the first, 9 s, and the second, 4 s, waits. The link would have the second after 1 of 13 s, and
    # behind it the first after 1 + 5 of 9 s.
    world = World(problem([[9], [4]], [[5], [1]]), Ferry())
    assert [world.compute(), world.compute()] == [0, 1]
    assert [world.stream(), world.stream(), world.stream()] == [1, 0, None]


def test_no_race_before_the_processor_has_started() -> None:
    # As in the first race, but the processor starts for 4 s more: chunk 1 after 4 + 2 s, by the link after 5.
    late = replace(FACTS, processor_from_s=4.0)
    world = World(problem([[1], [2]], [[4], [5]]), Ferry(), late)
    assert [world.stream(), world.compute()] == [1, 0]
    world.progress.computed(0)
    assert world.compute() is None


def test_the_link_races_what_waits_for_the_processors_start() -> None:
    # Chunk 0 would be computed after 2 s, or after 8 + 2 s; the link, asked for both, has them after 9 s.
    for late, raced in ((FACTS, None), (replace(FACTS, processor_from_s=8.0), 0)):
        world = World(problem([[2], [9]], [[4], [5]]), Ferry(), late)
        assert [world.compute(), world.stream()] == [0, 1]
        assert world.stream() == raced


def test_a_starting_processor_is_not_taken_for_a_slow_one() -> None:
    world = World(problem([[1], [90]], [[9], [9]]), Ferry(), replace(FACTS, processor_from_s=3.0))
    speed = world.loader._processor.per_s
    assert world.compute() == 0
    for now_s in (1.0, 2.0):
        world.loader._look(world.progress, replace(FACTS, processor_from_s=3.0, now_s=now_s))
    assert world.loader._processor.per_s == speed


def test_an_idle_processor_is_not_taken_for_a_slow_one() -> None:
    # 0.1 + 0.2 - 0.1 - 0.2 is not zero: the sum of the work under way must be, or idle time would count as work.
    world = World(problem([[0.1], [0.2], [90]], [[9], [9], [9]]), Ferry())
    assert (world.compute(), world.compute()) == (0, 1)
    world.progress.computed(0)
    world.progress.computed(1)
    speed = world.loader._processor.per_s
    world.facts = LoadFacts(now_s=50.0, planned_bytes_per_s=1.0, rtt_s=0.0)
    world.loader._look(world.progress, world.facts)
    world.loader._look(world.progress, LoadFacts(now_s=100.0, planned_bytes_per_s=1.0, rtt_s=0.0))
    assert world.loader._processor.per_s == speed

"""Loads over three paths: what lies on local storage is read beside computing and streaming."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from machines import TimedMachine

from kvferry.machine.ops import Chunks, Extents, KvRef, Op
from kvferry.pipelines.loading.context import Context
from kvferry.pipelines.loading.load import ContextLoad
from kvferry.pipelines.loading.outlook import Outlook
from kvferry.pipelines.loading.pace import Pace
from kvferry.policies.loading.ferry import Ferry
from kvferry.policies.loading.ferry_three_way import ThreeWayFerry
from kvferry.policies.loading.loader import LoadFacts, Read, Stream
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.three_way import three_way_bound_s
from kvferry.specs.model import ModelSpec

UNIT_BYTES = 1000


class Steady(TimedMachine):
    """An op takes 1 s, a byte of the link and of storage 1 ms each; copies are free."""

    def __init__(self, link: float = 1.0, storage: float = 1.0) -> None:
        super().__init__(bytes_per_s=UNIT_BYTES * storage)
        self._link_bytes_per_s = UNIT_BYTES * link

    def seconds(self, on: str, asked: Op | Chunks | KvRef) -> float:
        if isinstance(asked, Chunks):
            return asked.n_bytes / self._link_bytes_per_s
        return 1.0 if on == "compute" else 0.0


def context_of(shape: tuple[int, int, int], coupling: Coupling = "per_head") -> Context:
    t, l, h = shape
    model = ModelSpec(
        name="small", layers=l, hidden=8, query_heads=h, kv_heads=h, head_dim=4, ffn=8, vocabulary=8, source="test"
    )
    return Context(
        sequence=0,
        model=model,
        coupling=coupling,
        tokens=np.full(t, 4),
        active_blocks=np.ones(shape, dtype=int),
        encoded_bytes=np.full(shape, float(UNIT_BYTES)),
    )


def problem_of(context: Context, readable: np.ndarray) -> LoadProblem:
    n_bytes = np.where(readable, float(UNIT_BYTES), np.inf)
    ones = np.ones(context.active_blocks.shape)
    return LoadProblem(compute_s=ones, stream_bytes=UNIT_BYTES * ones, coupling=context.coupling, read_bytes=n_bytes)


def extents_of(units: tuple[int, ...]) -> Extents:
    return Extents([unit * UNIT_BYTES for unit in units], [UNIT_BYTES] * len(units))


def loaded(
    machine: Steady,
    context: Context,
    problem: LoadProblem,
    loader: Ferry | ThreeWayFerry,
    planned_bytes_per_s: float | None = None,
) -> ContextLoad:
    planned_bytes_per_s = planned_bytes_per_s or machine._link_bytes_per_s
    outlook = Outlook(bytes_per_s=planned_bytes_per_s, rtt_s=0.0, read_bytes_per_s=machine._bytes_per_s)
    pace = Pace(compute_ahead=1, reads_ahead=1, window_s=1.0)
    load = ContextLoad(machine, context, problem, loader, request=0, outlook=outlook, pace=pace, local=extents_of)
    machine.env.run(until=load.done)
    return load


def test_three_like_paths_bring_a_third_each() -> None:
    # Twelve units of 1 s on every path: 4 s, where two paths need 6.
    context = context_of((6, 2, 1))
    problem = problem_of(context, np.ones((6, 2, 1), bool))
    machine = Steady()
    load = loaded(machine, context, problem, ThreeWayFerry())
    assert (load.arrivals.units_computed, load.arrivals.units_streamed, load.arrivals.units_read) == (4, 4, 4)
    assert machine.env.now == pytest.approx(4.0)
    loaded(two := Steady(), context, replace(problem, read_bytes=None), Ferry())
    assert two.env.now == pytest.approx(6.0)


def test_what_does_not_lie_on_storage_is_not_read() -> None:
    readable = np.zeros((6, 2, 1), bool)
    readable[0] = True
    load = loaded(
        Steady(storage=100.0), context_of((6, 2, 1)), problem_of(context_of((6, 2, 1)), readable), ThreeWayFerry()
    )
    assert load.arrivals.units_read == 2
    assert load.arrivals.units_computed + load.arrivals.units_streamed == 10


def test_what_a_slow_transfer_still_carries_is_read_once() -> None:
    # The link is planned with as a hundred thousand times as fast as it is: its transfers carry several units, and
    # storage has each of them sooner. Those that are there stay under way until the transfer's last one is.
    context = context_of((40, 2, 1))
    problem = problem_of(context, np.ones((40, 2, 1), bool))
    machine = Steady(link=1e-3)
    load = loaded(machine, context, problem, ThreeWayFerry(), planned_bytes_per_s=100 * UNIT_BYTES)
    assert load.arrivals.units_read + load.arrivals.units_computed == 80
    # Two paths bring one unit a second each.
    assert machine.env.now < 45
    assert load.progress.read_bytes == load.arrivals.units_read * UNIT_BYTES


def test_what_lies_above_a_unit_that_came_by_another_path_is_brought_not_left_to_the_processor() -> None:
    # Computing both layers takes 2 s, the link 10 s for one. Storage has layer 0 after 1 s, which ends the column.
    context = context_of((1, 2, 1))
    problem = problem_of(context, np.array([[[True], [False]]]))
    loader, progress = ThreeWayFerry(), LoadProgress(problem)
    facts = LoadFacts(now_s=0.0, planned_bytes_per_s=100.0, rtt_s=0.0, planned_read_bytes_per_s=1000.0)
    loader.start(problem, facts)
    assert loader.next_stream(progress, facts) is None
    assert loader.next_read(progress, facts) == Read((0,))
    progress.hand_over_read(0, UNIT_BYTES)
    assert loader.next_stream(progress, facts) is None
    progress.read(0, UNIT_BYTES)
    assert loader.next_compute(progress, facts) is None
    assert loader.next_stream(progress, facts) == Stream((1,))


@example(seed=1, coupling="per_head", link=0.1, storage=1.0, stored=0.5)
@given(
    seed=st.integers(0, 10**6),
    coupling=st.sampled_from(["per_head", "all_heads"]),
    link=st.sampled_from([0.1, 1.0, 10.0]),
    storage=st.sampled_from([0.1, 1.0, 10.0]),
    stored=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_a_load_completes_with_each_unit_once_and_never_below_the_bound(
    seed: int, coupling: Coupling, link: float, storage: float, stored: float
) -> None:
    shape = (4, 3, 1)
    context = context_of(shape, coupling)
    problem = problem_of(context, np.random.default_rng(seed).random(shape) < stored)
    load = loaded(machine := Steady(link, storage), context, problem, ThreeWayFerry())
    assert load.progress.complete
    assert load.arrivals.units_computed + load.arrivals.units_streamed + load.arrivals.units_read == problem.units
    if coupling == "per_head":
        least_s = three_way_bound_s(problem, UNIT_BYTES * link, UNIT_BYTES * storage)
        assert machine.env.now >= least_s * (1 - 1e-9)

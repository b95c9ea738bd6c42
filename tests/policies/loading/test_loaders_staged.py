"""Plans carried out, and the runtime controller's decisions, followed by hand.

Two token chunks of two layers, every unit 1 s or 1 byte, the link at 1 byte/s. Unit (t, l) is 2 t + l.
"""

import numpy as np
import pytest

from kvferry.policies.loading.assignment import Assignment
from kvferry.policies.loading.loader import LoadFacts
from kvferry.policies.loading.plan import Plan, Stage
from kvferry.policies.loading.problem import Coupling, LoadProblem
from kvferry.policies.loading.progress import LoadProgress
from kvferry.policies.loading.ready import Ready
from kvferry.policies.loading.staged import SCHEDULES, Staged
from kvferry.specs.errors import InputError

FACTS = LoadFacts(now_s=0.0, planned_bytes_per_s=1.0, rtt_s=0.0)


def square(coupling: Coupling = "per_head") -> LoadProblem:
    ones = np.ones((2, 2, 1))
    return LoadProblem(compute_s=ones, stream_bytes=ones, coupling=coupling)


class World:
    """Asks a loader and keeps the progress, as the pipeline would; nothing finishes by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *stages: Stage, coupling: Coupling = "per_head", **settings):  # type: ignore[no-untyped-def]
        monkeypatch.setitem(SCHEDULES, "by hand", lambda problem, rate: Plan(stages))
        self.load = square(coupling)
        self.progress = LoadProgress(self.load)
        self.loader = Staged("by hand", **settings)
        self.loader.start(self.load, FACTS)

    def compute(self, facts: LoadFacts = FACTS) -> int | None:
        wanted = self.loader.next_compute(self.progress, facts)
        if wanted is None:
            return None
        assert self.progress.computable(wanted.units[0])
        self.progress.hand_over_compute(wanted.units[0])
        return wanted.units[0]

    def stream(self, facts: LoadFacts = FACTS) -> int | None:
        wanted = self.loader.next_stream(self.progress, facts)
        if wanted is None:
            return None
        self.progress.hand_over_stream(wanted.units[0], 1.0)
        return wanted.units[0]


def test_a_strict_plan_opens_a_stage_when_the_last_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, Stage((0,), (3,)), Stage((1,), (2,)), adapt=False)
    assert world.stream() == 3
    assert world.stream() is None  # the processor has not got unit 0 yet
    assert world.compute() == 0
    assert world.stream() == 2
    assert world.compute() == 1
    assert (world.compute(), world.stream()) == (None, None)


def test_compute_waits_for_streamed_units_and_takes_what_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    # Unit 2, (1, 0), attends to unit 0, which is streamed.
    world = World(monkeypatch, Stage((2, 3), (0, 1)), adapt=False)
    assert world.stream() == 0
    assert world.compute() is None
    world.progress.streamed(0, 1.0)
    assert [world.compute(), world.compute()] == [2, 3]


def test_the_link_prefetches_one_stage_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stage((0, 1)), Stage((), (3,)), Stage((), (2,))
    assert World(monkeypatch, *stages, adapt=False).stream() is None
    world = World(monkeypatch, *stages, migration_limit=0.0)
    assert world.stream() == 3
    assert world.stream() is None  # the stage after next stays closed


def test_the_link_takes_over_from_the_tail_while_that_is_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, Stage((0, 2, 1, 3)), migration_limit=1.0)
    assert world.compute() == 0
    # Unit 3: the link has it at 1 s, the processor at 4 s. Unit 1: 2 s against 3 s. Unit 2: 3 s against 2 s.
    assert [world.stream(), world.stream(), world.stream()] == [3, 1, None]
    assert world.compute() == 2
    assert world.compute() is None


def test_a_slow_processor_gives_more_away(monkeypatch: pytest.MonkeyPatch) -> None:
    # At half its speed the processor would have unit 2 at 4 s.
    contended = LoadFacts(0.0, 1.0, 0.0, compute_speed=0.5)
    world = World(monkeypatch, Stage((0, 2, 1, 3)), migration_limit=1.0)
    world.compute(contended)
    assert [world.stream(contended) for _ in range(3)] == [3, 1, 2]


def test_migrations_are_limited_per_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, Stage((0, 2, 1, 3)), migration_limit=0.25)
    assert [world.stream(), world.stream()] == [3, None]


def test_what_lies_above_a_migrated_unit_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Unit 2 goes to the link; unit 3, above it in the next stage, cannot be computed any more.
    world = World(monkeypatch, Stage((0, 2)), Stage((1, 3)), migration_limit=0.5)
    assert world.stream() == 2
    assert [world.compute(), world.compute(), world.compute()] == [0, 1, None]
    assert world.stream() == 3
    assert world.loader.controller is not None and world.loader.controller._migrated == 1  # it is no second one


def test_a_fast_processor_computes_what_was_left_to_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, Stage((0,), (3, 2, 1)), migration_limit=1.0)
    assert [world.stream(), world.compute()] == [3, 0]
    # Units 1 and 2 are ready; 1 would be streamed last, at 3 s, and is computed at 2 s.
    assert world.compute() == 1
    # Unit 2: streamed at 2 s, computed at 3 s. The link keeps it.
    assert world.compute() is None
    # Unless the link has slowed down: 2 bytes at 0.5 bytes/s.
    assert world.compute(LoadFacts(0.0, 1.0, 0.0, goodput_bytes_per_s=0.5)) == 2
    assert world.stream() is None


def test_an_idle_processor_goes_on_to_the_next_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stage((0,), (3,)), Stage((1, 2), ())
    assert [World(monkeypatch, *stages, adapt=False).compute() for _ in range(1)] == [0]
    world = World(monkeypatch, *stages, migration_limit=0.0)
    assert [world.compute(), world.compute(), world.compute()] == [0, 1, 2]
    strict = World(monkeypatch, *stages, adapt=False)
    assert [strict.compute(), strict.compute()] == [0, None]


def test_unknown_schedules_and_limits_are_refused() -> None:
    with pytest.raises(InputError, match="greedy-literal"):
        Staged("greedy-litteral")
    with pytest.raises(ValueError, match="0 to 1"):
        Staged(migration_limit=2)


# --- the books ----------------------------------------------------------------------------------------------------


def test_an_assignment_counts_what_is_left() -> None:
    work = Assignment(Plan((Stage((0, 1), (2, 3)),)), square())
    work.take(0)
    assert (work.left, work.left_compute_s, work.left_stream_bytes) == ([3], [1.0], [2.0])
    work.give_to_link(1)
    assert (work.left, work.left_compute_s, work.left_stream_bytes) == ([3], [0.0], [3.0])
    assert list(work.to_stream[0]) == [2, 3, 1]


def test_ready_tells_what_changed() -> None:
    progress = LoadProgress(square())
    ready = Ready(square())
    assert ready.news(progress) == [0]
    progress.hand_over_compute(0)
    assert sorted(ready.news(progress)) == [1, 2]  # the layer above, and the next chunk at this layer
    assert ready.news(progress) == []
    progress.hand_over_stream(2, 1.0)
    assert ready.news(progress) == []
    progress.streamed(2, 1.0)
    assert ready.news(progress) == []  # the last chunk: none waits for it


def test_a_processor_that_starts_is_sooner_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    # Unit 1 comes at 3 s. Behind a start of 2 s it would be computed at 4 s, and the link keeps it.
    starting = LoadFacts(0.0, 1.0, 0.0, processor_from_s=2.0)
    world = World(monkeypatch, Stage((0,), (3, 2, 1)), migration_limit=1.0)
    assert [world.stream(starting), world.compute(starting)] == [3, 0]
    assert world.compute(starting) is None
    # And the link takes from the tail what it brings before the processor has started.
    world = World(monkeypatch, Stage((0, 2, 1, 3)), migration_limit=1.0)
    world.compute(starting)
    assert [world.stream(starting) for _ in range(3)] == [3, 1, 2]


# --- what is overdue ------------------------------------------------------------------------------------------------


def test_what_the_link_was_to_have_brought_may_be_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    # The link has units 1, 2 and 3 under way, due at 1, 2 and 3 s, and brings a tenth of that: all of it by 30 s. The
    # processor has done unit 0 at 1 s, and needs 1 s for each.
    world = World(monkeypatch, Stage((0,), (1, 2, 3)), compute_overdue=True)
    as_published = World(monkeypatch, Stage((0,), (1, 2, 3)))
    for one in (world, as_published):
        assert [one.stream(), one.stream(), one.stream(), one.compute()] == [1, 2, 3, 0]
        one.progress.computed(0)
    late = [LoadFacts(now_s, 1.0, 0.0, goodput_bytes_per_s=0.1) for now_s in (1.0, 1.5, 1.6, 2.5, 3.5)]
    # At 1 s unit 1 is due this moment; at 1.6 s unit 2, the next that could be computed, is not due yet.
    assert [world.compute(facts) for facts in late] == [None, 1, None, 2, 3]
    assert [as_published.compute(facts) for facts in late] == [None] * 5


def test_what_is_overdue_is_waited_for_where_the_link_is_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, Stage((0,), (1, 2, 3)), compute_overdue=True)
    assert [world.stream(), world.stream(), world.stream(), world.compute()] == [1, 2, 3, 0]
    world.progress.computed(0)
    # Three bytes at 4 bytes/s: there before the processor has computed one more unit.
    assert world.compute(LoadFacts(3.5, 1.0, 0.0, goodput_bytes_per_s=4.0)) is None


def test_what_is_overdue_and_waits_for_the_link_is_not_streamed_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    # No unit may migrate; those that the link has not been given are overdue like those under way.
    world = World(monkeypatch, Stage((0,), (1, 2, 3)), migration_limit=0.0, compute_overdue=True)
    assert [world.stream(), world.compute()] == [1, 0]
    world.progress.computed(0)
    stalled = LoadFacts(9.0, 1.0, 0.0, goodput_bytes_per_s=0.0)
    assert [world.compute(stalled), world.compute(stalled)] == [1, 2]
    assert [world.stream(stalled), world.stream(stalled)] == [3, None]
    assert world.loader._work.left == [0]  # the stage is handed over
    assert world.loader.controller is not None and world.loader.controller._migrated == 0


def test_what_leads_to_an_overdue_unit_is_computed_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    # Unit 0 has come; unit 1, above it, is overdue. What a Transformer computes unit 1 from is not in unit 0's KV.
    world = World(monkeypatch, Stage((), (0, 1, 2, 3)), coupling="all_heads", compute_overdue=True)
    assert [world.stream() for _ in range(4)] == [0, 1, 2, 3]
    world.progress.streamed(0, 1.0)
    stalled = LoadFacts(2.5, 1.0, 0.0, goodput_bytes_per_s=0.0)
    assert [world.compute(stalled), world.compute(stalled), world.compute(stalled)] == [0, 1, None]


def test_without_a_controller_nothing_overdue_is_computed() -> None:
    with pytest.raises(ValueError, match="adapt: false leaves out"):
        Staged(adapt=False, compute_overdue=True)

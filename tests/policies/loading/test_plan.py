"""What a plan promises and what its check refuses."""

import numpy as np
import pytest

from kvferry.policies.loading.plan import Plan, Stage, ordered_stage
from kvferry.policies.loading.problem import Coupling, LoadProblem


def square(coupling: Coupling = "per_head", tokens: int = 2) -> LoadProblem:
    """Every unit 1 s of compute or 10 B; unit (t, l) has the index 2 t + l."""
    return LoadProblem(compute_s=np.ones((tokens, 2, 1)), stream_bytes=np.full((tokens, 2, 1), 10.0), coupling=coupling)


def test_eq_1_adds_the_slower_path_of_each_stage():
    # Stage 0: 1 s of compute beside 10 B at 5 B/s; stage 1: 1 s of compute beside 10 B: 2 s + 2 s.
    # Without waiting at the stage's end the link ends at 4 s too.
    plan = Plan((Stage(compute=(0,), stream=(3,)), Stage(compute=(1,), stream=(2,))))
    plan.check(square())
    assert plan.stage_makespan_s(square(), 5.0) == pytest.approx(4.0)
    assert plan.stage_makespan_s(square(), 20.0) == pytest.approx(2.0)
    assert plan.completion_s(square(), 20.0) == pytest.approx(2.0)
    assert plan.depths(square()).tolist() == [[2], [0]]


def test_compute_waits_for_the_streams_it_attends_to():
    # (1, 0) attends to (0, 0), which the link brings second: 2 s at 10 B/s, then 1 s.
    plan = Plan((Stage(compute=(2,), stream=(1, 0, 3)),))
    plan.check(square())
    assert plan.completion_s(square(), 10.0) == pytest.approx(3.0)
    late = Plan((Stage(compute=(2,), stream=(1, 3, 0)),))
    assert late.completion_s(square(), 10.0) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("stages", "complaint"),
    [
        ((Stage(compute=(0, 1), stream=(2,)),), "loaded 0 times"),
        ((Stage(compute=(0, 1), stream=(1, 2, 3)),), "loaded 2 times"),
        ((Stage(compute=(0, 1), stream=(2, 3, 9)),), "outside"),
        # Layer 1 before layer 0, and above a streamed one (Eq. 5)
        ((Stage(compute=(1, 0), stream=(2, 3)),), "before it is ready"),
        ((Stage(compute=(1,), stream=(0, 2, 3)),), "before it is ready"),
        # (1, 0) before (0, 0) has come by either path (Eq. 4)
        ((Stage(compute=(2, 0), stream=(1, 3)),), "before it is ready"),
        ((Stage(compute=(2,), stream=(1, 3)), Stage(stream=(0,))), "before it is ready"),
    ],
)
def test_a_bad_plan_is_refused(stages, complaint):
    with pytest.raises(ValueError, match=complaint):
        Plan(stages).check(square())


def test_what_a_layer_attends_to_depends_on_the_coupling():
    # (1, 1) before (0, 1): the last layer projects only (per_head); layer 1 is reached through layer 0 (all_heads).
    plan = Plan((Stage(compute=(0, 2, 3)), Stage(stream=(1,))))
    plan.check(square("per_head"))
    plan.check(square("all_heads"))
    # (1, 0) before (0, 0): layer 0 attends to itself (per_head), to nothing (all_heads).
    early = Plan((Stage(compute=(2, 0), stream=(1, 3)),))
    early.check(square("all_heads"))
    with pytest.raises(ValueError, match="before it is ready"):
        early.check(square("per_head"))
    # (1, 1) needs (0, 0) under all_heads
    with pytest.raises(ValueError, match="before it is ready"):
        Plan((Stage(compute=(2, 3)), Stage(stream=(0, 1)))).check(square("all_heads"))


def test_the_previous_chunk_may_be_enough():
    # (2, 0) is computed when (1, 0) has come but (0, 0) has not.
    plan = Plan((Stage(compute=(4,), stream=(2,)), Stage(stream=(0, 1, 3, 5))))
    plan.check(square(tokens=3), token_dependency="previous")
    with pytest.raises(ValueError, match="before it is ready"):
        plan.check(square(tokens=3))


def test_an_ordered_stage_brings_first_what_will_be_asked_for_first():
    # Token 1 is computed whole, token 0 streamed: (1, 0) asks for (0, 0); the last layer asks for nothing.
    computed = np.array([[[False], [False]], [[True], [True]]])
    stage = ordered_stage(square(), computed, ~computed)
    assert stage == Stage(compute=(2, 3), stream=(0, 1))
    # With nothing asked for, the link takes the upper layers first.
    nothing = np.zeros((2, 2, 1), dtype=bool)
    assert ordered_stage(square(), nothing, ~nothing).stream == (1, 3, 0, 2)


def test_an_ordered_stage_keeps_the_paths_apart():
    # One token chunk, two layers, two heads; head 1 is better computed, its lower layer most of all.
    problem = LoadProblem(compute_s=np.ones((1, 2, 2)), stream_bytes=np.ones((1, 2, 2)), coupling="per_head")
    labels = np.array([[[0.4, 0.1], [0.5, 0.2]]])
    everything = np.ones((1, 2, 2), dtype=bool)
    assert ordered_stage(problem, everything, ~everything, labels).compute == (1, 3, 0, 2)
    assert ordered_stage(problem, ~everything, everything, labels).stream == (2, 0, 3, 1)


def test_what_leads_to_others_holds_them_back():
    # Token 1 has the lower labels, yet attends to token 0, which is computed too: layer by layer, token 0 first.
    labels = np.array([[[0.3], [0.3]], [[0.1], [0.2]]])
    everything = np.ones((2, 2, 1), dtype=bool)
    assert ordered_stage(square(), everything, ~everything, labels).compute == (0, 2, 1, 3)

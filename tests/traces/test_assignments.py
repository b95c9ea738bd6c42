"""Assignments of new keys: a stream of its own, and a recording that is replayed as it was."""

import numpy as np
import pytest

from kvferry.machine.ops import Assign
from kvferry.specs.errors import InputError
from kvferry.traces.assignments import GeneratedAssignments, RecordedAssignments


def drawn(stay: float, seed: int, steps: int = 400, layers: tuple[int, ...] = (0, 1)) -> np.ndarray:
    """int[steps, layers, sequences, heads]"""
    stream = GeneratedAssignments(stay=stay, seed=seed)
    return np.array([[stream(Assign(3, 9, step, layer, heads=2)) for layer in layers] for step in range(steps)])


def test_keys_join_their_predecessors_cluster_as_often_as_asked() -> None:
    ids = drawn(0.7, seed=1)
    assert ids.shape == (400, 2, 3, 2)
    assert ids.min() >= 0 and ids.max() == 8
    same = (ids[1:] == ids[:-1]).mean()
    # Of those that leave, one in nine comes to the same again.
    assert same == pytest.approx(0.7 + 0.3 / 9, abs=0.03)


def test_a_layers_stream_is_its_own() -> None:
    both, one = drawn(0.5, seed=1), drawn(0.5, seed=1, layers=(1,))
    assert (both[:, 1] == one[:, 0]).all()
    assert (both[:, 0] != both[:, 1]).any()
    assert (both != drawn(0.5, seed=2)).any()


def test_a_recording_says_what_it_has_nothing_for() -> None:
    recorded = RecordedAssignments({(0, 1): np.array([[3, 0]], np.int32)})
    assert recorded(Assign(1, 4, 0, 1, heads=2)).tolist() == [[3, 0]]
    for other in (Assign(1, 4, 1, 1, heads=2), Assign(2, 4, 0, 1, heads=2), Assign(1, 4, 0, 1)):
        with pytest.raises(InputError, match="the recorded assignments are of another run"):
            recorded(other)


def test_a_share_is_a_share() -> None:
    with pytest.raises(ValueError, match="overlap must lie in 0..1, got 1.5"):
        GeneratedAssignments(stay=1.5, seed=0)

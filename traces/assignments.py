"""Which cluster a new key belongs to: what a modelled machine answers Assign ops with, generated or recorded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from kvferry.machine.ops import Assign
from kvferry.specs.errors import InputError
from kvferry.traces.chance import Source, generator

# Answers an Assign op with int32[batch, heads].
Assigning = Callable[[Assign], np.ndarray]


class GeneratedAssignments:
    """A seeded process over steps: with the chance `stay` a row's new key joins the cluster that the one before joined,
    otherwise any of the clusters there are.

    Left out: what keys say. Neither do clusters differ in how many keys they attract, nor rows resemble each other.
    """

    def __init__(self, *, stay: float, seed: int) -> None:
        if not 0 <= stay <= 1:
            raise ValueError(f"overlap must lie in 0..1, got {stay}")
        self._stay, self._seed = stay, seed
        # Each layer draws for itself, whatever the order of layers.
        self._layers: dict[int, np.random.Generator] = {}
        self._before: dict[int, np.ndarray] = {}

    def __call__(self, op: Assign) -> np.ndarray:
        if op.layer not in self._layers:
            self._layers[op.layer] = generator(Source.ASSIGNMENTS, self._seed, op.layer)
        draws = self._layers[op.layer]
        shape = op.batch, op.heads
        anew = draws.integers(op.centroids, size=shape, dtype=np.int32)
        stays = draws.random(shape) < self._stay
        joined = np.where(stays, self._before.get(op.layer, anew), anew)
        self._before[op.layer] = joined
        return joined


@dataclass(frozen=True, eq=False)
class RecordedAssignments:
    """``ids``: int32[batch, heads] by step and layer, as a real run found them."""

    ids: Mapping[tuple[int, int], np.ndarray]

    def __call__(self, op: Assign) -> np.ndarray:
        """Raises InputError for what was not recorded. Where rows differ, some have more clusters than `op` says."""
        found = self.ids.get((op.step, op.layer))
        if found is None or found.shape != (op.batch, op.heads):
            what = f"step {op.step}, layer {op.layer}, {op.heads} heads of {op.batch} sequences"
            raise InputError(f"the recorded assignments are of another run: they have nothing for {what}")
        return found

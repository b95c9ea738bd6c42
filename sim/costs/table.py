"""Costs as measured: one CSV per kind of op, interpolated; the roofline where nothing was measured.

A profile folder holds `OP.csv` files named after the ops (``prefill_head.csv``, ``decode_step.csv``, see
``FEATURES``). The header names the features measured, of those that FEATURES lists for the op, and `seconds`;
a feature that the header leaves out has no effect. Seconds are those of one op on an idle processor, without dispatch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kvferry.machine.ops import (
    Advance,
    Bookkeep,
    DecodeAttention,
    DecodeStep,
    FeedForward,
    Number,
    Op,
    OutputHead,
    Prefill,
    PrefillHead,
    Project,
    Select,
)
from kvferry.sim.cost import Cost
from kvferry.sim.costs.grid import Grid, read_grid
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.errors import InputError
from kvferry.traces.chunks import causal_blocks

# `blocks` are one KV head's active blocks (the mean, for advance), `density` their share of the causal ones.
FEATURES: dict[str, tuple[type, tuple[str, ...]]] = {
    "prefill_head": (PrefillHead, ("context", "density", "blocks", "tokens")),
    "advance": (Advance, ("context", "density", "blocks", "tokens")),
    "project": (Project, ("tokens",)),
    "prefill": (Prefill, ("context", "tokens")),
    "decode_step": (DecodeStep, ("context", "batch")),
    "decode_attention": (DecodeAttention, ("context", "batch")),
    "feed_forward": (FeedForward, ("batch",)),
    "output_head": (OutputHead, ("batch",)),
    "select": (Select, ("groups", "keys", "batch")),
    "bookkeep": (Bookkeep, ("units", "slots")),
}


class MeasuredTable:
    """A cost model from one grid per op type; ``warnings`` lists where it extrapolated."""

    def __init__(self, roofline: Roofline, grids: dict[type, Grid]) -> None:
        self._roofline = roofline
        self._kv_heads = roofline.arithmetic.model.kv_heads
        self._grids = grids

    @classmethod
    def read(cls, folder: Path, roofline: Roofline) -> "MeasuredTable":
        """All tables of a profile folder. Raises InputError if there are none, or one of them is malformed."""
        grids = {
            op: read_grid(folder / f"{name}.csv", known)
            for name, (op, known) in FEATURES.items()
            if (folder / f"{name}.csv").is_file()
        }
        if not grids:
            raise InputError(f"{folder}: no measured table; expected one of {', '.join(f'{n}.csv' for n in FEATURES)}")
        return cls(roofline, grids)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(warning for grid in self._grids.values() for warning in grid.warnings)

    def cost(self, op: Op) -> Cost:
        """Seconds on an idle processor, and bytes of memory traffic, of one op with plain numbers."""
        cost = self._roofline.cost(op)
        return cost if type(op) not in self._grids else Cost(float(self.durations_s(op)), cost.n_bytes)

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        """Seconds of each op that the arrays in `op` describe, broadcast. The table knows no load."""
        grid = self._grids.get(type(op))
        if grid is None:
            return self._roofline.durations_s(op)
        seconds = grid(self._features(op))
        if isinstance(op, PrefillHead) and np.any(op.final_layer):
            return np.where(op.final_layer, self._roofline.durations_s(op), seconds)
        return seconds

    def _features(self, op: Any) -> dict[str, Number]:
        if isinstance(op, PrefillHead | Advance):
            blocks = op.active_blocks / (self._kv_heads if isinstance(op, Advance) else 1)
            density = blocks / causal_blocks(op.tokens, op.context_tokens)
            return {"context": op.context_tokens, "density": density, "blocks": blocks, "tokens": op.tokens}
        return _FEATURES_OF[type(op)](op)


_FEATURES_OF: dict[type, Callable[[Any], dict[str, Number]]] = {
    Project: lambda op: {"tokens": op.tokens},
    Prefill: lambda op: {"context": op.context_tokens, "tokens": op.tokens},
    DecodeStep: lambda op: {"context": op.context_tokens, "batch": op.batch},
    DecodeAttention: lambda op: {"context": op.attended_tokens, "batch": op.batch},
    FeedForward: lambda op: {"batch": op.batch},
    OutputHead: lambda op: {"batch": op.batch},
    Select: lambda op: {"groups": op.groups, "keys": op.groups if op.keys is None else op.keys, "batch": op.batch},
    Bookkeep: lambda op: {"units": op.units, "slots": op.slots},
}

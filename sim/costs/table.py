"""Costs as measured: one CSV per kind of op, interpolated; the roofline where nothing was measured.

A profile folder holds `OP.csv` files named after the ops (``prefill_head.csv``, ``decode_step.csv``: see ``TABLES``).
The header names the features measured, of the ones that the op is registered with (op_rules.py), and `seconds`;
a feature that the header leaves out has no effect. Seconds are those of one op on an idle processor, without dispatch.
A layer of a prompt has no table of its own: it takes its part of a whole one's, that of ``prefill.csv``.
"""

from pathlib import Path

import numpy as np

from kvferry.machine.ops import Number, Op, OutputHead, Prefill, PrefillHead, PrefillLayer
from kvferry.sim.cost import Cost
from kvferry.sim.costs.grid import Grid, read_grid
from kvferry.sim.costs.op_rules import RULES, rule_of
from kvferry.sim.costs.roofline import Roofline
from kvferry.specs.errors import InputError

# Ops that can be measured, by the name of their table.
TABLES: dict[str, type] = {rule.table: op for op, rule in RULES.items() if rule.features}


class MeasuredTable:
    """A cost model from one grid per op type; ``warnings`` lists where it extrapolated."""

    def __init__(self, roofline: Roofline, grids: dict[type, Grid]) -> None:
        self._roofline = roofline
        self._grids = grids

    @classmethod
    def read(cls, folder: Path, roofline: Roofline) -> "MeasuredTable":
        """All tables of a profile folder. Raises InputError if there are none, or one of them is malformed."""
        grids = {
            op: read_grid(folder / f"{name}.csv", tuple(RULES[op].features))
            for name, op in TABLES.items()
            if (folder / f"{name}.csv").is_file()
        }
        if not grids:
            raise InputError(f"{folder}: no measured table; expected one of {', '.join(f'{n}.csv' for n in TABLES)}")
        return cls(roofline, grids)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(warning for grid in self._grids.values() for warning in grid.warnings)

    def knows(self, op: Op) -> bool:
        """Returns whether a table prices the op."""
        if isinstance(op, PrefillLayer):
            # No calibration measures attention that writes its scores to memory.
            return Prefill in self._grids and not op.kernel.score_bytes
        return type(op) in self._grids

    def cost(self, op: Op) -> Cost:
        """Seconds on an idle processor, and bytes of memory traffic, of one op with plain numbers."""
        cost = self._roofline.cost(op)
        return Cost(float(self.durations_s(op)), cost.n_bytes) if self.knows(op) else cost

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        """Seconds of each op that the arrays in `op` describe, broadcast. The table knows no load."""
        if not self.knows(op):
            return self._roofline.durations_s(op)
        if isinstance(op, PrefillLayer):
            return self._layer_s(op)
        seconds = self._grids[type(op)](rule_of(type(op)).features_of(op, self._roofline.arithmetic))
        if isinstance(op, PrefillHead) and np.any(op.final_layer):
            return np.where(op.final_layer, self._roofline.durations_s(op), seconds)
        return seconds

    def _layer_s(self, op: PrefillLayer) -> np.ndarray:
        """Seconds of one layer of prompts: what is left of a whole one without the output head, by layers. More tokens
        than were measured go in pieces of the most measured, each behind the ones before it, as attention grows faster
        than its tokens."""
        grid, layers = self._grids[Prefill], self._roofline.arithmetic.layers
        longest = grid.points[grid.axes.index("tokens")][-1] if "tokens" in grid.axes else np.inf
        head_s, total = self.durations_s(OutputHead(1)), np.asarray(0.0)
        left, before = np.asarray(op.tokens, dtype=float), np.asarray(op.context_tokens, dtype=float)
        while np.any(left > 0):
            piece = np.minimum(left, longest)
            passed_s = self.durations_s(Prefill(np.where(left > 0, piece, longest), before)) - head_s
            total = total + np.where(left > 0, np.maximum(passed_s, 0), 0)
            left, before = left - piece, before + piece
        return op.batch * total / layers

"""Costs of a device whose block-sparse attention was measured: SparKV's perceptron (IV-C), fitted to those
measurements, prices it; everything else is priced from the measured tables.

A profile folder holds `predictor.npz`, the perceptron of whole layers, and `dense.csv` (tokens, seconds): what a layer
takes besides attention and the projection of its K and V. Other ops are priced by the tables of that folder
(``sim/costs/table.py``), or by the roofline where nothing was measured.
"""

from pathlib import Path
from typing import Any

import numpy as np

from kvferry.machine.ops import Advance, Number, Op, PrefillHead, Project
from kvferry.sim.cost import Cost
from kvferry.sim.costs.grid import Grid, read_grid
from kvferry.sim.costs.predictor import Predictor
from kvferry.sim.costs.roofline import Roofline
from kvferry.sim.costs.table import TABLES, MeasuredTable

PREDICTOR = "predictor.npz"
DENSE = "dense.csv"


class FittedCosts:
    """A cost model. A live session attends with all heads of a layer at once: a single head is priced as its share of
    a layer whose heads are all as dense. Left out: which blocks are active, and in which heads."""

    def __init__(
        self, roofline: Roofline, predictor: Predictor, rest: MeasuredTable | Roofline, dense: Grid | None
    ) -> None:
        """`rest` prices everything except attention and, if `dense` is given, the dense operators that follow it."""
        self.predictor = predictor
        self._roofline, self._rest, self._dense = roofline, rest, dense
        self._kv_heads = roofline.arithmetic.model.kv_heads

    @classmethod
    def read(cls, folder: Path, roofline: Roofline) -> "FittedCosts":
        """Reads the costs from a profile's folder of the model. Raises InputError for a file that is not in order."""
        tables = any((folder / f"{name}.csv").is_file() for name in TABLES)
        dense = read_grid(folder / DENSE, ("tokens",)) if (folder / DENSE).is_file() else None
        rest = MeasuredTable.read(folder, roofline) if tables else roofline
        return cls(roofline, Predictor.load(folder / PREDICTOR), rest, dense)

    def cost(self, op: Op) -> Cost:
        """Seconds on an idle processor, and bytes of memory traffic, of one op with plain numbers."""
        return Cost(float(self.durations_s(op)), self._roofline.cost(op).n_bytes)

    def durations_s(self, op: Op, *, load: Number = 0.0) -> np.ndarray:
        """Seconds of each op that the arrays in `op` describe, broadcast. The load matters where it was measured."""
        if isinstance(op, Advance):
            return np.asarray(self._attention_s(op, op.active_blocks, self._kv_heads, load) + self._dense_s(op))
        if isinstance(op, PrefillHead):
            inner = 1 - op.final_layer
            dense_s = self._rest.durations_s(Project(op.tokens)) + inner * self._dense_s(op)
            return np.asarray(self._attention_s(op, op.active_blocks * inner, 1, load) + dense_s / self._kv_heads)
        return self._rest.durations_s(op)

    def _attention_s(self, op: Advance | PrefillHead, active_blocks: Number, kv_heads: int, load: Number) -> Any:
        return self.predictor.seconds(
            op.tokens, active_blocks, kv_heads=kv_heads, context_tokens=op.context_tokens, load=load
        )

    def _dense_s(self, op: Advance | PrefillHead) -> np.ndarray:
        if self._dense is None:
            return self._roofline.durations_s(Advance(op.tokens, 0, op.context_tokens))
        return self._dense({"tokens": op.tokens})

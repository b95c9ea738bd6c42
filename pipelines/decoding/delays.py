"""What decoding takes by a profile's own numbers: I/O, compute, and both together (KVSwap A.3).

For planning: no events, the mean of everything. It walks the very stages that the pipeline carries out; the modelled
world, with its events, agrees within a few percent.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kvferry.machine.ops import Op
from kvferry.pipelines.decoding.plan import DecodePlan, step_of
from kvferry.pipelines.decoding.stages import DECODING
from kvferry.pipelines.decoding.timetable import Timetable, idle_s
from kvferry.policies.decode.roles import Roles
from kvferry.sim.costs.cost_model import COST_MODELS
from kvferry.sim.storage import map_miss_s
from kvferry.sim.storage_curve import StorageCurves
from kvferry.specs.device import DeviceSpec
from kvferry.specs.errors import InputError, pick
from kvferry.specs.model import ModelSpec

# Enough for a block in the middle: one before it and one behind, each with a neighbour of its own.
_BLOCKS = 4


@dataclass(frozen=True, kw_only=True)
class BlockDelays:
    """Seconds of one Transformer block for a whole batch, amid others.

    ``io_s``: moving its KV. ``block_s``: from one block's end to the next one's. ``overlapped_s``: of the I/O, what
    passes while the processor works.
    """

    io_s: float
    block_s: float
    overlapped_s: float


class Delays:
    """Prices decoding on one device and model. Raises InputError when the device has no storage."""

    def __init__(self, device: DeviceSpec, model: ModelSpec, costs: str = "roofline") -> None:
        if device.storage is None:
            raise InputError(f"device {device.name} has no storage; its profile needs a `storage`")
        self._spec = device.processors[device.main]
        self._costs = pick("cost model", COST_MODELS, costs)(self._spec, model)
        self._storage = device.storage
        self._curves = StorageCurves(device.storage)
        slowdown = device.contention.slowdown.get(device.main, {}) if device.contention else {}
        # Of compute that runs beside reads, the share that is not lost.
        self._beside = 1 / slowdown.get("storage", 1.0)
        # Tuning asks again and again for the same.
        self.op_s = lru_cache(maxsize=1 << 14)(self._op_s)
        self._moves_s = lru_cache(maxsize=1 << 14)(self._read_moves_s)

    def _op_s(self, op: Op) -> float:
        return self._spec.dispatch_s + self._costs.cost(op).duration_s

    def block(self, plan: DecodePlan, reuse_rate: float = 0.0) -> BlockDelays:
        """`reuse_rate`: the share of selected blocks that the reuse buffer holds."""
        table = _timetable(plan.roles, _BLOCKS)
        seconds = self._seconds(table, plan, reuse_rate)
        times = table.times(seconds, self._beside)
        first, second = (max(times[n][1] for n in worked) for worked in _middle(plan.roles))
        io_s, moved = seconds[table.stages[table.last_move].kind], times[table.last_move]
        took_s = moved[1] - moved[0]
        idle = idle_s(moved, (times[n] for n in table.worked)) / took_s if took_s else 0.0
        return BlockDelays(io_s=io_s, block_s=second - first, overlapped_s=io_s * (1 - idle))

    def step_s(self, plan: DecodePlan, reuse_rate: float = 0.0) -> float:
        """One token per sequence."""
        table = _timetable(plan.roles, plan.model.layers)
        return table.times(self._seconds(table, plan, reuse_rate), self._beside)[-1][1]

    def io_s(self, plan: DecodePlan, reuse_rate: float = 0.0) -> float:
        """Moving what one block of the whole batch lacks."""
        storage, layout = self._storage, plan.layout
        miss_s = map_miss_s(storage.map, layout.file_bytes) if storage.map else 0.0
        if plan.selected is None:
            lengths = np.full(plan.rows, plan.blocks * layout.stride_bytes)
            return self._curves.batch_s(lengths, extra_s=miss_s)
        missing = plan.sequences * plan.blocks_per_selection * (1 - reuse_rate)
        whole = max(1, round(missing))
        return self._moves_s(whole, layout.stride_bytes, miss_s) * missing / whole

    def _read_moves_s(self, blocks: int, stride_bytes: int, miss_s: float) -> float:
        return self._curves.batch_s(np.full(blocks, stride_bytes), extra_s=miss_s)

    def _seconds(self, table: Timetable, plan: DecodePlan, reuse_rate: float) -> dict[str, float]:
        """By kind of stage."""
        prices = _Prices(plan, self.io_s(plan, reuse_rate), self.op_s)
        return {kind: DECODING[kind].seconds(prices) for kind in table.kinds}


@dataclass(frozen=True)
class _Prices:
    """The mean step of a plan."""

    plan: DecodePlan
    move_s: float
    op_s: Callable[[Op], float]


@lru_cache(maxsize=256)
def _timetable(roles: Roles, layers: int) -> Timetable:
    return Timetable(step_of(roles, layers))


@lru_cache(maxsize=256)
def _middle(roles: Roles) -> tuple[list[int], list[int]]:
    """What the processor does for the two layers in the middle."""
    first, second = (_timetable(roles, _BLOCKS).worked_at(layer) for layer in (1, 2))
    return first, second
